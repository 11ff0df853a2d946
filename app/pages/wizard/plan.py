"""Step 4: where the chosen model would live here, how fast, why so, and what each choice costs."""

from collections.abc import Callable
from dataclasses import replace

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QGridLayout, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.core.download_words import SIGN_IN_CODES
from app.core.plan_words import (
    KV_STOPS,
    basis_words,
    caption,
    chunk_price,
    chunk_value,
    context_price,
    context_value,
    context_words,
    experts_price,
    experts_value,
    first_words,
    gain_rows,
    kv_price,
    kv_value,
    kv_words,
    limit_words,
    measured_words,
    picture,
    speed_words,
    subtitle,
    vram_price,
    vram_room,
    vram_value,
    vram_words,
)
from app.core.verdicts import FIT_COLORS, FIT_WORDS
from app.core.wizard import NO_WISHES, Flow, amount, lengths, wished_bytes
from app.pages.wizard.body import Body, card
from app.pages.wizard.controller import WizardController
from app.widgets.chip import Chip
from app.widgets.price_row import PriceRow
from app.widgets.text_label import text_label
from app.widgets.theme import Theme
from app.widgets.tier_bars import TierBars
from engine.protocol import Failed, KvType, Plan, RepoPlan, Verdict, Wishes, WishLimits

_SIDE_PX = 296
_TWO_COLUMNS, _ANY_PX = 760, 16_777_215
_STOPS = 32
_USUAL_CHUNK, _USUAL_KV = 512, KvType.BF16  # where the sliders stand while there is no plan to say so


