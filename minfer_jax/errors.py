"""The one exception family of the package: every message is a line that names what is wrong and what to do."""


class MinferError(Exception):
    """Base of every error the package raises on purpose; catch this to catch them all."""


class GGUFError(MinferError):
    """A GGUF file is not readable: cut off, corrupt, not GGUF, or a metadata key is missing or of the wrong type."""


class UnsupportedError(MinferError):
    """The file or request is sound, but names an architecture, quantisation type or implementation we lack."""


class TokenizerError(MinferError):
    """The vocabulary cannot be built, or a text cannot be encoded."""


class ChatTemplateError(MinferError):
    """The chat template is missing, broken, unsafe, or refuses the conversation in its own words."""


class ArgumentError(MinferError, ValueError):
    """A caller's argument is out of range or of the wrong type; the message names the argument."""


class ContextLengthError(ArgumentError):
    """The prompt does not fit the context window; the message gives both numbers."""


class NumericsError(MinferError, ArithmeticError):
    """A logit or log-probability is not finite; it is never returned as a number."""
