"""The set-up as values: where a person is in it, what is known, what may come next. Knows no widget and asks for nothing.

Each step may be skipped and visited again; nothing is kept anywhere before `outcome` is taken.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

from app.core.machine_words import rates_short, short
from app.core.settings import Settings
from app.core.verdicts import best_release
from engine.protocol import (
    DownloadJob,
    DownloadState,
    Failed,
    HubModel,
    KvType,
    Machine,
    MachineFacts,
    MachineRates,
    ModelEntry,
    Plan,
    Progress,
    Release,
    RepoPlan,
    Verdict,
    Wishes,
)

NO_WISHES = Wishes()
_GOOD_PARAMS = 15e9  # below, models answer much worse
_RUNS_WELL = 5.0  # tokens/s, about as fast as people read
_MB = 1_000_000


class Step(IntEnum):
    LOOK = 1
    MEASURE = 2
    CHOOSE = 3
    PLAN = 4
    DOWNLOAD = 5
    CHAT = 6

    @property
    def title(self) -> str:
        return self.name.capitalize()


@dataclass(frozen=True, slots=True)
class Choice:
    """A model of the Hub by its repository, or one that is here by the path of its folder."""

    key: str
    name: str
    is_here: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    why: str  # 'Fastest of the good ones'
    model: HubModel
    release: Release


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the last step writes down: settings, and a download unless the model is here."""

    choice: Choice
    expert_ram: str
    context: int
    prefill_chunk: int
    kv_type: str
    vram_limit: str
    folder: str


@dataclass(frozen=True, slots=True)
class Flow:
    step: Step = Step.LOOK
    facts: MachineFacts | None = None
    look_failure: Failed | None = None
    rates: MachineRates | None = None
    measuring: Progress | None = None  # how far it is, while it runs
    measure_failure: Failed | None = None
    choice: Choice | None = None
    plan: RepoPlan | None = None  # of the choice; the last one while another is on its way
    plan_failure: Failed | None = None
    is_planning: bool = False
    usual: Wishes = NO_WISHES  # those of the settings, with which every choice begins
    wishes: Wishes = NO_WISHES
    folder: str = ""  # for downloads; empty for the Hugging Face cache
    job: DownloadJob | None = None  # of the choice, once it was begun

    @property
    def machine(self) -> Machine | None:
        return self.facts.machine if self.facts is not None else None

    @property
    def has_rates(self) -> bool:
        return self.rates is not None and bool(self.rates.gbps)

    @property
    def verdict(self) -> Verdict | None:
        return self.plan.model.releases[0].verdict if self.plan is not None else None

    @property
    def best_plan(self) -> Plan | None:
        return self.verdict.plan if self.verdict is not None else None

    @property
    def is_here(self) -> bool:
        is_loaded = self.job is not None and self.job.state is DownloadState.DONE
        return self.choice is not None and (self.choice.is_here or is_loaded)

    def can_enter(self, step: Step) -> bool:
        match step:
            case Step.PLAN:
                return self.choice is not None
            case Step.DOWNLOAD:
                return self.job is not None
            case Step.CHAT:
                return self.is_here
        return True

    def is_done(self, step: Step) -> bool:
        match step:
            case Step.LOOK:
                return self.facts is not None
            case Step.MEASURE:
                return self.has_rates
            case Step.CHOOSE:
                return self.choice is not None
            case Step.PLAN:
                return self.step > Step.PLAN and self.choice is not None
            case Step.DOWNLOAD:
                return self.is_here
        return False

    def detail(self, step: Step) -> str:
        """What stands below the title of a step in the list; empty for one that has nothing to tell."""
        if step is Step.LOOK and self.machine is not None:
            return short(self.machine)
        if step is Step.MEASURE and self.measuring is not None:
            return "Under way"
        if step is Step.MEASURE and self.rates is not None and self.rates.gbps:
            return rates_short(self.rates)
        if step is Step.MEASURE and self.step > step:
            return "Skipped"
        if step is Step.CHOOSE and self.choice is not None:
            return self.choice.name
        if step is Step.DOWNLOAD and self.choice is not None and self.choice.is_here:
            return "Already here"
        return ""

    def go(self, step: Step) -> "Flow":
        """There, or nowhere while it cannot be entered."""
        return replace(self, step=step) if self.can_enter(step) else self

    def back(self) -> "Flow":
        earlier = [step for step in Step if step < self.step and self.can_enter(step)]
        return replace(self, step=earlier[-1]) if earlier else self

    def choose(self, choice: Choice) -> "Flow":
        """On to its plan; one chosen before keeps what was wished for it."""
        if self.choice == choice:
            return replace(self, step=Step.PLAN)
        return replace(self, step=Step.PLAN, choice=choice, plan=None, plan_failure=None, job=None, wishes=self.usual)

    def wish(self, **changes: str | int | KvType | None) -> "Flow":
        return replace(self, wishes=replace(self.wishes, **changes))  # type: ignore[arg-type]

    def outcome(self) -> Outcome | None:
        if self.choice is None:
            return None
        wishes = self.wishes
        return Outcome(
            self.choice,
            wishes.expert_ram or "",
            wishes.context or 0,
            wishes.prefill_chunk or 0,
            str(wishes.kv_type or ""),
            wishes.vram_limit or "",
            self.folder,
        )


