// Custom calls behind models/native_rows.py: what is summed along each row of a matrix. XLA's own sums take their order
// from the number of rows.

#include "dispatch.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Floats = ffi::Buffer<ffi::F32>;

constexpr int64_t kRowsAtATime = 8;

ffi::Error rms_norm(ffi::ThreadPool pool, Floats x, Floats weight, float eps, ffi::Result<Floats> y) {
  int64_t n = weight.element_count(), rows = n ? int64_t(x.element_count()) / n : 0;
  if (rows * n != int64_t(x.element_count()) || x.element_count() != y->element_count()) {
    return ffi::Error::InvalidArgument("minfer_rms_norm: x and the result are [M, K], the weight is [K]");
  }
  minfer::parallel_runs(pool, rows, kRowsAtATime, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * n; i < end * n; i += n) {
      minfer::kernels().norm_row(x.typed_data() + i, weight.typed_data(), n, eps, y->typed_data() + i);
    }
  });
  return ffi::Error::Success();
}

ffi::Error sum_exp(ffi::ThreadPool pool, Floats x, Floats shift, ffi::Result<Floats> y) {
  int64_t rows = y->element_count(), n = rows ? int64_t(x.element_count()) / rows : 0;
  if (rows * n != int64_t(x.element_count()) || int64_t(shift.element_count()) != rows) {
    return ffi::Error::InvalidArgument("minfer_sum_exp: x is [M, K], the shift and the result are [M]");
  }
  minfer::parallel_runs(pool, rows, kRowsAtATime, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      y->typed_data()[i] = minfer::kernels().sum_exp(x.typed_data() + i * n, n, shift.typed_data()[i]);
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    minfer_rms_norm, rms_norm,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Floats>().Arg<Floats>().Attr<float>("eps").Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(minfer_sum_exp, sum_exp,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Floats>().Arg<Floats>().Ret<Floats>());
