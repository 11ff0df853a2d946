"""Step 1: what this computer is, and what that means for Stoker."""

from PySide6.QtWidgets import QWidget

from app.core.machine_words import facts, graphics_words
from app.core.wizard import Flow
from app.pages.wizard.body import Body, FactRows, card
from app.widgets.text_label import text_label


class LookBody(Body):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.title.setText("This computer")
        self._rows = FactRows(self)
        self._note, inside = card(4)
        self._note_title, self._note_text = text_label(kind="name"), text_label(kind="muted-body")
        inside.addWidget(self._note_title)
        inside.addWidget(self._note_text)
        self.content.addWidget(self._note)
        self.content.addWidget(self._rows)

    def show_flow(self, flow: Flow, *, is_looking: bool) -> None:
        note_title = note = ""
        if flow.facts is not None:
            self.sentence.setText("What Stoker found here. It stays on this computer.")
            self._rows.show_facts(facts(flow.facts.machine))
            note = graphics_words(flow.facts.machine)
            note_title = "Without a graphics card"
        elif flow.look_failure is not None:
            failed = flow.look_failure
            self.sentence.setText("The computer could not be looked at.")
            note_title, note = f"{failed.text} {failed.hint}".strip(), "You can go on: a plan then says what it does not know."
        else:
            self.sentence.setText("Looking at graphics, memory, processor and drives…" if is_looking else "")
        self._rows.setVisible(flow.facts is not None)
        self._note_title.setText(note_title)
        self._note_text.setText(note)
        self._note.setVisible(bool(note))
