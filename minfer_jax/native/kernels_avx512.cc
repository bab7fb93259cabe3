// The kernels for x86 processors with 512-bit vectors and their byte products.

#include "dispatch.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")
#endif
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // both in GCC's own header for these instructions
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#define MINFER_ISA avx512
#define MINFER_AVX512
#include "kernels.h"

const minfer::Kernels minfer::kAvx512 = minfer::avx512::make_kernels("avx512");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
