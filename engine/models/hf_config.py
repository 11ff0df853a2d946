"""Reads typed values out of a published config.json. A missing or impossible key is named to the person."""

from collections.abc import Callable, Sequence
from typing import Any

from engine.errors import EngineError
from engine.models.geometry import MOST, MOST_LAYERS
from engine.models.rope import BandScaling, LongScaling, PartScaling, Scaling, YarnScaling

_LEAST, _MOST = 1e-30, 1e30  # of numbers that are none of a count


class HfConfig:
    """config.json of a model called `name`."""

    def __init__(self, values: dict[str, Any], name: str) -> None:
        self._values = values
        self._name = name

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = MOST) -> int:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(f"{key} is missing")
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.error(f"{key} is {str(value)[:40]}, not a whole number from {minimum} to {maximum}")
        return value

    def positive(self, key: str, default: float) -> float:
        """A number above 0 that a float of 32 bits can hold, with its square in one of 64."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST < value < _MOST:
            raise self.error(f"{key} is {str(value)[:40]}, not a positive number")
        return float(value)

    def number(self, key: str, default: float) -> float:
        """A number from 0 up that a float can hold; null stands for the default."""
        value = self._values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
            raise self.error(f"{key} is {str(value)[:40]}, not a number from 0 up")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}, not true or false")
        return value

    def kinds(self, key: str, count: int, known: tuple[str, ...], default: Sequence[str]) -> tuple[str, ...]:
        """What each of `count` layers is: a list of `known` words under `key`, or `default` where there is none."""
        found = self._values.get(key)
        found = list(default) if found is None else found
        if not isinstance(found, list) or len(found) < count or not set(map(str, found)) <= set(known):
            words = sorted(set(map(str, found))) if isinstance(found, list) else found
            raise self.error(
                f"{key} is of {len(found) if isinstance(found, list) else 0} layers {words}; needed: {count} of {known}"
            )
        return tuple(found[:count])

    def num_layers(self) -> int:
        """Checked before anything is made per layer."""
        return self.integer("num_hidden_layers", maximum=MOST_LAYERS)

    def present(self, *keys: str) -> str:
        """The first of some spellings that is there; the first of all where none is, for `integer` to miss it."""
        return next((key for key in keys if key in self._values), keys[0])

    def optional_integer(self, key: str) -> int | None:
        return None if self._values.get(key) is None else self.integer(key)

    def positives(self, key: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        value = self._values.get(key)
        if not isinstance(value, list) or not all(type(item) in (int, float) and _LEAST < item < _MOST for item in value):
            raise self.error(f"{key} is {str(value)[:40]}, not a list of positive numbers")
        return tuple(map(float, value))

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; empty where the key is absent."""
        value = self._values.get(key) or []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.error(f"{key} is {value!r}, not a list of whole numbers")
        return tuple(value)

    def sparse_layers(self) -> tuple[int, ...]:
        """Layers that are mixtures, in the words of the Qwen family: every `decoder_sparse_step`-th but `mlp_only_layers`."""
        step, dense = self.integer("decoder_sparse_step", 1), self.integers("mlp_only_layers")
        return tuple(layer for layer in range(self.num_layers()) if layer not in dense and (layer + 1) % step == 0)

    def expect(self, key: str, *supported: Any) -> None:
        """The key is absent or has one of the supported values."""
        value = self._values.get(key, supported[0])
        if value not in supported:
            raise self.error(f"{key} is {value!r}; supported: {', '.join(map(str, supported))}")

    def unlimited(self, key: str) -> None:
        """A pair of limits is absent or lets every number from 0 up pass, in any of the spellings of infinity in JSON."""
        value = self._values.get(key)
        if value is None:
            return
        low, high = value if isinstance(value, list | tuple) and len(value) == 2 else (None, None)
        high = high.get("__float__") if isinstance(high, dict) else high
        if low != 0 or high not in (float("inf"), "inf", "Infinity"):
            raise self.error(f"{key} is {str(value)[:40]}; supported: from 0 to infinity")

    def rope(self, default: float, stretches: Sequence[str] = ("yarn",)) -> tuple[float, Scaling | None]:
        """Base and stretch of rotary embedding, in the present (`rope_parameters`) and the former spelling."""
        found = self._values.get("rope_parameters") or self._values.get("rope_scaling") or self._values
        if not isinstance(found, dict):
            raise self.error(f"its rotary embedding is described by {found!r}, not by an object")
        rope = HfConfig({key: value for key, value in found.items() if value is not None}, self._name)
        theta = rope.positive("rope_theta", self.positive("rope_theta", default))
        if theta <= 1:
            raise self.error(f"rope_theta is {theta!r}, not above 1")
        kind = rope._values.get("rope_type", rope._values.get("type", "default"))
        if kind in ("default", "mrope"):  # of text alone, all axes of the latter have the same position
            return theta, None
        if kind not in stretches:
            raise self.error(f"rope_type is {kind!r}; supported: default, {', '.join(stretches)}")
        return theta, _STRETCHES[kind](rope)

    def rotary_dim(self, head_dim: int, default: float = 1.0) -> int:
        """How many values of each head are turned: `partial_rotary_factor`, beside the base or in the former place."""
        found = self._values.get("rope_parameters")
        inner = HfConfig(found if isinstance(found, dict) else {}, self._name)
        share = inner.positive("partial_rotary_factor", self.positive("partial_rotary_factor", default))
        if share > 1 or (dim := int(head_dim * share)) % 2 or not dim:
            raise self.error(f"partial_rotary_factor {share} of head_dim {head_dim} is no even number of values")
        return dim

    def divisible(self, key: str, value: int, by_key: str, by: int) -> None:
        if value % by:
            raise self.error(f"{key} {value} does not divide by {by_key} {by}")

    def within(self, key: str, part: str) -> "HfConfig":
        """What an object under `key` has for one part of the model; nothing where it is silent."""
        found = self._values.get(key)
        inner = found.get(part) if isinstance(found, dict) else None
        if inner is not None and not isinstance(inner, dict):
            raise self.error(f"{key}.{part} is {str(inner)[:40]}, not an object")
        return HfConfig(inner or {}, self._name)

    def error(self, reason: str) -> EngineError:
        return EngineError(
            "model.bad_config",
            f"config.json of {self._name}: {reason}.",
            "Get the file again, or another release of this model.",
        )


