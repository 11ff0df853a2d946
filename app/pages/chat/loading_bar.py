"""One line and a thin bar while a model is being loaded. Shows the engine's own figures and guesses none."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QProgressBar, QVBoxLayout, QWidget

from app.core.figures import format_bytes
from engine.protocol import Progress

_STEPS = 1000
_LEAST_BYTES = 1_000_000  # fewer are parts of something


class LoadingBar(QWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._text = QLabel(self)
        self._text.setProperty("kind", "muted")
        self._text.setTextFormat(Qt.TextFormat.PlainText)
        self._bar = QProgressBar(self, textVisible=False)
        self._bar.setAccessibleName("Loading")
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 0, 4, 4)
        column.setSpacing(6)
        column.addWidget(self._text)
        column.addWidget(self._bar)

    def show_progress(self, name: str, progress: Progress | None) -> None:
        self._text.setText(progress_in_words(name, progress))
        is_known = progress is not None and progress.total > 0
        self._bar.setRange(0, _STEPS)
        self._bar.setValue(_STEPS * progress.done // progress.total if is_known and progress is not None else 0)


def progress_in_words(name: str, progress: Progress | None) -> str:
    if progress is None:
        return f"Loading {name}"
    stage = progress.stage[:1].lower() + progress.stage[1:]
    if progress.total <= 0:
        return f"Loading {name}: {stage}"
    if progress.total < _LEAST_BYTES:
        return f"Loading {name}: {stage}, {100 * progress.done // progress.total} %"
    return f"Loading {name}: {stage}, {format_bytes(progress.done)} of {format_bytes(progress.total)}"