class PlanBody(Body):
    def __init__(
        self,
        controller: WizardController,
        theme: Theme,
        measure: Callable[[], object],
        sign_in: Callable[[], object],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._controller = controller
        self._chip = Chip(theme, self)
        self._caution = text_label(kind="warn")
        self._where, self._caption = TierBars(theme, self), QLabel(self, textFormat=Qt.TextFormat.PlainText)
        self._context, self._experts = PriceRow("Context", self), PriceRow("Memory for experts", self)
        self._chunk, self._kv = PriceRow("Prompt at once", self), PriceRow("Keys and values", self)
        self._vram = PriceRow("Graphics memory", self)
        self._context.moved.connect(lambda tokens: controller.wish(context=tokens))
        self._chunk.moved.connect(lambda tokens: controller.wish(prefill_chunk=tokens))
        self._kv.moved.connect(lambda place: controller.wish(kv_type=KV_STOPS[place]))
        self._vram.moved.connect(self._wish_vram)
        self._experts.moved.connect(self._wish_experts)
        self._reset = QPushButton("Reset to recommended", self)
        self._reset.setProperty("kind", "ghost")
        self._reset.clicked.connect(controller.forget_wishes)
        self._refusal = text_label(kind="bad")
        self._notes = text_label(kind="muted")
        self._speed, self._unit = text_label(kind="figure"), QLabel("tok/s", self)
        self._speed.setWordWrap(False)
        self._measured = text_label(kind="name")
        self._first, self._unknown = text_label(kind="muted"), text_label(kind="muted-body")
        self._measure = QPushButton("Measure this computer", self)
        self._measure.clicked.connect(measure)
        self._limit, self._basis = text_label(kind="muted-body"), text_label(kind="muted")
        self._limit_title = text_label(kind="name")
        self._gains = _Gains(self)
        self._failure, failure = card(8)
        self._failure_title, self._failure_text = text_label(kind="name"), text_label(kind="muted-body")
        self._again = QPushButton("Try again", self)
        self._again.clicked.connect(controller.ask_plan)
        self._sign_in = QPushButton("Sign in…", self)
        self._sign_in.clicked.connect(sign_in)
        for widget in (self._failure_title, self._failure_text):
            failure.addWidget(widget)
        buttons = QHBoxLayout()
        buttons.addWidget(self._sign_in)
        buttons.addWidget(self._again)
        buttons.addStretch(1)
        failure.addLayout(buttons)
        self._lay_out()

    def show_flow(self, flow: Flow) -> None:
        name = flow.choice.name if flow.choice is not None else ""
        self.title.setText(f"{name} on this computer")
        plan, verdict = flow.best_plan, flow.verdict
        self._show_failure(flow.plan_failure)
        self._show_head(flow.plan, verdict, flow)
        limits = flow.plan.limits if flow.plan is not None else None
        self._columns_box.setVisible(plan is not None or limits is not None)
        if plan is not None:
            self._show_plan(plan, flow)
        elif limits is not None:
            self._show_refused(limits, verdict, flow.wishes)

    def _show_head(self, found: RepoPlan | None, verdict: Verdict | None, flow: Flow) -> None:
        self._chip.setVisible(verdict is not None)
        if found is None or verdict is None:
            self.sentence.setText("Reading its headers, some hundred KB…" if flow.is_planning else "")
            self.sentence.setVisible(flow.is_planning)
            self._caution.hide()
            return
        self.sentence.show()
        release = found.model.releases[0]
        self._chip.set_words(FIT_WORDS[verdict.fit], FIT_COLORS[verdict.fit])
        is_told = verdict.plan is None and found.limits is not None  # beside the sliders
        words = verdict if not is_told else replace(verdict, text="")
        self.sentence.setText(subtitle(words, release.bytes, is_about=release.is_about))
        self._caution.setText(found.caution)
        self._caution.setVisible(bool(found.caution))

    def _show_failure(self, failed: Failed | None) -> None:
        self._failure.setVisible(failed is not None)
        if failed is not None:
            self._failure_title.setText("Cannot estimate, because its headers cannot be read")
            self._failure_text.setText(f"{failed.text} {failed.hint}".strip())
            self._sign_in.setVisible(failed.code in SIGN_IN_CODES)

    def _show_plan(self, plan: Plan, flow: Flow) -> None:
        assert flow.plan is not None, "there is a plan"
        self._where_card.show()
        self._speed_card.show()
        self._where.set_rows(picture(plan, flow.machine, is_here=flow.is_here))
        self._caption.setText(caption(plan))
        self._show_choices(plan, flow.plan, flow.wishes)
        self._refusal.hide()
        self._notes.setText(" ".join(plan.notes))
        self._notes.setVisible(bool(plan.notes))
        speed = speed_words(plan)
        self._speed.setText(speed or "—")
        self._unit.setVisible(bool(speed))
        self._first.setText(first_words(plan))
        self._first.setVisible(bool(self._first.text()))
        self._measured.setText(measured_words(plan))
        self._measured.setVisible(bool(self._measured.text()))
        self._unknown.setText(plan.unknown)
        self._unknown.setVisible(bool(plan.unknown))
        self._measure.setVisible(bool(plan.unknown) and not flow.has_rates)
        link, why = limit_words(plan)
        self._limit_title.setText(f"Limited by {link}" if link else "")
        self._limit.setText(why)
        self._basis.setText(basis_words(plan))
        for widget in (self._limit_title, self._limit, self._basis, self._line):
            widget.setVisible(bool(link))
        self._gains.show_rows(gain_rows(plan))
        self._gains_card.setVisible(bool(plan.gains))

    def _show_choices(self, plan: Plan, found: RepoPlan, wishes: Wishes) -> None:
        limits = found.limits
        self._reset.setVisible(wishes != NO_WISHES)
        if limits is None:
            return
        stops = lengths(limits.least_context, limits.most_context, plan.context)
        wished = wishes.context or plan.context  # the slider stays where it was put until the plan for it is here
        self._context.show_choice(stops, wished, context_value(plan), context_price(plan))
        stops = lengths(limits.least_prefill_chunk, limits.most_prefill_chunk, plan.prefill_chunk)
        self._chunk.show_choice(stops, wishes.prefill_chunk or plan.prefill_chunk, chunk_value(plan), chunk_price(plan))
        kept = KV_STOPS.index(wishes.kv_type or plan.kv_type)
        self._kv.show_choice(range(len(KV_STOPS)), kept, kv_value(plan), kv_price(plan))
        self._show_vram(limits, wishes.vram_limit, vram_value(plan), vram_price(plan), vram_room(plan))
        stops = even_stops(limits.least_expert_ram, limits.most_expert_ram)
        held = wished_bytes(wishes.expert_ram) or plan.expert_ram_bytes
        self._experts.show_choice(stops, held, experts_value(plan), experts_price(plan))

    def _show_refused(self, limits: WishLimits, verdict: Verdict | None, wishes: Wishes) -> None:
        """What is wished for cannot be met: why, the nearest that can, and the sliders to get there."""
        for part in (self._where_card, self._speed_card, self._gains_card, self._notes):
            part.hide()
        self._reset.setVisible(wishes != NO_WISHES)
        self._refusal.setText(f"{verdict.text} {verdict.hint}".strip() if verdict is not None else "")
        self._refusal.show()
        context = wishes.context or limits.least_context
        stops = lengths(limits.least_context, limits.most_context, context)
        self._context.show_choice(stops, context, context_words(wishes.context), "")
        chunk = wishes.prefill_chunk or _USUAL_CHUNK
        stops = lengths(limits.least_prefill_chunk, limits.most_prefill_chunk, chunk)
        self._chunk.show_choice(stops, chunk, context_words(wishes.prefill_chunk), "")
        kept = KV_STOPS.index(wishes.kv_type or _USUAL_KV)
        self._kv.show_choice(range(len(KV_STOPS)), kept, kv_words(wishes.kv_type), "")
        words = vram_words(wishes.vram_limit, wished_bytes(wishes.vram_limit))
        self._show_vram(limits, wishes.vram_limit, words, "", limits.most_vram)
        stops = even_stops(limits.least_expert_ram, limits.most_expert_ram)
        self._experts.show_choice(stops, limits.most_expert_ram, wishes.expert_ram or "automatic", "")

    def _show_vram(self, limits: WishLimits, wish: str | None, value: str, price: str, otherwise: int) -> None:
        """Nothing where no card can serve. `otherwise` is where the slider stands for a wish in other words than its own."""
        self._vram.setVisible(limits.most_vram > 0)
        if limits.most_vram > 0:
            wished = limits.most_vram if wish is None else wished_bytes(wish)
            stops = (0, *even_stops(limits.least_vram, limits.most_vram))
            self._vram.show_choice(stops, otherwise if wished is None else wished, value, price)

    def _wish_vram(self, nbytes: int) -> None:
        """All the way to the right leaves it to the planner."""
        limits = self._controller.flow.plan.limits if self._controller.flow.plan is not None else None
        is_most = limits is not None and nbytes >= limits.most_vram
        self._controller.wish(vram_limit=None if is_most else amount(nbytes))

    def _wish_experts(self, nbytes: int) -> None:
        """All the way to the right leaves it to the planner, who then takes what is free when the model is loaded."""
        limits = self._controller.flow.plan.limits if self._controller.flow.plan is not None else None
        is_most = limits is not None and nbytes >= limits.most_expert_ram
        self._controller.wish(expert_ram=None if is_most else amount(nbytes))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_wide = self.width() >= _TWO_COLUMNS  # else the speed comes first
        self._columns.setDirection(QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.BottomToTop)
        self._side.setMinimumWidth(_SIDE_PX if is_wide else 0)
        self._side.setMaximumWidth(_SIDE_PX if is_wide else _ANY_PX)

    def _lay_out(self) -> None:
        self._caption.setProperty("kind", "muted")
        self._unit.setProperty("kind", "muted")
        head = QHBoxLayout()
        head.addWidget(self._chip)
        head.addStretch(1)
        self.content.addLayout(head)
        self.content.addWidget(self._caution)
        self.content.addWidget(self._failure)
        self._columns_box = QWidget(self)
        self._columns = QBoxLayout(QBoxLayout.Direction.LeftToRight, self._columns_box)
        self._columns.setContentsMargins(0, 0, 0, 0)
        self._columns.setSpacing(20)
        left = QVBoxLayout()
        left.setSpacing(16)
        left.addWidget(self._where_part())
        left.addWidget(self._choices_part())
        left.addWidget(self._notes)
        left.addStretch(1)
        self._side = QWidget(self)
        right = QVBoxLayout(self._side)
        right.setContentsMargins(0, 0, 0, 0)
        right.setSpacing(16)
        right.addWidget(self._speed_part())
        right.addWidget(self._gains_part())
        right.addStretch(1)
        self._columns.addLayout(left, 1)
        self._columns.addWidget(self._side)
        self.content.addWidget(self._columns_box)

    def _where_part(self) -> QFrame:
        self._where_card, inside = card(14)
        top = QHBoxLayout()
        top.addWidget(_plain("Where it will live", "name"), 1)
        top.addWidget(self._caption)
        inside.addLayout(top)
        inside.addWidget(self._where)
        return self._where_card

    def _choices_part(self) -> QFrame:
        frame, inside = card(6)
        top = QHBoxLayout()
        top.addWidget(_plain("What each choice costs", "name"), 1)
        top.addWidget(self._reset)
        inside.addLayout(top)
        for row in (self._context, self._kv, self._chunk, self._vram, self._experts):
            inside.addWidget(row)
        inside.addWidget(self._refusal)
        return frame

    def _speed_part(self) -> QFrame:
        self._speed_card, inside = card(6)
        inside.addWidget(_plain("Expected speed", "heading"))
        figure = QHBoxLayout()
        figure.setSpacing(8)
        figure.addWidget(self._speed)
        figure.addWidget(self._unit, 0, Qt.AlignmentFlag.AlignBottom)
        figure.addStretch(1)
        self._unit.setContentsMargins(0, 0, 0, 7)
        inside.addLayout(figure)
        for widget in (self._measured, self._first, self._unknown):
            inside.addWidget(widget)
        inside.addWidget(self._measure, 0, Qt.AlignmentFlag.AlignLeft)
        self._line = QFrame(self)
        self._line.setProperty("kind", "divider")
        inside.addSpacing(6)
        inside.addWidget(self._line)
        inside.addSpacing(6)
        for widget in (self._limit_title, self._limit, self._basis):
            inside.addWidget(widget)
        return self._speed_card

    def _gains_part(self) -> QFrame:
        self._gains_card, inside = card(8)
        inside.addWidget(_plain("What would help", "heading"))
        inside.addWidget(self._gains)
        return self._gains_card


class _Gains(QWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(12)
        self._grid.setVerticalSpacing(8)
        self._grid.setColumnStretch(0, 1)
        self._rows: tuple[tuple[str, str], ...] = ()

    def show_rows(self, rows: tuple[tuple[str, str], ...]) -> None:
        if rows == self._rows:
            return
        self._rows = rows
        while (item := self._grid.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.deleteLater()
        for number, (what, speeds) in enumerate(rows):
            self._grid.addWidget(text_label(what, "muted"), number, 0)
            self._grid.addWidget(_plain(speeds, "mono"), number, 1, Qt.AlignmentFlag.AlignRight)


def even_stops(least: int, most: int) -> tuple[int, ...]:
    """From the least that runs to the most that fits."""
    if most <= least:
        return (most,)
    return tuple(least + (most - least) * number // _STOPS for number in range(_STOPS + 1))


def _plain(text: str, kind: str) -> QLabel:
    label = QLabel(text, textFormat=Qt.TextFormat.PlainText)
    label.setProperty("kind", kind)
    return label
