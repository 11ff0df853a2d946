"""config.json of DeepSeek-V4 (Flash, Pro), as DeepSeek publishes it and as transformers saves it: what only one of them tells,
what both tell alike. A contradiction between them is named.
"""

from dataclasses import dataclass, replace
from typing import Any

from engine.kernels.weights import Activation, ExpertMath
from engine.models.compressed_attention import AttentionShape
from engine.models.config import DecoderConfig, read_common
from engine.models.hf_config import HfConfig
from engine.models.hyper_connections import Streams
from engine.models.rope import Scaling, YarnScaling
from engine.plan.footprint import Compressed

_WINDOW, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_BY_RATIO = {0: _WINDOW, 4: _SPARSE, 128: _HEAVY}  # of `compress_ratios`
_HASHED, _SCORED = "hash_moe", "moe"


@dataclass(frozen=True)
class Config(DecoderConfig):
    """As the cache counts, there is one head whose key and value are the two halves of a token's row. `rope_theta` is that of
    layers without compressed entries."""

    kinds: tuple[str, ...]  # of attention, by layer
    routers: tuple[str, ...]  # by layer
    attention: AttentionShape
    sparse: Compressed
    heavy: Compressed
    turned_dim: int
    far_theta: float
    far_stretch: Scaling | None
    streams: Streams
    limit: float  # of what goes into the experts' activation
    routed_scale: float
    shared_size: int

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        for key, only in _ONLY.items():
            hf.expect(key, only)
        common = read_common(hf, experts=("n_routed_experts",))
        head_dim, turned = common["head_dim"], _turned_dim(hf, values, common["head_dim"])
        kinds = _kinds(hf, values, common["num_layers"])
        sparse_ratio, heavy_ratio = _ratios(hf, values, name)
        index_dim = hf.integer("index_head_dim")
        if head_dim % 2 or turned > index_dim:
            raise hf.error(f"head_dim {head_dim} is odd or index_head_dim {index_dim} less than the {turned} that are turned")
        groups = hf.integer("o_groups")
        hf.divisible("num_attention_heads", common["num_heads"], "o_groups", groups)
        near_theta, far_theta, far_stretch = _ropes(hf, values, name)
        attention = AttentionShape(
            common["hidden_size"], common["num_heads"], head_dim, hf.integer("q_lora_rank"), groups, hf.integer("o_lora_rank"),
            hf.integer("sliding_window"), hf.integer("index_n_heads"), index_dim, common["rms_eps"],
        )  # fmt: skip
        streams = Streams(
            hf.integer("hc_mult", maximum=64), hf.integer("hc_sinkhorn_iters", maximum=1000), hf.positive("hc_eps", 1e-6),
            common["rms_eps"],
        )  # fmt: skip
        return cls(
            **common | {"num_kv_heads": 1, "head_dim": head_dim // 2, "rope_theta": near_theta, "stretch": None},
            kinds=kinds,
            routers=_routers(hf, values, common["num_layers"]),
            attention=attention,
            sparse=Compressed(sparse_ratio, (head_dim, index_dim), hf.integer("index_topk")),
            heavy=Compressed(heavy_ratio, (head_dim,)),
            turned_dim=turned,
            far_theta=far_theta,
            far_stretch=far_stretch,
            streams=streams,
            limit=hf.positive("swiglu_limit", 10.0),
            routed_scale=hf.positive("routed_scaling_factor", 1.5),
            shared_size=hf.integer("n_shared_experts") * common["expert_size"],
        )

    @property
    def kept_windows(self) -> tuple[int | None, ...]:
        return (self.attention.window,) * self.num_layers

    @property
    def kept_compressed(self) -> tuple[Compressed | None, ...]:
        return tuple({_SPARSE: self.sparse, _HEAVY: self.heavy}.get(kind) for kind in self.kinds[: self.num_layers])

    @property
    def state_values(self) -> int:
        """Means in the making: three numbers for each of an entry, of two entries where these overlap."""
        kept = filter(None, self.kept_compressed)
        return sum(3 * sum(each.widths) * (2 if each.top else 1) for each in kept)

    @property
    def math(self) -> ExpertMath:
        return ExpertMath(Activation.SILU_CLAMPED, limit=self.limit)

    def is_hashed(self, layer: int) -> bool:
        """Whether the experts follow from a token's number alone."""
        return self.routers[layer] == _HASHED


_ONLY: dict[str, Any] = {
    "attention_bias": False, "mlp_bias": False, "num_key_value_heads": 1, "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True, "topk_method": "noaux_tc", "n_group": 1,
}  # fmt: skip


def _ratios(hf: HfConfig, values: dict[str, Any], name: str) -> tuple[int, int]:
    """Tokens of an entry in sparse and in heavily compressed layers."""
    found = values.get("compress_rates") or {}
    if not isinstance(found, dict):
        raise hf.error(f"compress_rates is {str(found)[:40]}, not an object")
    rates = HfConfig(found, name)
    ratios = rates.integer(_SPARSE, 4), rates.integer(_HEAVY, 128)
    if values.get("compress_ratios") is not None and ratios != (4, 128):
        raise hf.error(f"compress_rates are {ratios}, where compress_ratios are of 4 and 128")
    return ratios


def _kinds(hf: HfConfig, values: dict[str, Any], num_layers: int) -> tuple[str, ...]:
    """`compress_ratios` goes on for the layers that guess further tokens."""
    published: list[str] | None = None
    if values.get("compress_ratios") is not None:
        ratios = hf.integers("compress_ratios")
        if len(ratios) < num_layers or not set(ratios) <= _BY_RATIO.keys():
            raise hf.error(
                f"compress_ratios has {len(ratios)} entries of {sorted(set(ratios))}; needed: {num_layers} of 0, 4, 128"
            )
        published = [_BY_RATIO[ratio] for ratio in ratios[:num_layers]]
    kinds = hf.kinds("layer_types", num_layers, (_WINDOW, _SPARSE, _HEAVY), published or ())
    if published is not None and list(kinds) != published:
        raise hf.error("layer_types and compress_ratios contradict one another")
    return kinds


def _routers(hf: HfConfig, values: dict[str, Any], num_layers: int) -> tuple[str, ...]:
    published: list[str] | None = None
    if values.get("num_hash_layers") is not None:
        hashed = hf.integer("num_hash_layers", minimum=0)
        published = [_HASHED if layer < hashed else _SCORED for layer in range(num_layers)]
    routers = hf.kinds("mlp_layer_types", num_layers, (_HASHED, _SCORED), published or ())
    if published is not None and list(routers) != published:
        raise hf.error("mlp_layer_types and num_hash_layers contradict one another")
    return routers


def _turned_dim(hf: HfConfig, values: dict[str, Any], head_dim: int) -> int:
    if values.get("qk_rope_head_dim") is None:
        return hf.rotary_dim(head_dim, 64 / 512)
    turned = hf.integer("qk_rope_head_dim", maximum=head_dim)
    if turned % 2:
        raise hf.error(f"qk_rope_head_dim {turned} is odd")
    if (share := hf.rotary_dim(head_dim, turned / head_dim)) != turned:
        raise hf.error(f"qk_rope_head_dim is {turned}, and partial_rotary_factor makes it {share}")
    return turned


def _ropes(hf: HfConfig, values: dict[str, Any], name: str) -> tuple[float, float, Scaling | None]:
    """The base of layers without compressed entries, and base and stretch of those with them. A stretch does not scale its
    table unless told."""
    found = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(found, dict) or not all(isinstance(found.get(part, {}), dict) for part in ("main", "compress")):
        raise hf.error(f"its rotary embedding is described by {str(found)[:40]}, not by objects")
    main, compress = found.get("main", {}), found.get("compress", {key: found[key] for key in found if key != "rope_theta"})
    near = hf.positive("rope_theta", main.get("rope_theta", 10_000.0))
    far = hf.positive("compress_rope_theta", compress.get("rope_theta", 160_000.0))
    own_near, _ = HfConfig({"rope_parameters": {"rope_theta": near} | main}, name).rope(near, ())
    own_far, stretch = HfConfig({"rope_parameters": {"rope_theta": far} | compress}, name).rope(far)
    if (own_near, own_far) != (near, far):
        raise hf.error(f"rope_theta and compress_rope_theta are {near} and {far}, in rope_parameters {own_near} and {own_far}")
    if isinstance(stretch, YarnScaling) and not stretch.given_factor:
        stretch = replace(stretch, given_factor=1.0)
    return near, far, stretch
