"""Products of many rows of float16 with float16 matrices, with float32 sums, and what follows them in a transformer in
the same kernel. The bits of a row depend on nothing else."""

from pallas_kernels.dense_matmul.gated import gated_matmul
from pallas_kernels.dense_matmul.log_sum_exp import log_sum_exp, ordered_sum
from pallas_kernels.dense_matmul.product import matmul
from pallas_kernels.dense_matmul.tiles import fits

__all__ = ["fits", "gated_matmul", "log_sum_exp", "matmul", "ordered_sum"]
