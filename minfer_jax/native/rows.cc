// Custom calls behind models/native_rows.py: what is summed along each row of a matrix. XLA's own sums take their order
// from the number of rows, and its exponentials and logarithms round differently at the end of a short vector.

#include "dispatch.h"
#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Floats = ffi::Buffer<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;

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

// Log-sum-exp and argmax as they grow: peak, total and best as in rows_kernel.h, before and after, and the logarithm of
// the total. Columns span[0] .. span[1] of z are logits, of tokens span[2] and following.
ffi::Error add_logits(ffi::ThreadPool pool, Floats z, Floats peak, Floats total, Ints best, Ints span,
                      ffi::Result<Floats> new_peak, ffi::Result<Floats> new_total, ffi::Result<Floats> log_total,
                      ffi::Result<Ints> new_best) {
  int64_t rows = peak.element_count(), n = rows ? int64_t(z.element_count()) / rows : 0;
  if (rows * n != int64_t(z.element_count()) || int64_t(total.element_count()) != rows ||
      int64_t(best.element_count()) != rows || span.element_count() != 3) {
    return ffi::Error::InvalidArgument("minfer_add_logits: z is [M, K], peak, total and best are [M], span is [3]");
  }
  int64_t first = span.typed_data()[0], last = span.typed_data()[1];
  if (rows && !(0 <= first && first <= last && last <= n)) {
    return ffi::Error::InvalidArgument("minfer_add_logits: span is not within the columns of z");
  }
  minfer::parallel_runs(pool, rows, kRowsAtATime, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      float high = peak.typed_data()[i], sum = total.typed_data()[i];
      int32_t token = best.typed_data()[i];
      minfer::kernels().rows.add_logits(z.typed_data() + i * n + first, last - first, span.typed_data()[2], &high, &sum,
                                        &token);
      new_peak->typed_data()[i] = high, new_total->typed_data()[i] = sum, log_total->typed_data()[i] = std::log(sum);
      new_best->typed_data()[i] = token;
    }
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    minfer_rms_norm, rms_norm,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Floats>().Arg<Floats>().Attr<float>("eps").Ret<Floats>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(minfer_add_logits, add_logits,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Arg<Ints>()
                                  .Arg<Ints>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Floats>()
                                  .Ret<Ints>());