def wishes_of(settings: Settings) -> Wishes:
    """For every model; what is not set is left to the planner."""
    kv_type = KvType(settings.kv_type) if settings.kv_type else None
    return Wishes(
        settings.expert_ram or None,
        settings.context or None,
        settings.prefill_chunk or None,
        kv_type,
        settings.vram_limit or None,
    )


def begin(settings: Settings) -> Flow:
    wishes = wishes_of(settings)
    return Flow(usual=wishes, wishes=wishes, folder=settings.download_folder)


def lengths(least: int, most: int, now: int) -> tuple[int, ...]:
    """Tokens on offer: powers of two between the limits, the limits, and the present number."""
    powers = (1 << number for number in range(6, 24))
    return tuple(sorted({least, most, now, *(size for size in powers if least <= size <= most)}))


def amount(nbytes: int) -> str:
    """Memory as a wish: no less, since the least that runs must be enough."""
    return f"{-(-nbytes // _MB)}MB" if nbytes else "0"


def wished_bytes(wish: str | None) -> int | None:
    """What `amount` was given, about; None for a wish in other words, and for none."""
    number, unit, rest = (wish or "").partition("MB")
    if wish == "0":
        return 0
    return int(number) * _MB if unit and not rest and number.isdecimal() else None


def proposals(models: tuple[HubModel, ...]) -> tuple[Proposal, ...]:
    """Two or three of those that run here, each for a reason; without measured speeds by where they would live."""
    running = [(model, best_release(model)) for model in models]
    running = [(model, release) for model, release in running if release.verdict is not None and release.verdict.fit.runs]
    if not running:
        return ()
    found: list[Proposal] = []

    def add(why: str, ranked: list[tuple[HubModel, Release]]) -> None:
        taken = {proposal.release.repo for proposal in found}
        best = next(((model, release) for model, release in ranked if release.repo not in taken), None)
        if best is not None:
            found.append(Proposal(why, *best))

    if any(_speed(release) for _, release in running):
        good = [pair for pair in running if pair[0].total_params >= _GOOD_PARAMS] or running
        add("Fastest of the capable ones", sorted(good, key=lambda pair: -_speed(pair[1])))
        well = [pair for pair in running if _low(pair[1]) >= _RUNS_WELL and pair[0].total_params > found[0].model.total_params]
        add("Largest that answers at reading speed", sorted(well, key=lambda pair: -pair[0].total_params))
        large = [pair for pair in running if pair[0].total_params > found[-1].model.total_params]
        add("Most capable, and slow", sorted(large, key=lambda pair: -_speed(pair[1])))
    else:
        fits = [pair for pair in running if not _streams(pair[1])]
        add("Largest that fits into memory", sorted(fits, key=lambda pair: -pair[0].total_params))
        streams = [pair for pair in running if _streams(pair[1])]
        add("Needs the fewest bytes from the drive", sorted(streams, key=lambda pair: pair[0].active_params or pair[1].bytes))
    return tuple(found)


def here_first(models: tuple[ModelEntry, ...]) -> tuple[ModelEntry, ...]:
    """Those that can be loaded, the last used first."""
    return tuple(sorted((model for model in models if not model.problem), key=lambda model: (-model.last_used, model.name)))


def _streams(release: Release) -> bool:
    return release.verdict is not None and release.verdict.fit.value == "disk"


def _speed(release: Release) -> float:
    speeds = release.verdict.tokens_per_second if release.verdict is not None else None
    return speeds[1] if speeds else 0.0


def _low(release: Release) -> float:
    speeds = release.verdict.tokens_per_second if release.verdict is not None else None
    return speeds[0] if speeds else 0.0
