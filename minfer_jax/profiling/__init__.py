"""Measuring what the runtime does: throughput in llama-bench's vocabulary, and where the time of a decode step goes."""
