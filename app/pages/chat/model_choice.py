"""Which models there are and which one is loaded. Guards against loading again what ended the last session.

Knows no widget and no conversation.
"""

from PySide6.QtCore import QObject, Signal

from app.backends.local import EngineState, LocalEngine
from app.core.settings import Settings
from app.pages.chat.problem import Problem
from engine.protocol import Failed, Hello, Loaded, ModelEntry, Models, Plan, Progress, Wishes

_OWN_DOING = ("engine.superseded", "engine.restarted", "engine.stopped")  # asked for by the person: no problem to show


class ModelChoice(QObject):
    changed = Signal()
    problem = Signal(object)  # Problem

    def __init__(self, engine: LocalEngine, settings: Settings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._engine = engine
        self._settings = settings
        self._load_id = 0
        self._has_chosen = False  # the first load is the window's choice, every later one the person's
        self.models: tuple[ModelEntry, ...] | None = None  # None until the engine has told
        self.folder = ""
        self.loading = ""  # name
        self.progress: Progress | None = None
        self.plan: Plan | None = None  # of the loaded model
        self.name = ""  # of the model that is loaded, on its way or lost with the engine
        engine.hello.connect(self._greeted)
        engine.models.connect(self._listed)
        engine.progress.connect(self._progressed)
        engine.loaded.connect(self._loaded)
        engine.failed.connect(self._failed)
        engine.died.connect(self._died)
        engine.state_changed.connect(self._state_changed)
        if engine.state in (EngineState.IDLE, EngineState.READY):
            self.look_again()

    @property
    def loadable(self) -> tuple[ModelEntry, ...]:
        return tuple(model for model in self.models or () if not model.problem)

    def look_again(self) -> None:
        self._engine.list_models()

    def load(self, name: str) -> None:
        self._has_chosen = True
        self._settings.loading_model = name
        self.name, self.loading, self.progress, self.plan = name, name, None, None
        wishes = Wishes(expert_ram=self._settings.expert_ram or None, context=self._settings.context or None)
        self._load_id = self._engine.load(name, wishes)
        self.changed.emit()

    def restart(self) -> None:
        """Another engine with the same model."""
        if self.name:
            self.load(self.name)
        else:
            self._engine.restart()

    # What the engine says

    def _greeted(self, hello: Hello) -> None:
        self.look_again()

    def _listed(self, models: Models) -> None:
        self.models, self.folder = models.models, models.folder
        if not self._has_chosen and self.loadable:
            self._choose()
        self.changed.emit()

    def _choose(self) -> None:
        self._has_chosen = True
        names = [model.name for model in self.loadable]
        suspect = self._settings.loading_model
        if suspect:
            actions = (("Load anyway", lambda: self.load(suspect)),) if suspect in names else ()
            sentence = f"The last session ended while loading {suspect}, so it was not loaded again."
            self.problem.emit(Problem(sentence, "", actions))
        else:
            self.load(self._settings.model if self._settings.model in names else names[0])

    def _progressed(self, progress: Progress) -> None:
        if progress.request_id == self._load_id:
            self.progress = progress
            self.changed.emit()

    def _loaded(self, loaded: Loaded) -> None:
        if loaded.request_id != self._load_id:
            return
        self.loading, self.progress, self.plan = "", None, loaded.plan
        self._settings.loading_model = ""
        self._settings.model = self.name
        self.changed.emit()

    def _failed(self, failed: Failed) -> None:
        if failed.request_id != self._load_id:
            return
        self.loading, self.progress = "", None
        if failed.code != "engine.died":  # what killed the engine stays marked and is not loaded again by itself
            self._settings.loading_model = ""
            name, self.name = self.name, ""
            if failed.code not in _OWN_DOING:
                sentence = f"{name} was not loaded. {failed.text} {failed.hint}".strip()
                self.problem.emit(Problem(sentence, "", (("Try again", lambda: self.load(name)),)))
        self.changed.emit()

    def _died(self, cause: str, detail: str) -> None:
        self.plan = None
        self.problem.emit(Problem(cause, detail, (("Restart", self.restart),)))
        self.changed.emit()

    def _state_changed(self, state: EngineState) -> None:
        self.changed.emit()
