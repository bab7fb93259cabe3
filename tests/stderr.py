"""What processes write on stderr."""

import re


def errors(text: str) -> str:
    """All but the line by which a process begins where the native library was not built."""
    return re.sub(r"\A(minfer-jax: )?going on without the native library: .*\n", "", text)
