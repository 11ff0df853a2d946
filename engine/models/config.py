"""What the engine asks of every architecture's configuration, read from config.json under the usual keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.kernels.weights import ExpertMath
from engine.models.hf_config import HfConfig
from engine.models.rope import Scaling
from engine.plan.footprint import Choice, Compressed


@dataclass(frozen=True)
class DecoderConfig:
    """Each architecture adds its own. `num_kv_heads` and `head_dim` are also the geometry of its cache."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    top_k: int
    expert_size: int
    moe_layers: tuple[int, ...]
    rms_eps: float
    rope_theta: float
    stretch: Scaling | None
    tied: bool

    @property
    def kv_layers(self) -> int:
        """How many layers keep something of each token."""
        return self.num_layers

    @property
    def kept_windows(self) -> tuple[int | None, ...]:
        """How many tokens each layer sees, its own included; None for all."""
        return (None,) * self.num_layers

    @property
    def choice(self) -> Choice | None:
        """What of the tokens kept a layer reads, where that is not all that it sees."""
        return None

    @property
    def kept_compressed(self) -> tuple[Compressed | None, ...]:
        """What each layer keeps of several tokens at once."""
        return (None,) * self.num_layers

    @property
    def state_values(self) -> int:
        """Numbers that all recurrent layers remember together, whatever the length."""
        return 0

    @property
    def math(self) -> ExpertMath:
        """Between an expert's matrices."""
        return ExpertMath()


def read_common(
    hf: HfConfig,
    *,
    experts: Sequence[str] = ("num_experts", "num_local_experts"),
    expert_size: str = "moe_intermediate_size",
    top_k: str = "num_experts_per_tok",
    moe_layers: Sequence[int] | None = None,
    theta: float = 10_000.0,
    eps: float = 1e-6,
    eps_key: str = "rms_norm_eps",
    tied: bool = False,
    head_dim: int | None = None,
    stretches: Sequence[str] = ("yarn",),
) -> dict[str, Any]:
    """The fields of `DecoderConfig`. `experts` are keys of which one is there, `expert_size` and `top_k` keys too; all layers
    are mixtures unless told.

    `theta`, `eps`, `tied` and `head_dim` hold where the file is silent; `stretches` are those of the context that the
    architecture is published with. Raises `EngineError` naming a key.
    """
    hf.expect("hidden_act", "silu")
    hidden, heads, num_layers = hf.integer("hidden_size"), hf.integer("num_attention_heads"), hf.num_layers()
    kv_heads = hf.integer("num_key_value_heads", heads)
    hf.divisible("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    found_theta, stretch = hf.rope(theta, stretches)
    num_experts, chosen = hf.integer(hf.present(*experts)), hf.integer(top_k)
    if chosen > num_experts:
        raise hf.error(f"{top_k} {chosen} is more than the {num_experts} experts")
    return {
        "vocab_size": hf.integer("vocab_size"),
        "hidden_size": hidden,
        "num_layers": num_layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": hf.integer("head_dim", head_dim or hidden // heads),
        "num_experts": num_experts,
        "top_k": chosen,
        "expert_size": hf.integer(expert_size),
        "moe_layers": tuple(range(num_layers) if moe_layers is None else moe_layers),
        "rms_eps": hf.positive(eps_key, eps),
        "rope_theta": found_theta,
        "stretch": stretch,
        "tied": hf.flag("tie_word_embeddings", tied),
    }
