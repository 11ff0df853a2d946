"""Step 3: two or three proposals for this computer, what is here already, or any other model by its name or folder."""

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QWidget

from app.core.library_words import entry_size
from app.core.row import RowView
from app.core.verdicts import FIT_COLORS, FIT_WORDS, params_text, size_text, speed_text
from app.core.wizard import Proposal
from app.item_models.rows import RowsModel
from app.pages.wizard.body import Body, card
from app.pages.wizard.controller import WizardController
from app.widgets.model_row import ModelRow
from app.widgets.row_list import RowList
from app.widgets.text_label import text_label
from app.widgets.theme import Theme
from engine.protocol import ModelEntry, Verdict

_MOST_HERE = 4


class ChooseBody(Body):
    def __init__(
        self,
        controller: WizardController,
        theme: Theme,
        ask_folder: Callable[[QWidget, str], str],
        browse: Callable[[], object],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._controller, self._ask_folder = controller, ask_folder
        self.title.setText("Choose a model")
        self._offers, self._here = RowsModel(self), RowsModel(self)
        self._offer_list = self._list(self._offers, theme)
        self._here_list = self._list(self._here, theme)
        self._nothing = text_label(kind="muted-body")
        self._here_title = text_label("On this computer already", "heading")
        self._field = QLineEdit(self, placeholderText="maker/model on Hugging Face, or a folder")
        self._field.setAccessibleName("Another model, by its name on Hugging Face or its folder")
        self._field.returnPressed.connect(self._go)
        self._go_button = QPushButton("Plan it", self)
        self._go_button.clicked.connect(self._go)
        folder = QPushButton("Folder…", self)
        folder.clicked.connect(self._choose_folder)
        all_models = QPushButton("Browse all models", self)
        all_models.clicked.connect(browse)
        self._complaint = text_label(kind="bad")
        self._complaint.hide()
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self._field, 1)
        for button in (self._go_button, folder, all_models):
            row.addWidget(button)
        other, inside = card(8)
        inside.addWidget(text_label("Another model", "name"))
        inside.addLayout(row)
        inside.addWidget(self._complaint)
        for widget in (self._nothing, self._offer_list, self._here_title, self._here_list, other):
            self.content.addWidget(widget)
        theme.changed.connect(self._offer_list.refill)
        theme.changed.connect(self._here_list.refill)

    @property
    def first(self) -> QWidget:
        """Where the keyboard goes."""
        rows = (*self._offer_list.rows, *self._here_list.rows)
        return rows[0] if rows else self._field

    def show_flow(self) -> None:
        controller = self._controller
        proposals = controller.proposals
        chosen = controller.flow.choice.key if controller.flow.choice is not None else ""
        self.sentence.setText(self._sentence_text(bool(proposals)))
        self._offers.set_items([self._offer(proposal, chosen) for proposal in proposals])
        proposed = {proposal.release.repo.lower() for proposal in proposals}
        others = [entry for entry in controller.here if entry.repo.lower() not in proposed][:_MOST_HERE]
        self._here.set_items([self._entry(entry, chosen) for entry in others])
        self._here_title.setVisible(bool(others))
        self._nothing.setText(self._why_nothing() if not proposals else "")
        self._nothing.setVisible(bool(self._nothing.text()))

    def _sentence_text(self, has_proposals: bool) -> str:
        if not has_proposals:
            return ""
        if self._controller.flow.has_rates:
            return (
                "From the models that people run, for this computer as it is now. Speeds are predicted from what was measured."
            )
        return (
            "From the models that people run, by what fits. Speeds cannot be estimated, because this computer was not measured."
        )

    def _why_nothing(self) -> str:
        controller = self._controller
        if controller.catalogue is None:
            return "Looking at what would run here…"
        if (failed := controller.catalogue_failure) is not None:
            return f"The catalogue cannot be shown: {failed.text} {failed.hint}".strip()
        return (
            "None of the catalogue runs here as the computer is now. Browse all models to see why, or try a smaller one by its "
            "name."
        )

    def _offer(self, proposal: Proposal, chosen: str) -> RowView:
        release = proposal.release
        chip, color, speed, tip = _verdict_words(release.verdict)
        is_here = any(entry.repo.lower() == release.repo.lower() for entry in self._controller.here)
        words = " · ".join(filter(None, (proposal.why, "here already" if is_here else params_text(proposal.model))))
        return RowView(
            release.repo, proposal.model.name, words, size_text(release), chip, color,
            speed, tip, (("Plan", partial(self._controller.choose, release.repo)),), is_primary=release.repo == chosen,
        )  # fmt: skip

    def _entry(self, entry: ModelEntry, chosen: str) -> RowView:
        chip, color, speed, tip = _verdict_words(entry.verdict)
        return RowView(
            entry.path, entry.name, "Here already: nothing to download", entry_size(entry), chip, color, speed, tip,
            (("Plan", partial(self._controller.choose, entry.path)),), is_primary=entry.path == chosen,
        )  # fmt: skip

    def _list(self, model: RowsModel, theme: Theme) -> RowList:
        return RowList(model, lambda parent: ModelRow(theme, self._controller.choose, parent, has_menu=False), self)

    def _go(self) -> None:
        name = self._field.text().strip().removeprefix("https://huggingface.co/").rstrip("/ ")
        is_name = name.count("/") == 1 and all(name.split("/"))
        is_folder = name.startswith(("/", "~", "\\\\")) or name[1:3] in (":\\", ":/")
        self._complaint.setVisible(not (is_name or is_folder))
        if is_name or is_folder:
            self._controller.choose(name)
        else:
            self._complaint.setText("Write maker/model, as on its page, or the whole path of a folder.")
            self._field.setFocus(Qt.FocusReason.OtherFocusReason)

    def _choose_folder(self) -> None:
        if folder := self._ask_folder(self, "Plan a model in a folder"):
            self._controller.choose(folder)


def _verdict_words(verdict: Verdict | None) -> tuple[str, str, str, str]:
    """Chip, its colour, speed, tooltip."""
    if verdict is None:
        return "", "muted", "", ""
    return FIT_WORDS[verdict.fit], FIT_COLORS[verdict.fit], speed_text(verdict), verdict.text
