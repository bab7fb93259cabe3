"""What stands behind ``minfer_jax.generate``: stop strings, output rows, argument checks, the run itself."""
