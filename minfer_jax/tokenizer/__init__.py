"""Text to ids and back, from the vocabulary inside a GGUF file; chat templates.

Byte-level BPE vocabularies run on the ``tokenizers`` library, SentencePiece ones on ``sentencepiece``.
"""

from minfer_jax.tokenizer.streaming import StreamDecoder
from minfer_jax.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
