"""Everything that needs a graphics card, in one script without network: `python -m tests.gpu.run_all [--json OUT] [--minutes 8]`.

Each part is guarded: what fails is recorded, and the next one runs. `--simulate` tries the script itself on the CPU.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine.errors import EngineError
from tests.gpu import kernel_parts, model_parts
from tests.gpu.setting import Row, Setting, open_setting

PARTS: dict[str, Callable[[Setting], list[Row]]] = {
    "kernels against float64": kernel_parts.kernels,
    "link": kernel_parts.link,
    "a captured step": kernel_parts.graph,
    "text as on the CPU": model_parts.text,
    "decode": model_parts.decode,
    "decode without the host": model_parts.without_host,
    "whole layers, a baseline": model_parts.baseline,
    "splits of the misses": model_parts.splits,
    "prefill": model_parts.prefill,
}


def main(arguments: list[str]) -> int:
    """0 where every part ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.run_all")
    parser.add_argument("--json", type=Path, help="also write everything there")
    parser.add_argument("--minutes", type=float, default=8.0, help="no part begins later")
    parser.add_argument("--simulate", action="store_true", help="tiny sizes on the CPU: tries this script, measures nothing")
    parser.add_argument("--encoding", default="mxfp4", help="of the experts, as tests.perf.encode names it")
    parser.add_argument("--layers", type=int, default=12, help="of Qwen3-30B-A3B's 48")
    parser.add_argument("--folder", type=Path, help="where made-up models are kept, instead of a folder that is removed")
    parser.add_argument("--only", nargs="*", help="parts whose name has one of these words")
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        try:
            setting, said = open_setting(
                wanted.folder or Path(made), wanted.encoding, wanted.layers, is_simulated=wanted.simulate
            )
        except EngineError as error:
            print(error.text, error.hint, file=sys.stderr)
            return 2
        told = about(setting, said)
        print(json.dumps(told, indent=2))
        results = run_parts(setting, time.monotonic() + 60 * wanted.minutes, wanted.only or [""])
    if wanted.json:
        wanted.json.write_text(json.dumps({"about": told, "rates": setting.rates, "parts": results}, indent=2))
    return 1 if any("failed" in part for part in results.values()) else 0


def about(setting: Setting, said: str) -> Row:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "card": setting.device.accelerator.name, "simulated": setting.is_simulated, "commit": commit.stdout.strip() or "unknown",
        "torch": torch.__version__, "kernels": setting.kernels.isa, "cpu kernels": setting.cpu.isa, "said": said,
        "system": platform.platform(), "model": f"{setting.sizes.shape.name} in {setting.encoding}, {setting.sizes.layers} layers",
    }  # fmt: skip


def run_parts(setting: Setting, deadline: float, words: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, part in PARTS.items():
        if not any(word in name for word in words):
            continue
        if time.monotonic() > deadline:
            results[name] = {"skipped": "no time was left"}
            print(f"\n## {name}: no time was left")
            continue
        begun = time.monotonic()
        try:
            rows = part(setting)
            results[name] = {"seconds": round(time.monotonic() - begun, 1), "rows": rows}
            print(f"\n## {name} ({time.monotonic() - begun:.0f} s)\n\n{table(rows)}", flush=True)
        except Exception as error:  # whatever it is, the other parts are worth running
            results[name] = {"failed": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
            print(f"\n## {name}: failed\n\n{traceback.format_exc()}", flush=True)
    return results


def table(rows: list[Row]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([_shown(row.get(column)) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
