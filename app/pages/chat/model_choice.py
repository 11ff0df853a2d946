"""Which models there are and which one is loaded. Guards against loading again what ended the last session.

Knows no widget and no conversation.
"""

from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.backends.local import EngineState, LocalEngine
from app.core.problem import Action, Problem
from app.core.settings import Settings
from app.core.wizard import wishes_of
from engine.protocol import Failed, Hello, Loaded, ModelEntry, Models, Plan, Progress, ReasoningChoices, Wishes

_WISHES = ("expert_ram", "context", "prefill_chunk", "kv_type", "vram_limit")  # settings that a model is planned for
_OF_SETTINGS = (
    "plan.context",
    "plan.too_much",
    "plan.below_floor",
    "plan.prefill_chunk",
    "plan.vram_limit",
)  # the same model loads with other settings
_OWN_DOING = ("engine.superseded", "engine.restarted", "engine.stopped")  # asked for by the person: no problem to show


class ModelChoice(QObject):
    changed = Signal()
    problem = Signal(object)  # Problem
    settings_wanted = Signal()
    load_begun = Signal()  # what was said about the model before is over
    notice = Signal(str)  # a sentence about the model that has been loaded

    def __init__(self, engine: LocalEngine, settings: Settings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._engine = engine
        self._settings = settings
        self._load_id = 0
        self._wishes = Wishes()  # those of the model that is loaded or on its way
        self._has_chosen = False  # the first load is the window's choice, every later one the person's
        self.models: tuple[ModelEntry, ...] | None = None  # None until the engine has told
        self.folder = ""
        self.loading = ""  # name
        self.progress: Progress | None = None
        self.plan: Plan | None = None  # of the loaded model
        self.reasoning = ReasoningChoices()  # what it takes
        self.name = ""  # of the model that is loaded, on its way or lost with the engine; or its folder
        engine.hello.connect(self._greeted)
        engine.models.connect(self._listed)
        engine.progress.connect(self._progressed)
        engine.loaded.connect(self._loaded)
        engine.failed.connect(self._failed)
        engine.died.connect(self._died)
        engine.state_changed.connect(self._state_changed)
        settings.watch(self._setting_changed)
        if engine.state in (EngineState.IDLE, EngineState.READY):
            self.look_again()

    @property
    def loadable(self) -> tuple[ModelEntry, ...]:
        return tuple(model for model in self.models or () if not model.problem)

    @property
    def title(self) -> str:
        """The name as it is shown."""
        return _title(self.name)

    @property
    def place(self) -> str:
        """Where it lies, as far as that is known; else its name."""
        return next((model.path for model in self.models or () if model.name == self.name), self.name)

    @property
    def can_reload(self) -> bool:
        return bool(self.name) and not self.loading

    @property
    def is_outdated(self) -> bool:
        """The loaded model was planned for other settings than those of now."""
        return self.plan is not None and self._wishes != self._wanted()

    def look_again(self) -> None:
        self._engine.list_models()

    def choose(self, name: str) -> None:
        """Picked from the list: loaded unless it is there, or on its way, as the settings want it."""
        is_there = name == self.name and (bool(self.loading) or self.plan is not None)
        if not is_there or self._wishes != self._wanted():
            self.load(name)

    def open_folder(self, folder: str) -> None:
        """A model that need not be in the list."""
        listed = (model.name for model in self.loadable if Path(model.path) == Path(folder))
        self.choose(next(listed, str(Path(folder))))

    def load(self, name: str) -> None:
        self._has_chosen = True
        self._settings.loading_model = name
        self.name, self.loading, self.progress, self.plan = name, _title(name), None, None
        self.reasoning = ReasoningChoices()
        self._wishes = self._wanted()
        self._load_id = 0  # the load that this one supersedes fails at once and says nothing of this one
        self._load_id = self._engine.load(name, self._wishes)
        self.load_begun.emit()
        self.changed.emit()

    def restart(self) -> None:
        """Another engine with the same model, planned for the settings of now."""
        if self.name:
            self.load(self.name)
        else:
            self._engine.restart()

    def _wanted(self) -> Wishes:
        return wishes_of(self._settings)

    def _setting_changed(self, key: str) -> None:
        if key in _WISHES:
            self.changed.emit()

    # What the engine says

    def _greeted(self, hello: Hello) -> None:
        self.look_again()

    def _listed(self, models: Models) -> None:
        self.models, self.folder = models.models, models.folder
        if not self._has_chosen and (self.loadable or _is_folder(self._settings.model)):
            self._choose()
        self.changed.emit()

    def _choose(self) -> None:
        self._has_chosen = True
        names = [model.name for model in self.loadable]
        suspect = self._settings.loading_model
        if suspect:
            actions = (("Load anyway", lambda: self.load(suspect)),) if suspect in names or _is_folder(suspect) else ()
            sentence = f"The last session ended while loading {_title(suspect)}, so it was not loaded again."
            self.problem.emit(Problem(sentence, "", actions, is_of_engine=True))
        else:
            last = self._settings.model
            self.load(last if last in names or _is_folder(last) else names[0])

    def _progressed(self, progress: Progress) -> None:
        if progress.request_id == self._load_id:
            self.progress = progress
            self.changed.emit()

    def _loaded(self, loaded: Loaded) -> None:
        if loaded.request_id != self._load_id:
            return
        self.loading, self.progress, self.plan, self.reasoning = "", None, loaded.plan, loaded.reasoning
        self._settings.loading_model = ""
        self._settings.model = self.name
        if loaded.notice:
            self.notice.emit(loaded.notice)
        self.changed.emit()

    def _failed(self, failed: Failed) -> None:
        if failed.request_id != self._load_id:
            return
        self.loading, self.progress = "", None
        if failed.code != "engine.died":  # what killed the engine stays marked and is not loaded again by itself
            self._settings.loading_model = ""
            name, self.name = self.name, ""
            if failed.code not in _OWN_DOING:
                sentence = f"{_title(name)} was not loaded. {failed.text} {failed.hint}".strip()
                actions: list[Action] = [("Try again", lambda: self.load(name))]
                if failed.code in _OF_SETTINGS:
                    actions.append(("Open settings", self.settings_wanted.emit))
                self.problem.emit(Problem(sentence, "", tuple(actions), is_of_engine=True))
        self.changed.emit()

    def _died(self, cause: str, detail: str) -> None:
        self.plan, self.reasoning = None, ReasoningChoices()
        self.problem.emit(Problem(cause, detail, (("Restart", self.restart),), is_of_engine=True))
        self.changed.emit()

    def _state_changed(self, state: EngineState) -> None:
        self.changed.emit()


def _is_folder(name: str) -> bool:
    """A model chosen by its folder, which is still there."""
    return Path(name).is_absolute() and Path(name).is_dir()


def _title(name: str) -> str:
    return Path(name).name if Path(name).is_absolute() else name
