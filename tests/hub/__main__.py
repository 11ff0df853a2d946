"""The fake hub as a process of its own: `python -m tests.hub FILE SHA256` serves FILE as maker/Large.

Prints its address; for every line on stdin, the bytes it has sent so far.
"""

import sys
from pathlib import Path

from tests.hub.server import FakeHub

REPO, FILE = "maker/Large", "model.safetensors"


def main() -> None:
    file, digest = sys.argv[1:]
    with FakeHub() as hub:
        repo = hub.add(REPO, {"config.json": b"{}", FILE: Path(file)}, sha256={FILE: digest})
        print(f"{hub.endpoint}/{REPO}/resolve/{repo.commit}/{FILE}", flush=True)
        for _ in sys.stdin:
            print(hub.sent_bytes, flush=True)


if __name__ == "__main__":
    main()
