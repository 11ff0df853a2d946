"""The one lock, requirements.lock: exact versions by section. Reads it; installs nothing."""

import re
from pathlib import Path

LOCK = Path(__file__).with_name("requirements.lock")
_HEADING = re.compile(r"# == (\w+)")


def pins(section: str, lock: Path = LOCK) -> list[str]:
    """The requirements under the heading `# == section`, as pip takes them."""
    found: list[str] = []
    current = ""
    for line in map(str.strip, lock.read_text(encoding="utf-8").splitlines()):
        if heading := _HEADING.match(line):
            current = heading[1]
        elif line and not line.startswith("#") and current == section:
            found.append(line)
    return found
