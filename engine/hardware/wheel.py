"""Which build of torch is installed, from its version file: torch itself is not imported."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

_FIELD = re.compile(r"^(__version__|cuda|hip|xpu)\b[^=]*=\s*'([^']*)'", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Wheel:
    """Versions of what it was built for; all empty in a build for the CPU alone. `version` is empty where torch is absent."""

    version: str = ""
    cuda: str = ""
    hip: str = ""
    xpu: str = ""


def version_file() -> str:
    """The text of torch/version.py; empty where torch is absent."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        return Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return ""


def read_wheel(text: str) -> Wheel:
    found = dict(_FIELD.findall(text))
    return Wheel(found.get("__version__", ""), found.get("cuda", ""), found.get("hip", ""), found.get("xpu", ""))
