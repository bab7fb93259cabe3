"""Products of many rows of float16 with a float16 matrix, and what follows them in a transformer, in one kernel: the
results of the product itself never reach memory."""

from pallas_kernels.dense_matmul.gated import gated_matmul
from pallas_kernels.dense_matmul.log_sum_exp import log_sum_exp
from pallas_kernels.dense_matmul.tiles import fits

__all__ = ["fits", "gated_matmul", "log_sum_exp"]
