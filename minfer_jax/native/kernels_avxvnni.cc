// The kernels for x86 processors with 256-bit vectors and their byte products.

#include "dispatch.h"

#if defined(MINFER_HAS_AVXVNNI)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif
#define MINFER_ISA avxvnni
#define MINFER_AVX2
#define MINFER_AVXVNNI
#include "kernels.h"

const minfer::Kernels minfer::kAvxVnni = minfer::avxvnni::make_kernels("avxvnni");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
