"""The set-up page: the list of steps, the body of the open one, what follows. What is known is the controller's business."""

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from app.core.figures import format_bytes
from app.core.wizard import Step
from app.pages.services import Services
from app.pages.wizard.choose import ChooseBody
from app.pages.wizard.controller import WizardController
from app.pages.wizard.download import DownloadBody
from app.pages.wizard.footer import Footer, FooterView
from app.pages.wizard.look import LookBody
from app.pages.wizard.measure import MeasureBody
from app.pages.wizard.plan import PlanBody
from app.widgets import ask
from app.widgets.error_banner import ErrorBanner
from app.widgets.step_list import StepList, StepView
from app.widgets.token_dialog import TokenDialog
from engine.protocol import DownloadState, Fit

_SIDE_PX, _FOLDED_PX, _FOLD_BELOW = 232, 58, 900


class WizardPage(QWidget):
    page_wanted = Signal(str)
    opening_wanted = Signal(str, str)

    def __init__(
        self, services: Services, parent: QWidget | None = None, *, ask_folder: Callable[[QWidget, str], str] = ask.folder
    ) -> None:
        super().__init__(parent)
        self.setProperty("kind", "page")
        self._services = services
        self._controller = WizardController(services, self)
        self._ask_folder = ask_folder
        self._banner = ErrorBanner(services.theme, self)
        self._list = StepList(services.theme, self)
        self._look = LookBody(self)
        self._measure = MeasureBody(self._controller, self)
        browse = lambda: self.page_wanted.emit("models")  # noqa: E731
        self._choose = ChooseBody(self._controller, services.theme, ask_folder, browse, self)
        self._plan = PlanBody(self._controller, services.theme, self._begin_measuring, self._sign_in, self)
        self._download = DownloadBody(services, self)
        self._stack = QStackedWidget(self)
        for body in (self._look, self._measure, self._choose, self._plan, self._download):
            self._stack.addWidget(body)
        self._footer = Footer(self)
        self._shown = (Step.LOOK, False)  # and whether it measures
        self._is_focus_owed = True  # what the keyboard is for comes with an answer
        self._lay_out()
        self._list.chosen.connect(self._enter)
        self._controller.changed.connect(self._show)
        self._controller.problem.connect(self._banner.show_problem)
        self._controller.arrived.connect(self._arrived)
        self._controller.ready.connect(lambda what: self.opening_wanted.emit("chat", what))
        self._show()

    @property
    def has_rail(self) -> bool:
        """The first time there is nowhere else to go; a click leaves the set-up."""
        return self._services.settings.has_set_up

    def activate(self) -> None:
        """Memory, drives and models may have changed since it was shown last."""
        if self._controller.flow.step is Step.CHAT:
            self._controller.go(Step.PLAN)
        self._controller.look()
        self._controller.ask_plan()
        self._hold_focus()
        self._focus()

    def open_item(self, what: str) -> None:
        """The plan of a model: a repository, a folder, or the name of one that is here."""
        self._controller.choose(what)

    # What the person does

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._controller.flow.step is not Step.LOOK:
            self._controller.back()
        else:
            super().keyPressEvent(event)

    def _enter(self, number: int) -> None:
        if number == Step.CHAT:
            self._controller.open_chat()
        else:
            self._controller.go(Step(number))

    def hideEvent(self, event: QHideEvent) -> None:
        """Another page is shown: the set-up was left. Closing the window leaves it for the next start."""
        super().hideEvent(event)
        if not event.spontaneous() and self.window().isVisible():
            self._controller.leave()

    def _arrived(self) -> None:
        """On to the first chat, unless something else is being done."""
        if self.isVisible():
            self._controller.open_chat()

    def _begin_measuring(self) -> None:
        self._controller.go(Step.MEASURE)
        self._controller.measure()

    def _sign_in(self) -> None:
        """For a repository that is given to some, whose headers the plan needs."""
        choice, token = self._controller.flow.choice, self._services.token
        repo = choice.key if choice is not None else ""
        dialog = TokenDialog(lambda value, keep: token.save(value, keep=keep), self, repo=repo, has_token=bool(token.value))
        if dialog.exec():
            self._controller.ask_plan()

    def _change_folder(self) -> None:
        if folder := self._ask_folder(self, "Where should models go?"):
            self._controller.set_folder(folder)

    # What is shown

    def _show(self) -> None:
        flow = self._controller.flow
        self._list.show_steps(tuple(self._view(step) for step in Step))
        self._look.show_flow(flow, is_looking=self._controller.is_looking)
        self._measure.show_flow(flow)
        self._choose.show_flow()
        self._plan.show_flow(flow)
        self._download.show_flow(flow)
        step = min(flow.step, Step.DOWNLOAD)
        self._stack.setCurrentIndex(step - 1)
        self._footer.show_view(self._foot(Step(step)))
        self._skip.setVisible(not self.has_rail)
        shown = (flow.step, self._controller.is_measuring and flow.step is Step.MEASURE)
        if self._shown != shown:
            self._shown = shown
            self._banner.hide()
            self._hold_focus()
        if self._is_focus_owed and self._stack.hasFocus():
            self._focus()

    def _focus(self) -> None:
        """On to what most people do next, as soon as that is there."""
        is_choosing = self._controller.flow.step is Step.CHOOSE
        wanted = self._choose.first if is_choosing else self._footer.primary
        if self._shown == (Step.MEASURE, True):
            wanted = self._measure.stop
        is_there = wanted.isVisibleTo(self) and (not is_choosing or self._controller.catalogue is not None)
        if is_there:
            self._is_focus_owed = False
            wanted.setFocus(Qt.FocusReason.OtherFocusReason)

    def _hold_focus(self) -> None:
        """Until there is something to do, the keyboard is nowhere in particular; one who moves it on has the say."""
        self._is_focus_owed = True
        self._stack.setFocus(Qt.FocusReason.OtherFocusReason)

    def _view(self, step: Step) -> StepView:
        flow = self._controller.flow
        if step is flow.step:
            state = "now"
        elif flow.is_done(step):
            state = "done"
        else:
            state = "open" if flow.can_enter(step) else "closed"
        return StepView(step.title, flow.detail(step), state)

    def _foot(self, step: Step) -> FooterView:
        controller, flow = self._controller, self._controller.flow
        back = ("Back", controller.back)
        match step:
            case Step.LOOK:
                again = ("Look again", controller.look)
                if flow.has_rates:
                    return FooterView(others=(again,), primary=("Choose a model", lambda: controller.go(Step.CHOOSE)))
                skip = ("Skip measuring", lambda: controller.go(Step.CHOOSE))
                return FooterView(others=(again, skip), primary=("Measure (15 s)", self._begin_measuring))
            case Step.MEASURE:
                on = lambda: controller.go(Step.CHOOSE)  # noqa: E731
                if controller.is_measuring:
                    return FooterView(back, others=(("Go on meanwhile", on),))
                if flow.has_rates:
                    return FooterView(back, others=(("Measure again", controller.measure),), primary=("Choose a model", on))
                return FooterView(back, others=(("Skip", on),), primary=("Measure", controller.measure))
            case Step.CHOOSE:
                can_plan = flow.can_enter(Step.PLAN)
                return FooterView(back, primary=("To its plan", lambda: controller.go(Step.PLAN)) if can_plan else None)
            case Step.PLAN:
                return self._foot_of_plan()
        if flow.is_here:
            return FooterView(back, primary=("Start chatting", controller.open_chat))
        return FooterView(back, others=(("Use Stoker meanwhile", lambda: self.page_wanted.emit("chat")),))

    def _foot_of_plan(self) -> FooterView:
        """Nothing is refused for good: what would not run or not fit can be tried all the same."""
        controller, flow = self._controller, self._controller.flow
        back = ("Back", controller.back)
        if flow.is_here:
            runs = flow.verdict is None or flow.verdict.fit.runs
            word = "Start" if runs else "Try to load it"
            return FooterView(back, "It is here: nothing to download", primary=(word, controller.finish))
        if flow.job is not None and flow.job.state is not DownloadState.FAILED:
            return FooterView(back, "Its download has begun", primary=("To the download", lambda: controller.go(Step.DOWNLOAD)))
        if flow.plan is None and flow.plan_failure is None:
            return FooterView(back)
        folder = ("Another folder…", self._change_folder)
        hint = self._download_hint()
        verdict = flow.verdict
        if verdict is not None and verdict.fit.runs:
            return FooterView(back, hint, primary=("Download and start", controller.finish))
        anyway = ("Download anyway", controller.finish)
        others = (folder, anyway) if verdict is not None and verdict.fit is Fit.NO_SPACE else (anyway,)
        return FooterView(back, hint, others=others, primary=("Choose another", lambda: controller.go(Step.CHOOSE)))

    def _download_hint(self) -> str:
        flow = self._controller.flow
        if flow.plan is None:
            return ""
        size = format_bytes(flow.plan.download_bytes) if flow.plan.download_bytes else "A download"
        plan = flow.best_plan
        free = f"{format_bytes(plan.tiers[-1].room)} free" if plan is not None and plan.tiers else ""
        return " · ".join(filter(None, (f"{size} into {flow.folder or 'the Hugging Face cache'}", free)))

    # Building

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_folded = self.width() < _FOLD_BELOW
        self._side.setFixedWidth(_FOLDED_PX if is_folded else _SIDE_PX)
        self._list.set_folded(is_folded)
        self._name.setVisible(not is_folded)
        self._skip.setText("Skip" if is_folded else "Skip set-up")
        self._side_column.setContentsMargins(*((5, 20, 5, 14) if is_folded else (14, 26, 14, 18)))

    def _lay_out(self) -> None:
        self._side = QFrame(self)
        self._side.setProperty("kind", "rail")
        self._name = QLabel("Set up Stoker", self._side)
        self._name.setProperty("kind", "title-large")
        self._name.setContentsMargins(6, 0, 0, 0)
        self._skip = QPushButton(self._side)
        self._skip.setProperty("kind", "ghost")
        self._skip.setToolTip("To the chat; the set-up stays in the list of pages")
        self._skip.clicked.connect(lambda: self.page_wanted.emit("chat"))
        self._side_column = QVBoxLayout(self._side)
        self._side_column.setSpacing(0)
        self._side_column.addWidget(self._name)
        self._side_column.addSpacing(14)
        self._side_column.addWidget(self._list)
        self._side_column.addStretch(1)
        self._side_column.addWidget(self._skip, 0, Qt.AlignmentFlag.AlignLeft)
        right = QVBoxLayout()
        right.setContentsMargins(0, 0, 0, 0)
        right.setSpacing(0)
        right.addWidget(self._banner)
        right.addWidget(self._stack, 1)
        right.addWidget(self._footer)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        row.addWidget(self._side)
        row.addLayout(right, 1)
