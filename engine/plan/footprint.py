"""Bytes of each part of a model, from its headers and geometry alone. Pure arithmetic; no files, no devices."""

from dataclasses import dataclass

_FLOAT = 4  # activations, KV cache and scratch are fp32


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model needs wherever it runs. `slot_bytes` is an expert plus the alignment that direct reads need."""

    name: str
    architecture: str
    weight_format: str
    model_bytes: int
    dense_bytes: int
    dense_read_bytes: int  # per pass: all but an embedding table that is only looked up
    expert_bytes: int
    slot_bytes: int
    num_moe_layers: int
    num_experts: int
    top_k: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    expert_size: int
    vocab_size: int
    max_context: int

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * _FLOAT

    @property
    def experts_total(self) -> int:
        return self.num_moe_layers * self.num_experts

    @property
    def floor_bytes(self) -> int:
        """The least expert memory that can run a token: top-k slots in every layer."""
        return self.num_moe_layers * self.top_k * self.slot_bytes

    def workspace_bytes(self, chunk: int, context: int) -> int:
        """Activations of one prefill chunk, attention mask and scores, logits, and the kernels' scratch."""
        activations = chunk * (self.hidden_size * (8 + self.top_k) + 3 * self.expert_size) * _FLOAT
        attention = chunk * context * (1 + _FLOAT * 2)
        return activations + attention + 4 * self.vocab_size * _FLOAT + (8 << 20)
