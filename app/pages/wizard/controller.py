"""Asks the child for what the set-up needs, and keeps the answers as a `Flow`. Knows no widget.

Of plans one is on its way at a time; a wish that comes meanwhile is asked for next, and those between are left out.
"""

from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.core.settings import Settings
from app.core.wizard import NO_WISHES, Choice, Flow, Outcome, Proposal, Step, begin, here_first, proposals
from app.pages.services import Services
from engine.protocol import (
    Failed,
    HubModel,
    HubModels,
    KvType,
    ListCatalogue,
    ListModels,
    MachineFacts,
    MachineRates,
    MeasureMachine,
    ModelEntry,
    Models,
    PlanFor,
    ProbeMachine,
    Progress,
    ReadRates,
    RepoPlan,
)


class WizardController(QObject):
    changed = Signal()
    arrived = Signal()  # the download that the open step shows is complete
    ready = Signal(str)  # what to open on the chat page: the model is here, and everything is written
    problem = Signal(str)

    def __init__(self, services: Services, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._services, self._store, self._queue = services, services.store, services.downloads
        self.flow: Flow = begin(services.settings)
        self.catalogue: tuple[HubModel, ...] | None = None  # None while it is on its way
        self.catalogue_failure: Failed | None = None
        self.here: tuple[ModelEntry, ...] = ()
        self._look_id = self._bench_id = self._plan_id = 0
        self._is_plan_wanted = False
        self._is_begun = False  # the person asked for the download
        self._queue.changed.connect(self._jobs_changed)
        self._queue.progressed.connect(lambda _: self._jobs_changed())
        self._queue.problem.connect(self._queue_failed)
        self._store.models.connect(self._listed)

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        return proposals(self.catalogue or ())

    @property
    def is_looking(self) -> bool:
        return bool(self._look_id)

    @property
    def is_measuring(self) -> bool:
        return bool(self._bench_id)

    # What the person does

    def look(self) -> None:
        """At the computer anew; what was measured before, the catalogue and the library come with it."""
        if not self._look_id:
            self._look_id = self._store.ask(ProbeMachine, done=self._looked, failed=self._not_looked)
        self._read_rates()
        self._store.ask(ListModels)
        self._read_catalogue()
        self.changed.emit()

    def go(self, step: Step) -> None:
        self._set(self.flow.go(step))

    def back(self) -> None:
        self._set(self.flow.back())

    def measure(self) -> None:
        if self._bench_id:
            return
        self._bench_id = self._store.ask(
            MeasureMachine, self.flow.folder, done=self._measured, failed=self._not_measured, step=self._measuring
        )
        self._set(replace(self.flow, measuring=Progress(self._bench_id, "", 0, 0), measure_failure=None))

    def stop_measuring(self) -> None:
        self._store.cancel(self._bench_id)

    def choose(self, key: str) -> None:
        """A repository of the Hub, the whole path of a model's folder, or a model that is here by its name."""
        key = str(Path(key).expanduser()) if key.startswith("~") else key
        entry = next((entry for entry in self.here if key in (entry.path, entry.name, entry.repo)), None)
        is_folder = Path(key).is_absolute()
        if entry is not None:
            choice = Choice(entry.path, entry.name.split("/")[-1], is_here=True)
        else:
            choice = Choice(key, Path(key).name if is_folder else key.split("/")[-1], is_here=is_folder)
        if choice != self.flow.choice:
            self._is_begun = False
        flow = self.flow.choose(choice)
        self._set(flow if choice.is_here else replace(flow, job=self._queue.job(choice.key)))
        self.ask_plan()

    def wish(self, **changes: str | int | KvType | None) -> None:
        self._set(self.flow.wish(**changes))
        self.ask_plan()

    def forget_wishes(self) -> None:
        self._set(replace(self.flow, wishes=NO_WISHES))
        self.ask_plan()

    def set_folder(self, folder: str) -> None:
        """Where downloads would go: another drive, another plan."""
        if complaint := Settings.download_folder.problem(folder):
            self.problem.emit(f"{folder} cannot hold models. {complaint}")
            return
        self._set(replace(self.flow, folder=folder, rates=None))
        self._read_rates()
        self._read_catalogue()
        self.ask_plan()

    def ask_plan(self) -> None:
        choice = self.flow.choice
        if choice is None:
            return
        if self._plan_id:
            self._is_plan_wanted = True
            return
        self._is_plan_wanted = False
        self._plan_id = self._store.ask(
            PlanFor, choice.key, self.flow.folder, self._services.token.value, self.flow.wishes, self._services.engine.pid,
            done=lambda plan: self._planned(choice, plan), failed=lambda failed: self._planned(choice, failed),
        )  # fmt: skip
        self._set(replace(self.flow, is_planning=True))

    def finish(self) -> None:
        """The first time that anything is written: settings, and the download."""
        outcome = self.flow.outcome()
        if outcome is None:
            return
        if not self._write(outcome):
            return
        if self.flow.is_here:
            self._open()
            return
        self._is_begun = True
        self._set(replace(self.flow, job=None))
        self._queue.add(outcome.choice.key, failed=self._not_added)

    def leave(self) -> None:
        """Nothing was chosen: it does not come by itself again."""
        self._services.settings.has_set_up = True

    # What the child says

    def _read_rates(self) -> None:
        self._store.ask(ReadRates, self.flow.folder, done=self._rated)

    def _read_catalogue(self) -> None:
        folder, pid = self.flow.folder, self._services.engine.pid
        self._store.ask(ListCatalogue, folder, pid, done=self._catalogued, failed=self._not_catalogued)

    def _looked(self, facts: MachineFacts) -> None:
        self._look_id = 0
        self._set(replace(self.flow, facts=facts, look_failure=None))

    def _not_looked(self, failed: Failed) -> None:
        self._look_id = 0
        self._set(replace(self.flow, look_failure=failed))

    def _rated(self, rates: MachineRates) -> None:
        self._set(replace(self.flow, rates=rates))

    def _measuring(self, progress: Progress) -> None:
        if self._bench_id:
            self._set(replace(self.flow, measuring=progress))

    def _measured(self, rates: MachineRates) -> None:
        self._bench_id = 0
        self._set(replace(self.flow, rates=rates, measuring=None, measure_failure=None))
        self._read_catalogue()  # now with speeds
        self.ask_plan()

    def _not_measured(self, failed: Failed) -> None:
        self._bench_id = 0
        is_own_doing = failed.code == "store.stopped"
        self._set(replace(self.flow, measuring=None, measure_failure=None if is_own_doing else failed))

    def _catalogued(self, found: HubModels) -> None:
        self.catalogue, self.catalogue_failure = found.models, None
        self.changed.emit()

    def _not_catalogued(self, failed: Failed) -> None:
        self.catalogue, self.catalogue_failure = self.catalogue or (), failed
        self.changed.emit()

    def _listed(self, models: Models) -> None:
        self.here = here_first(models.models)
        self.changed.emit()

    def _planned(self, choice: Choice, answer: RepoPlan | Failed) -> None:
        self._plan_id = 0
        flow = replace(self.flow, is_planning=False)
        if choice == flow.choice:
            if isinstance(answer, RepoPlan):
                flow = replace(flow, plan=answer, plan_failure=None)
            else:
                flow = replace(flow, plan_failure=answer)
        self._set(flow)
        if self._is_plan_wanted or choice != flow.choice:
            self.ask_plan()

    def _jobs_changed(self) -> None:
        choice, was_under_way = self.flow.choice, self.flow.job is not None
        if choice is None or choice.is_here or (job := self._queue.job(choice.key)) is None:
            return
        was_here, flow = self.flow.is_here, replace(self.flow, job=job)
        if self._is_begun and not was_under_way:
            flow = flow.go(Step.DOWNLOAD)
        self._set(flow)
        if flow.is_here and not was_here and flow.step is Step.DOWNLOAD:
            self.arrived.emit()

    def _not_added(self, failed: Failed) -> None:
        self._is_begun = False
        self.problem.emit(f"{failed.text} {failed.hint}".strip())

    def _queue_failed(self, sentence: str) -> None:
        if self.flow.step is Step.DOWNLOAD:
            self.problem.emit(sentence)

    def _write(self, outcome: Outcome) -> bool:
        settings = self._services.settings
        try:
            settings.expert_ram, settings.context = outcome.expert_ram, outcome.context
            settings.prefill_chunk, settings.kv_type = outcome.prefill_chunk, outcome.kv_type
            settings.vram_limit = outcome.vram_limit
            settings.download_folder = outcome.folder
        except ValueError as error:
            self.problem.emit(str(error))
            return False
        settings.has_set_up = True
        return True

    def _open(self) -> None:
        assert self.flow.choice is not None, "something was chosen"
        self._set(replace(self.flow, step=Step.CHAT))
        self.ready.emit(self.flow.choice.key)

    def open_chat(self) -> None:
        """Of a model whose download is complete."""
        if self.flow.is_here:
            self._open()

    def _set(self, flow: Flow) -> None:
        if flow != self.flow:
            self.flow = flow
            self.changed.emit()
