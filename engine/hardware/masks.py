"""Environment variables that hide graphics cards from programs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.hardware.machine import GpuKind

_VARIABLES = {
    GpuKind.NVIDIA: ("CUDA_VISIBLE_DEVICES",),
    GpuKind.AMD: ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    GpuKind.INTEL: ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
}


@dataclass(frozen=True, slots=True)
class Mask:
    """A variable that is set, and what it lets through: everything (None), or these."""

    variable: str
    value: str
    entries: tuple[str, ...]

    @property
    def hides_all(self) -> bool:
        """CUDA reads up to the first entry that names no card."""
        first = self.entries[0] if self.entries else ""
        return not (first.isdigit() or first.lower().startswith(("gpu-", "mig-")))

    def hides(self, index: int, uuid: str, is_counted_as_listed: bool) -> bool | None:
        """None where this cannot be told from outside: CUDA may number unlike cards by speed."""
        if self.hides_all:
            return True
        if not all(entry.isdigit() for entry in self.entries):
            return not any(entry.isdigit() or (uuid and uuid.lower().startswith(entry.lower())) for entry in self.entries)
        return str(index) not in self.entries if is_counted_as_listed else None

    @property
    def sentence(self) -> str:
        """Of a card that it hides."""
        quoted = self.value.strip("\"'")
        if quoted != self.value:
            return f"{self.variable} is {self.value} with its quotation marks, which names no card: take them away."
        shown = f"{self.variable}={self.value}" if self.value else f"the empty {self.variable}"
        return f"It is hidden from programs by {shown}: unset the variable to use it."


def find_mask(kind: GpuKind, environ: Mapping[str, str]) -> Mask | None:
    """The first that is set; None where nothing is hidden."""
    for variable in _VARIABLES.get(kind, ()):
        if variable in environ:
            value = environ[variable].strip()
            return Mask(variable, value, tuple(entry.strip() for entry in value.split(",")))
    return None
