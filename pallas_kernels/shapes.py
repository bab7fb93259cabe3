"""Shapes of real models: (rows N, columns K) of each matrix product."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """width: of the residual stream; ffn: of the gated layer; heads, kv_heads, head: of attention; vocab: rows of the
    output matrix."""

    width: int
    ffn: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    layers: int

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Shape (N, K) by role; those that read the same input are one matrix ("qkv", "gate_up")."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head, self.width),
            "output": (self.width, self.heads * self.head),
            "gate_up": (2 * self.ffn, self.width),
            "down": (self.width, self.ffn),
            "vocabulary": (self.vocab, self.width),
        }


MODELS = {
    "qwen2.5-0.5b": Model(896, 4864, 14, 2, 64, 151936, 24),
    "qwen2.5-1.5b": Model(1536, 8960, 12, 2, 128, 151936, 28),
    "qwen2.5-7b": Model(3584, 18944, 28, 4, 128, 152064, 28),
    "llama-3.2-1b": Model(2048, 8192, 32, 8, 64, 128256, 16),
    "gemma3-270m": Model(640, 2048, 4, 1, 256, 262144, 18),
    "gemma3-1b": Model(1152, 6912, 4, 1, 256, 262144, 26),
    "smollm2-135m": Model(576, 1536, 9, 3, 64, 49152, 30),
}
