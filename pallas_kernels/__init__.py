"""GPU kernels on plain arrays; this package imports nothing from minfer_jax."""
