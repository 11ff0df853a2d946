"""Reads typed values out of a published config.json. A missing or impossible key is named to the person."""

from typing import Any

from engine.errors import EngineError
from engine.models.layers import YarnScaling


class HfConfig:
    """config.json of a model called `name`."""

    def __init__(self, values: dict[str, Any], name: str) -> None:
        self._values = values
        self._name = name

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = 2**31) -> int:
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.error(f"{key} is {str(value)[:40]}, not a whole number from {minimum} to {maximum}")
        return value

    def positive(self, key: str, default: float) -> float:
        """A number above 0 that a float can hold."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self.error(f"{key} is {str(value)[:40]}, not a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}, not true or false")
        return value

    def num_layers(self) -> int:
        """Checked before anything is made per layer: no published model comes near the limit."""
        return self.integer("num_hidden_layers", maximum=1000)

    def optional_integer(self, key: str) -> int | None:
        return None if self._values.get(key) is None else self.integer(key)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; empty where the key is absent."""
        value = self._values.get(key) or []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.error(f"{key} is {value!r}, not a list of whole numbers")
        return tuple(value)

    def expect(self, key: str, *supported: Any) -> None:
        """The key is absent or has one of the supported values."""
        value = self._values.get(key, supported[0])
        if value not in supported:
            raise self.error(f"{key} is {value!r}; supported: {', '.join(map(str, supported))}")

    def rope(self, default: float) -> tuple[float, YarnScaling | None]:
        """Base and scaling of rotary embedding, in the present (`rope_parameters`) and the former spelling."""
        found = self._values.get("rope_parameters") or self._values.get("rope_scaling") or {}
        if not isinstance(found, dict):
            raise self.error(f"its rotary embedding is described by {found!r}, not by an object")
        rope = HfConfig(found, self._name)
        theta = rope.positive("rope_theta", self.positive("rope_theta", default))
        if theta <= 1:
            raise self.error(f"rope_theta is {theta!r}, not above 1")
        kind = rope._values.get("rope_type", rope._values.get("type", "default"))
        if kind == "default":
            return theta, None
        if kind != "yarn":
            raise self.error(f"rope_type is {kind!r}; supported: default, yarn")
        return theta, YarnScaling(
            factor=rope.positive("factor", 1.0),
            original_context=rope.integer("original_max_position_embeddings"),
            beta_fast=rope.positive("beta_fast", 32.0),
            beta_slow=rope.positive("beta_slow", 1.0),
            is_exact=not rope.flag("truncate", True),
        )

    def divisible(self, key: str, value: int, by_key: str, by: int) -> None:
        if value % by:
            raise self.error(f"{key} {value} does not divide by {by_key} {by}")

    def error(self, reason: str) -> EngineError:
        return EngineError(
            "model.bad_config",
            f"config.json of {self._name}: {reason}.",
            "Get the file again, or another release of this model.",
        )
