// The kernels for x86 processors with 256-bit vectors.

#include "dispatch.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#define MINFER_ISA avx2
#define MINFER_AVX2
#include "kernels.h"

const minfer::Kernels minfer::kAvx2 = minfer::avx2::make_kernels("avx2");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
