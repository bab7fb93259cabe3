// The kernels of every instruction set, and all that they include outside of any.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention.h"
#include "matmul.h"
#include "scratch.h"

#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define MINFER_HAS_AVXVNNI  // the compiler knows these instructions
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace minfer {

// Along a row [n]: its RMSNorm, with a weight [n]; logits into a running log-sum-exp and argmax (rows_kernel.h).
struct RowKernels {
  void (*norm)(const float* x, const float* weight, int64_t n, float eps, float* y);
  void (*add_logits)(const float* z, int64_t n, int32_t id, float* peak, float* total, int32_t* best);
};

struct Kernels {
  const char* name;
  MatmulKernels matmul;
  AttentionKernels attention;
  RowKernels rows;
};

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512;
#endif
#if defined(MINFER_HAS_AVXVNNI)
extern const Kernels kAvxVnni;
#endif

// The best that this processor runs, unless another one has been asked for.
const Kernels& kernels();

}  // namespace minfer
