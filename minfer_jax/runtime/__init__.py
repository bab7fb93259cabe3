"""What turns pure functions into programs: buckets (every padding decision), compiled programs and their promotion, the
readback of logits, the trace, and ``Runtime``, through which every call goes."""

from minfer_jax.runtime.runtime import CacheInfo, Runtime
from minfer_jax.runtime.trace import TraceRecord

__all__ = ["CacheInfo", "Runtime", "TraceRecord"]
