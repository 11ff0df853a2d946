"""Builds everything once, passes it down, and takes it apart again. No other module knows how the parts are joined."""

import argparse
import logging
import sqlite3
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication, QMessageBox

from app.backends.local import LocalEngine
from app.backends.queue import DownloadQueue
from app.backends.quit_signals import QuitSignals
from app.backends.single_instance import DataFolderError, SingleInstance
from app.backends.store import Store
from app.backends.token import TokenStore
from app.core.chats import ChatStore
from app.core.database import DatabaseTooNewError
from app.core.logs import log_files
from app.core.paths import Paths, app_paths
from app.core.settings import Settings
from app.main_window import MainWindow
from app.pages.services import Services
from app.widgets.notifier import Notifier
from app.widgets.theme import Theme
from engine.protocol import DownloadJob, DownloadState

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stoker-window", description="Chat with models larger than your memory.")
    parser.add_argument("--data-dir", type=Path, help="keep chats, settings and logs in this folder")
    options = parser.parse_args(argv)
    app = QApplication(sys.argv[:1])
    try:
        paths = app_paths(options.data_dir)
        with log_files(paths):
            return _logged(app, paths)
    except OSError as error:
        return _give_up(f"Stoker cannot write to its data folder: {error}.")


def _logged(app: QApplication, paths: Paths) -> int:
    """A window started from an icon has no terminal to print a traceback to."""
    try:
        return run(app, paths, LocalEngine(), Store())
    except Exception:
        _log.exception("not started")
        return _give_up(f"Stoker could not start. The reason is in {paths.log}.")


def run(app: QApplication, paths: Paths, engine: LocalEngine, store: Store) -> int:
    """From the first window to the last; the exit code. `engine` and `store` have not been started."""
    app.setApplicationName("Stoker")
    app.setDesktopFileName("stoker")
    instance = SingleInstance(paths)
    try:
        is_first = instance.acquire()
    except DataFolderError as error:
        return _give_up(str(error))
    if not is_first:
        if instance.ask_to_raise():
            print("Stoker is already open; its window has been brought to the front.")  # noqa: T201 – for a terminal
            return 0
        return _give_up("Stoker is already running with this data folder, but does not answer. End it and try again.")
    try:
        services = build(paths, engine, store)
    except (DatabaseTooNewError, sqlite3.Error) as error:
        _log.exception("chats cannot be opened")
        instance.release()
        return _give_up(f"The chats cannot be opened: {error}. They are left as they are in {paths.chats}.")
    services.theme.apply(app)
    app.setWindowIcon(services.theme.icon("flame", services.theme.palette.accent, 64))
    is_new = not (services.settings.has_set_up or services.settings.model)
    window = MainWindow(services, first="wizard" if is_new else "")
    quit_signals = QuitSignals()
    quit_signals.wanted.connect(app.quit)
    instance.raise_wanted.connect(window.come_to_front)
    with _problems_shown(window):
        window.show()
        window.activateWindow()  # where no window manager does it, no shortcut would work before the first click
        if notice := " ".join(filter(None, [services.chats.notice, services.settings.notice])):
            window.show_problem(notice)
        notifier = Notifier(window, app.windowIcon())
        services.downloads.ended.connect(lambda job: _tell_end(notifier, job))
        if is_new:  # a model that loads would disturb the measurement, and may not be the one that is chosen
            services.settings.watch(lambda key: engine.start() if key == "has_set_up" else None)
        else:
            QTimer.singleShot(0, engine.start)
        QTimer.singleShot(0, services.downloads.begin)
        try:
            return app.exec()
        finally:
            engine.stop()
            store.stop()
            services.chats.close()
            quit_signals.release()
            instance.release()


def build(paths: Paths, engine: LocalEngine, store: Store) -> Services:
    """Raises `DatabaseTooNewError` or sqlite3.Error when the chats cannot be opened."""
    settings = Settings(paths.settings)
    chats = ChatStore(paths.chats)
    if count := chats.interrupt_streaming():
        _log.warning("%d answers were cut off by the end of the last session", count)
    theme = Theme()
    theme.set_mode(settings.theme)
    settings.watch(lambda key: theme.set_mode(settings.theme) if key == "theme" else None)
    token = TokenStore(paths.token)
    return Services(chats, settings, engine, theme, paths, store, DownloadQueue(store, settings, token), token)


def _tell_end(notifier: Notifier, job: DownloadJob) -> None:
    name = job.repo.split("/")[-1]
    if job.state is DownloadState.DONE:
        notifier.tell(f"{name} is ready", "It has been downloaded and compared with its checksums.")
    else:
        notifier.tell(f"{name} is not complete", f"{job.text} {job.hint}".strip())


@contextmanager
def _problems_shown(window: MainWindow) -> Iterator[None]:
    """A bug in a slot is logged and shown; the window lives on."""

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        _log.critical("uncaught: %s", text)
        if threading.current_thread() is threading.main_thread():
            window.show_problem("Something in Stoker went wrong. The details and the log say what.", text)

    def report_thread(args: threading.ExceptHookArgs) -> None:
        _log.critical("uncaught in %s", args.thread, exc_info=args.exc_value)

    hooks = sys.excepthook, threading.excepthook
    sys.excepthook, threading.excepthook = report, report_thread
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook = hooks


def _give_up(sentence: str) -> int:
    _log.error("%s", sentence)
    box = QMessageBox(QMessageBox.Icon.Critical, "Stoker", sentence)
    box.setTextFormat(Qt.TextFormat.PlainText)  # it names paths
    box.exec()
    return 1