def _yarn(rope: HfConfig) -> Scaling:
    return YarnScaling(
        factor=rope.positive("factor", 1.0),
        original_context=rope.integer("original_max_position_embeddings"),
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        is_exact=not rope.flag("truncate", True),
        mscale=rope.number("mscale", 0.0),
        mscale_all_dim=rope.number("mscale_all_dim", 0.0),
        given_factor=rope.number("attention_factor", 0.0),
    )


def _long(rope: HfConfig) -> Scaling:
    return LongScaling(
        rope.integer("original_max_position_embeddings"),
        rope.positives("short_factor"),
        rope.positives("long_factor"),
        rope.positive("short_mscale", 1.0),
        rope.positive("long_mscale", 1.0),
    )


def _bands(rope: HfConfig) -> Scaling:
    low, high = rope.positive("low_freq_factor", 1.0), rope.positive("high_freq_factor", 4.0)
    if low >= high:
        raise rope.error(f"low_freq_factor {low:g} is not below high_freq_factor {high:g}")
    return BandScaling(rope.positive("factor", 1.0), rope.integer("original_max_position_embeddings"), low, high)


def _part(rope: HfConfig) -> Scaling:
    return PartScaling(rope.positive("partial_rotary_factor", 1.0), rope.positive("factor", 1.0))


_STRETCHES: dict[str, Callable[[HfConfig], Scaling]] = {
    "yarn": _yarn, "longrope": _long, "llama3": _bands, "proportional": _part,
}  # fmt: skip
