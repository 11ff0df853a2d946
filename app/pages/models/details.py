"""One model of the Hub: would it run here, in which formats it comes, what its makers say. Shows values only."""

from PySide6.QtCore import Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from app.core.download_words import SIGN_IN_CODES
from app.core.row import RowView
from app.core.verdicts import FIT_COLORS, FIT_WORDS, GATE_WORDS, best_release, gain_text, licence_text, params_text, speed_text
from app.item_models.rows import RowsModel
from app.widgets.card_text import CardText
from app.widgets.chip import Chip
from app.widgets.column import scrolled
from app.widgets.model_row import ModelRow
from app.widgets.row_list import RowList
from app.widgets.text_label import text_label
from app.widgets.theme import Theme
from engine.protocol import Failed, HubModel

_COLUMN_PX = 960


class Details(QWidget):
    left = Signal()
    sign_in_wanted = Signal(str)  # repo

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._repo = ""
        self._back = QPushButton("‹ Models", self)
        self._back.setProperty("kind", "ghost")
        self._back.setToolTip("Back to the list (Escape)")
        self._back.clicked.connect(self.left)
        self._page = QPushButton("Its page on the Hub ↗", self)
        self._page.setProperty("kind", "chip")
        self._page.clicked.connect(lambda: QDesktopServices.openUrl(QUrl(f"https://huggingface.co/{self._repo}")))
        self._title, self._facts = text_label(kind="page-title"), text_label(kind="muted")
        self._chip = Chip(theme, self)
        self._speed = text_label(kind="number")
        self._sentence, self._gain = text_label(), text_label(kind="muted")
        self._sign_in = QPushButton("Sign in…", self)
        self._sign_in.clicked.connect(lambda: self.sign_in_wanted.emit(self._repo))
        self._releases = RowsModel(self)
        self._list = RowList(self._releases, lambda parent: ModelRow(theme, lambda _: None, parent, has_menu=False), self)
        self._about = text_label(kind="muted")
        self._card = CardText(theme, self)
        self._lay_out()
        theme.changed.connect(self._list.refill)

    @property
    def repo(self) -> str:
        return self._repo

    def show_model(
        self, repo: str, model: HubModel, rows: tuple[RowView, ...], card: str | Failed | None, failure: Failed | None
    ) -> None:
        """`failure` is why there is no verdict; `card` is None while it is on its way."""
        if repo != self._repo:
            self._area.verticalScrollBar().setValue(0)
        self._repo = repo
        self._title.setText(model.name)
        facts = (params_text(model), licence_text(model.licence), GATE_WORDS[model.gate], model.architecture)
        self._facts.setText(" · ".join(filter(None, facts)))
        self._show_verdict(model, failure)
        self._releases.set_items(rows)
        self._about.setText(_about_text(card))
        self._about.setVisible(not isinstance(card, str) or not card)
        self._card.set_text(card if isinstance(card, str) else "")

    def focus(self) -> None:
        self._back.setFocus(Qt.FocusReason.OtherFocusReason)

    def _show_verdict(self, model: HubModel, failure: Failed | None) -> None:
        verdict = best_release(model).verdict
        if verdict is None:
            self._chip.set_words("" if failure is None else "Not known", "muted")
            self._sentence.setText("Looking at its headers…" if failure is None else f"{failure.text} {failure.hint}".strip())
        else:
            self._chip.set_words(FIT_WORDS[verdict.fit], FIT_COLORS[verdict.fit])
            self._sentence.setText(verdict.text)
        speed = speed_text(verdict)
        self._speed.setText(f"{speed} tokens/s" if speed else "")
        self._gain.setText(self._gain_words(model))
        self._gain.setVisible(bool(self._gain.text()))
        self._chip.setVisible(verdict is not None or failure is not None)
        self._sign_in.setVisible(failure is not None and failure.code in SIGN_IN_CODES)

    def _gain_words(self, model: HubModel) -> str:
        verdict = best_release(model).verdict
        if verdict is None or not verdict.fit.runs:
            return ""
        if verdict.tokens_per_second is None:
            why = verdict.plan.unknown if verdict.plan is not None else ""
            return f"{why} The set-up page (Ctrl+4) measures it.".strip() if why else ""
        return gain_text(verdict)

    def _lay_out(self) -> None:
        top = QHBoxLayout()
        top.addWidget(self._back)
        top.addStretch(1)
        top.addWidget(self._page)
        verdict = QFrame(self)
        verdict.setProperty("kind", "card")
        inside = QVBoxLayout(verdict)
        inside.setContentsMargins(18, 14, 18, 14)
        inside.setSpacing(8)
        line = QHBoxLayout()
        line.setSpacing(12)
        line.addWidget(self._chip)
        line.addWidget(self._speed, 1)
        inside.addLayout(line)
        for widget in (self._sentence, self._gain):
            inside.addWidget(widget)
        inside.addWidget(self._sign_in, 0, Qt.AlignmentFlag.AlignLeft)
        column = QVBoxLayout()
        column.setContentsMargins(32, 16, 32, 24)
        column.setSpacing(8)
        column.addLayout(top)
        column.addWidget(self._title)
        column.addWidget(self._facts)
        column.addSpacing(8)
        column.addWidget(verdict)
        column.addSpacing(12)
        column.addWidget(text_label("Formats", "heading"))
        column.addWidget(self._list)
        column.addSpacing(12)
        column.addWidget(text_label("What its makers say", "heading"))
        column.addWidget(self._about)
        column.addWidget(self._card)
        column.addStretch(1)
        self._area = scrolled(column, _COLUMN_PX, self)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self._area)


def _about_text(card: str | Failed | None) -> str:
    if card is None:
        return "Fetching its card…"
    return f"{card.text} {card.hint}".strip() if isinstance(card, Failed) else "There is no card."
