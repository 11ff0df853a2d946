"""The real window over the fake engine, in a process of its own, for tests that kill it: sends one prompt when it can.

    python window_driver.py DATA_DIR RECEIVED_LOG PROMPT

Appends every piece of text to RECEIVED_LOG as it reaches the window: one JSON line with the time and the piece.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["QT_QPA_PLATFORM"] = "offscreen"

from PySide6.QtCore import Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QTextEdit

from app.backends.local import EngineState, LocalEngine
from app.backends.store import Store
from app.core.paths import app_paths
from app.core.settings import Settings
from app.main import run
from app.widgets.composer import Composer
from engine.protocol import Text


def main() -> int:
    data_dir, received, prompt = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    app = QApplication([])
    paths = app_paths(data_dir)
    Settings(paths.settings).has_set_up = True
    fake = str(Path(__file__).with_name("fake_engine.py"))
    engine = LocalEngine(sys.executable, [fake, "normal", "--rate", "100", "--tokens", "20000"])
    store = Store(sys.executable, [str(Path(__file__).with_name("fake_store.py"))])
    log = received.open("a", buffering=1)
    sent: list[str] = []

    def note(text: Text) -> None:
        log.write(json.dumps({"time": time.time(), "pid": engine.pid, "text": text.text}) + "\n")

    def send() -> None:
        if engine.state is EngineState.READY and not sent:
            sent.append(prompt)
            composer = next(widget for widget in app.allWidgets() if isinstance(widget, Composer))
            composer.set_text(prompt)
            edit = composer.findChild(QTextEdit)
            assert isinstance(edit, QTextEdit)
            QTest.keyClick(edit, Qt.Key.Key_Return)

    engine.text.connect(note)
    engine.state_changed.connect(lambda _: QTimer.singleShot(0, send))  # after the page has learnt of it too
    try:
        return run(app, paths, engine, store)
    finally:
        log.close()


if __name__ == "__main__":
    sys.exit(main())
