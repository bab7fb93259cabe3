"""``python -m minfer_jax.cli``, the same as the command ``minfer-jax``."""

import sys

from minfer_jax.cli import main

if __name__ == "__main__":
    sys.exit(main())
