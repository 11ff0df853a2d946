"""Step 2: what this computer gives, measured once."""

from datetime import UTC, datetime

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QProgressBar, QPushButton, QWidget

from app.core.machine_words import rate_rows
from app.core.wizard import Flow
from app.pages.wizard.body import Body, FactRows, card
from app.pages.wizard.controller import WizardController
from app.widgets.text_label import text_label

_WHY = "Predictions rest on what this computer really gives: its drive, its memory, and the kernels for each weight format."


class MeasureBody(Body):
    def __init__(self, controller: WizardController, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.title.setText("Measure")
        self.sentence.setText(_WHY)
        self._status, inside = card(10)
        self._words, self._detail = text_label(kind="name"), text_label(kind="muted")
        self._bar = QProgressBar(self)
        self._bar.setTextVisible(False)
        self._bar.setAccessibleName("Progress of the measurement")
        self.stop = QPushButton("Cancel", self)
        self.stop.clicked.connect(controller.stop_measuring)
        inside.addWidget(self._words)
        inside.addWidget(self._bar)
        inside.addWidget(self._detail)
        inside.addWidget(self.stop, 0, Qt.AlignmentFlag.AlignLeft)
        self._rows = FactRows(self)
        self.content.addWidget(self._status)
        self.content.addWidget(self._rows)

    def show_flow(self, flow: Flow) -> None:
        progress, failed = flow.measuring, flow.measure_failure
        is_running = progress is not None
        self._bar.setVisible(is_running)
        self.stop.setVisible(is_running)
        if progress is not None:
            self._words.setText("Measuring…")
            self._bar.setRange(0, progress.total)
            self._bar.setValue(progress.done)
            stage = f"{progress.stage}. " if progress.stage else ""
            self._detail.setText(f"{stage}About 15 seconds in all; other programs make the figures lower than they are.")
        elif failed is not None:
            self._words.setText(f"Not measured: {failed.text}")
            self._detail.setText(f"{failed.hint} You can go on without: plans then have no speed.".strip())
        elif flow.has_rates and flow.rates is not None:
            self._words.setText(f"Measured {_when(flow.rates.seconds)}")
            self._detail.setText(
                "Kept for this computer. Answers are compared with it, and it is measured again when they disagree."
            )
        else:
            self._words.setText("Not measured yet")
            self._detail.setText("It takes about 15 seconds, and needs a drive with 3 GB free where no model is on it yet.")
        has_rows = flow.has_rates and not is_running and flow.rates is not None
        self._rows.setVisible(has_rows)
        if has_rows and flow.rates is not None:
            self._rows.show_facts(rate_rows(flow.rates))


def _when(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC).astimezone()
    today = datetime.now(UTC).astimezone().date()
    return f"today at {moment:%H:%M}" if moment.date() == today else f"on {moment:%Y-%m-%d}"
