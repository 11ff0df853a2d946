"""Pictures of the window with the real engine and the demo model, for the README.

    python -m tests.e2e.real_screenshot docs/images

Writes chat-light.png and chat-dark.png. The demo must have been made (`stoker demo`); chats go to a folder of their own.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtWidgets import QApplication

from app.backends.local import EngineState, LocalEngine
from app.backends.store import Store
from app.core.paths import app_paths
from app.main import build
from app.main_window import MainWindow
from app.widgets.composer import Composer

QUESTION = "Write a short Python function that returns the larger of two numbers, and explain it in two sentences."


def main() -> int:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    app = QApplication(sys.argv[:1])
    for theme in ("light", "dark"):
        with tempfile.TemporaryDirectory() as folder:
            _shoot(app, Path(folder), theme, out / f"chat-{theme}.png")
    return 0


def _shoot(app: QApplication, folder: Path, theme: str, picture: Path) -> None:
    paths, engine = app_paths(folder), LocalEngine()
    paths.create()
    services = build(paths, engine, Store())
    services.settings.theme = theme
    services.settings.temperature = 0.0
    services.theme.apply(app)
    window = MainWindow(services)
    window.resize(1280, 800)
    window.show()
    engine.start()
    try:
        _wait(app, 60, lambda: engine.state is EngineState.READY)
        composer = window.findChild(Composer)
        assert isinstance(composer, Composer)
        composer.submitted.emit(QUESTION)
        _wait(app, 10, lambda: engine.state is EngineState.GENERATING)
        _wait(app, 120, lambda: engine.state is EngineState.READY)
        _wait(app, 1)
        window.grab().save(str(picture))
    finally:
        engine.stop()
        window.close()
        services.chats.close()


def _wait(app: QApplication, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_over():
        app.processEvents()
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main())
