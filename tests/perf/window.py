"""How smooth the window is: a fake engine child writes 200 tokens/s into a chat of 300 messages, some with 50 KB of code.

    QT_QPA_PLATFORM=offscreen python -m tests.perf.window [--json] [--seconds 10] [--rate 200]

Ticks at 60 Hz run beside the real work of the event loop: reading the child's lines, parsing, layout, painting, storing.
The figure is how late each tick came, which is how long a key or a frame would have waited. Two runs: the person stays
at the end; the person scrolls up through the history meanwhile. Target: p99 at most 20 ms.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication

from app.core.chats import AnswerStats, MessageState
from app.widgets.message_view import MessageView
from tests.e2e.screenshots import ANSWER, RICH, Studio

TICK = 1 / 60
TARGET_MS = 20.0


def long_chat(studio: Studio) -> None:
    code = "\n".join(f"def function_{n}(value: int) -> int:\n    return value * {n} + 1  # line {n}" for n in range(720))
    chat = studio.chats.create("A long one")
    for number in range(150):
        studio.chats.add_message(chat.id, "user", f"Question {number}: what would you change first, and why?")
        text = f"Here:\n\n```python\n{code}\n```\n\nThat is all." if number % 10 == 5 else (ANSWER, RICH)[number % 2]
        answer = studio.chats.add_message(chat.id, "assistant", text)
        studio.chats.update_message(
            answer.id, state=MessageState.COMPLETE, stats=AnswerStats(167, 18.4, 0.9, "end", "gpt-oss-20b")
        )


class Ticks:
    """Lateness of a 60 Hz tick, in seconds. A late tick does not make the next ones late: they are due from then on."""

    def __init__(self, each: object = None) -> None:
        self.late: list[float] = []
        self._due = 0.0
        self._timer = QTimer(interval=1, timerType=Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._tick)
        self._each = each

    def _tick(self) -> None:
        now = time.perf_counter()
        if now < self._due:
            return
        self.late.append(now - self._due)
        self._due = max(self._due + TICK, now)
        if callable(self._each):
            self._each()

    def run(self, app: QApplication, seconds: float) -> None:
        self._due = time.perf_counter() + TICK
        self._timer.start()
        QTimer.singleShot(int(seconds * 1000), app.quit)
        app.exec()
        self._timer.stop()


def figures(late: list[float]) -> dict[str, float]:
    ordered = sorted(late)

    def at(share: float) -> float:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    return {"ticks": len(ordered), "p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99), "max_ms": at(1.0)}


def measure(app: QApplication, seconds: float, rate: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        tokens = int(rate * (2 * seconds + 30))
        studio = Studio(app, Path(folder), "dark", "normal", "--rate", str(rate), "--tokens", str(tokens))
        studio.services.settings.max_tokens = tokens
        long_chat(studio)
        studio.start()
        begun = time.perf_counter()
        studio.open_first()
        app.processEvents()
        opened = time.perf_counter() - begun
        studio.run_for(0.5)
        idle = Ticks()
        idle.run(app, min(2.0, seconds))
        generate = studio.engine.generate
        # The fake engine reads 2000 tokens/s: with the whole history it would read for a minute before it writes.
        studio.engine.generate = lambda messages, *more: generate(messages[-1:], *more)  # type: ignore[method-assign]
        studio.send("Go on.")
        studio.run_until(lambda: len(studio.page._messages.last_content) > 500, 20)
        at_end = Ticks()
        at_end.run(app, seconds)
        view = studio.page.findChild(MessageView)
        assert view is not None, "the page has a view"
        bar = view.verticalScrollBar()
        scrolling = Ticks(lambda: bar.setValue(bar.value() - 40))
        scrolling.run(app, seconds)
        written = len(studio.page._messages.last_content)
        studio.page._chat.stop()
        studio.run_for(0.5)
        assert written > seconds * rate, "the answer was written meanwhile"
        result = {
            "open": {"ms": round(opened * 1000, 1), "messages": 301, "written_characters": written},
            "idle": figures(idle.late),
            "at the end": figures(at_end.late),
            "scrolling": figures(scrolling.late),
        }
        studio.close()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=200)
    options = parser.parse_args()
    app = QApplication([])
    gc.collect()
    result = measure(app, options.seconds, options.rate)
    result["load"] = {"average": round(os.getloadavg()[0], 2), "cores": float(os.cpu_count() or 0)}
    if options.json:
        print(json.dumps(result))
    else:
        for name, values in result.items():
            print(f"{name:>12}  " + "  ".join(f"{key} {value:g}" for key, value in values.items()))
    return 0 if result["at the end"]["p99_ms"] <= TARGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
