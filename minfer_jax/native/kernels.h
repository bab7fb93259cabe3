// All kernels, for the instruction set that the including file is compiled for.

#include "simd.h"

#include "rows_kernel.h"

#include "activations_kernel.h"
#include "attention_kernel.h"
#include "weights_kernel.h"

#include "matmul_kernel.h"

namespace minfer::MINFER_ISA {

constexpr Kernels make_kernels(const char* name) {
  return {name, {kRows, bytes_per_row, prepare, takes, multiply}, kAttention, {norm_row, add_logits}};
}

}  // namespace minfer::MINFER_ISA
