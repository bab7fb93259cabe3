// Custom calls behind models/native_rows.py: what is summed along each row of a matrix. XLA's own sums take their order
// from the number of rows, and its exponentials and logarithms round differently at the end of a short vector.

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
      minfer::kernels().rows.norm(x.typed_data() + i, weight.typed_data(), n, eps, y->typed_data() + i);
    }
  });
  return ffi::Error::Success();
}

// Log-sum-exp as it grows: peak and total as in rows_kernel.h, before and after, and the logarithm of the total.
ffi::Error add_exp(ffi::ThreadPool pool, Floats x, Floats peak, Floats total, ffi::Result<Floats> new_peak,
                   ffi::Result<Floats> new_total, ffi::Result<Floats> log_total) {
  int64_t rows = peak.element_count(), n = rows ? int64_t(x.element_count()) / rows : 0;
  if (rows * n != int64_t(x.element_count()) || int64_t(total.element_count()) != rows) {
    return ffi::Error::InvalidArgument("minfer_add_exp: x is [M, K], peak and total are [M]");
  }
  minfer::parallel_runs(pool, rows, kRowsAtATime, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      float high = peak.typed_data()[i], sum = total.typed_data()[i];
      minfer::kernels().rows.add_exp(x.typed_data() + i * n, n, &high, &sum);
      new_peak->typed_data()[i] = high, new_total->typed_data()[i] = sum, log_total->typed_data()[i] = std::log(sum);
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    minfer_rms_norm, rms_norm,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Floats>().Arg<Floats>().Attr<float>("eps").Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(minfer_add_exp, add_exp,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>());
