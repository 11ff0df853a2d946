"""The command line: a thin front end over the engine. An error is one sentence and exit code 1, with --json an object."""

import argparse
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from engine import __version__, store_cli
from engine.chat_cli import add_chat, record
from engine.errors import EngineError
from engine.plan_cli import add_plan
from engine.probe_cli import add_probe
from engine.store.library import models_folder
from engine.store_cli import print_json
from engine.trace_cli import add_trace
from engine.units import MB, format_bytes


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    # Before torch is imported: its threads must sleep at barriers. Spinning, two busy cores decode twenty times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console of another encoding shows a mark, not a traceback
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except EngineError as error:
        if options.json:
            print_json({"error": {"code": error.code, "text": error.text, "hint": error.hint}})
        else:
            hint = f"{error.hint} {_SIGN_IN}" if "sign in" in error.hint else error.hint
            print(f"stoker: {error.text}\n{hint}".rstrip(), file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the last resort; STOKER_DEBUG is for those who mend it
        if os.environ.get("STOKER_DEBUG"):
            raise
        if options.json:
            print_json({"error": {"code": "engine.bug", "text": f"{type(error).__name__}: {error}", "hint": _REPORT}})
        print(f"stoker: an internal error ({type(error).__name__}: {error}).\n{_REPORT}", file=sys.stderr)
        return 1


_SIGN_IN = "To sign in, set HF_TOKEN or run: hf auth login"
_REPORT = "Run it again with STOKER_DEBUG=1 for the details, and please report them."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stoker", description="Runs Mixture-of-Experts models larger than memory. Without a command: opens the window."
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    parser.set_defaults(run=_window, json=False)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")

    add_chat(verbs, _verb, _ProgressBar)
    add_plan(verbs, _verb, _ProgressBar)

    demo = _verb(verbs, "demo", "make the demo model: real weights, cut into experts", _demo)
    demo.add_argument("--experts", type=int, default=8, metavar="N", help="experts per layer (8); 160 MB each")
    demo.add_argument(
        "--recipe", choices=("copies", "slices"), default="copies", help="copies: top-2 of N; slices: all N together"
    )
    demo.add_argument("--overwrite", action="store_true", help="make it again where it exists")

    store_cli.add_verbs(verbs, _verb, _ProgressBar)
    add_trace(verbs, record, _ProgressBar)
    add_probe(verbs, _verb)
    _verb(verbs, "host", "", _host)  # for the window alone: not listed
    return parser


def _verb(verbs: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    shown = {"help": text, "description": f"{text.capitalize()}."} if text else {}
    verb: argparse.ArgumentParser = verbs.add_parser(name, **shown)
    verb.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    verb.set_defaults(run=run)
    return verb


def _window(_: argparse.Namespace) -> int:
    has_display = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"))
    if sys.platform not in ("win32", "darwin") and not has_display:
        raise EngineError(
            "cli.no_display", "There is no display here, so the window cannot open.", "Chat in the terminal: stoker chat"
        )
    command = [sys.executable, "-P", "-m", "app"]  # -P: a folder called app where we stand is not ours
    if os.name != "nt":  # where exec would return to the shell at once
        os.execv(sys.executable, command)
    return subprocess.call(command)


def _host(_: argparse.Namespace) -> int:
    from engine.host import main as serve

    return serve()


def _demo(options: argparse.Namespace) -> int:
    from engine.demo import build

    bar = _ProgressBar("Making the demo model", options.json)
    path = build(models_folder(), options.experts, options.recipe, bar.show, overwrite=options.overwrite)
    bar.end()
    if options.json:
        print_json({"name": path.name, "path": str(path)})
    else:
        print(f"{path.name} is ready in {path}. Try: stoker chat --model {path.name}")
    return 0


class _ProgressBar:
    """One line on a terminal's stderr, rewritten at most ten times a second; silent elsewhere."""

    def __init__(self, title: str, is_quiet: bool) -> None:
        self._title, self._is_on = title, sys.stderr.isatty() and not is_quiet
        self._shown_at = 0.0

    def show(self, done: int, total: int) -> None:
        self.show_stage(self._title, done, total)

    def show_stage(self, stage: str, done: int, total: int) -> None:
        if not self._is_on or (time.monotonic() - self._shown_at < 0.1 and done < total):
            return
        self._shown_at = time.monotonic()
        share = f" {done / total:4.0%}" if total else ""
        amount = f"{share} of {format_bytes(total)}" if total >= MB else share  # fewer are parts of something, no bytes
        print(f"\r\x1b[K{stage}{amount}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
