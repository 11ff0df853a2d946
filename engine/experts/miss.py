"""Which lane serves a miss: gathered over the link into VRAM, or computed in RAM by the CPU. Pure: counts and seconds alone.

Two loops correct what the bench said. Each layer-step's own seconds keep the lanes' costs true, within a few tokens of a
change. Whole tokens then judge the splits that follow from them, since a token knows what no lane sees: trials take turns with
the split in use, the medians decide, and a split that disappoints once it is in use is given up again. All to the GPU and all
to the CPU are splits like the others.
"""

from collections import deque
from dataclasses import asdict, replace
from enum import StrEnum
from math import isfinite
from statistics import median
from typing import Any

from engine.card_rates import Lane, LaneCosts
from engine.experts.lane_costs import Cost, Share, differ

_TILT = 1.5  # by which the other lane's cost is overstated in a tilted split
_TRIAL_TOKENS = 12  # of either side
_HOPELESS = 0.2  # tokens' worth of time lost, at which a trial ends early
_GAIN, _GAIN_SIMPLE = 0.05, 0.01  # that a trial must show: a split between two lanes, a lane alone
_REGRET = 0.008  # of all time, that trials and probes may cost
_LEAST_GAP = 8  # tokens between trials
_BARRED_TOKENS = 512  # for a split that disappointed
_PROBE_GAP = 20  # tokens after which a lane that is not used is tried with one expert of one layer
_PROBE_PATIENCE = 4  # tokens that a probe waits for a layer-step with a single miss
_MOST_PROBE_GAP = 40
_WORTH_A_TRIAL = 1.3  # times the predicted seconds of the split in use
_LONG = 1 << 30  # tokens: a lane that has surprised is due
_OTHER_LANES = 0.3  # change of a cost by which a split that was barred is worth a trial again
_RECOMPUTE = 0.03  # change of a cost that makes the splits be computed again


class Split(StrEnum):
    """How misses are divided. The three in the middle follow the lanes' costs, as they are or with one lane's overstated."""

    GPU = "gpu"
    MORE_GPU = "more gpu"
    BALANCED = "balanced"
    MORE_CPU = "more cpu"
    CPU = "cpu"


_ALONE = (Split.GPU, Split.CPU)


class MissPath:
    """Decides for one model on one computer. `split`, then `saw`, for each layer-step of a decoded token; `end_token` after it.

    `seed` comes from a bench with both lanes running and the model's own expert size, or from `kept`.
    """

    def __init__(self, seed: LaneCosts, split: Split = Split.BALANCED) -> None:
        self._link, self._cpu = Cost(seed.link), Cost(seed.cpu)
        self._share = Share(seed)
        self._lanes = self._tabled = seed
        self.in_use = self._now = split
        self._tables: dict[Split, dict[int, int]] = {}
        self._steps: list[int] = []  # misses of this token's layer-steps
        self._measured = 0.0  # of this token: its layer-steps, as the later lane ended
        self._others: deque[float] = deque(maxlen=_TRIAL_TOKENS)  # what tokens take beside their misses
        self._unused_tokens = {"link": 0, "cpu": 0}
        self._token, self._next_trial, self._probe_gap = 0, _LEAST_GAP // 2, _PROBE_GAP
        self._was_shared = False  # a layer-step of this token, between both lanes
        self._trial: _Trial | None = None
        self._watch: _Watch | None = None
        self._barred = dict.fromkeys(Split, (0, seed))  # until which token, and the lanes of then

    @property
    def lanes(self) -> LaneCosts:
        """Their costs as known now."""
        return self._lanes

    def split(self, misses: int) -> int:
        """How many of a layer-step's misses to gather; the CPU computes the others. None may be right, or all."""
        gathered = self._split_of(self._now, misses)
        if misses and (due := self._probe_due(misses)):
            return min(misses, gathered + 1) if due == "link" else max(0, gathered - 1)
        return gathered

    def gathers_all(self, most: int) -> bool:
        """Whether the split in use has the link serve every miss, of up to so many in a layer-step."""
        return all(self._split_of(self.in_use, misses) == misses for misses in range(1, most + 1))

    def saw(self, gathered: int, computed: int, link_seconds: float, cpu_seconds: float) -> None:
        """How a layer-step went: when either lane had ended, from the step's start; 0 for a lane that was not used."""
        self._steps.append(gathered + computed)
        self._measured += max(link_seconds, cpu_seconds)
        self._learn(gathered, computed, link_seconds, cpu_seconds)
        for name, cost, is_used in (("link", self._link, gathered), ("cpu", self._cpu, computed)):
            if is_used:
                self._unused_tokens[name] = _LONG if cost.was_surprising else 0

    def end_token(self, seconds: float) -> None:
        """All of the token's own seconds."""
        if any(self._steps):
            self._judge(seconds)
        self._steps.clear()
        self._measured = 0.0
        self._token += 1
        for lane in self._unused_tokens:
            self._unused_tokens[lane] += 1
        if not self._was_shared:
            self._share.forget()
            self._renew()
        self._was_shared = False
        if differ(self._lanes, self._tabled, _RECOMPUTE):
            self._tables.clear()
            self._tabled = self._lanes

    def kept(self) -> dict[str, Any]:
        """For the next start, as JSON."""
        return {"split": self.in_use.value, "lanes": asdict(self._lanes)}

    @classmethod
    def restored(cls, kept: Any, seed: LaneCosts) -> "MissPath":
        """From what `kept` gave; from the seed where that is nothing of the kind."""
        try:
            value = kept["lanes"]
            lanes = LaneCosts(Lane(**value["link"]), Lane(**value["cpu"]), value["ram_each"])
            figures = (*asdict(lanes.link).values(), *asdict(lanes.cpu).values(), lanes.ram_each)
            is_usable = all(isfinite(figure) and figure >= 0 for figure in figures) and lanes.link.each > 0 < lanes.cpu.each
            return cls(lanes, Split(kept["split"])) if is_usable else cls(seed)
        except (KeyError, TypeError, ValueError):
            return cls(seed)

    def _split_of(self, split: Split, misses: int) -> int:
        if split in _ALONE:
            return misses if split is Split.GPU else 0
        table = self._tables.setdefault(split, {})
        if misses not in table:
            table[misses] = _tilted(self._tabled, split).best(misses)
        return table[misses]

    def _probe_due(self, misses: int) -> str | None:
        """A lane whose cost may have changed unseen. The probe's own price says how often; a single miss shows it alone."""
        lane = max(self._unused_tokens, key=self._unused_tokens.__getitem__)
        patience = 0 if misses == 1 else _PROBE_PATIENCE
        return lane if self._unused_tokens[lane] >= self._probe_gap + patience else None

    def _learn(self, gathered: int, computed: int, link_seconds: float, cpu_seconds: float) -> None:
        """A lane that was alone shows its cost; both together show what they take from each other."""
        lanes = self._lanes
        if gathered and computed:
            self._was_shared = True
            overlap = max(0.0, min(link_seconds, cpu_seconds) - max(lanes.link.fixed, lanes.cpu.fixed))
            lost = overlap * (1 - 1 / lanes.slowdown)
            is_known = [
                self._link.saw_beside(gathered, link_seconds - lost),
                self._cpu.saw_beside(computed, cpu_seconds - lost),
            ]
            if overlap and all(is_known):
                late = link_seconds - lanes.link.seconds(gathered) + cpu_seconds - lanes.cpu.seconds(computed)
                self._share.saw(late / 2, overlap, lanes)
        elif gathered:
            self._link.saw(gathered, link_seconds)
        elif computed:
            self._cpu.saw(computed, cpu_seconds)
        self._renew()

    def _renew(self) -> None:
        self._lanes = LaneCosts(self._link.lane, self._cpu.lane, self._share.ram_each)

    def _judge(self, seconds: float) -> None:
        """What a token's time says of the split that it ran with."""
        self._others.append(max(0.0, seconds - self._measured))
        frozen = self._trial or self._watch  # tokens are held against one another by one measure
        others = median(self._others) if frozen is None else frozen.others
        expected = others + sum(self._expected(self.in_use, misses) for misses in self._steps)
        self._probe_gap = max(_PROBE_GAP, min(_MOST_PROBE_GAP, round(self._probe_price() / (_REGRET * expected))))
        if expected <= 0:
            return
        if self._trial is not None:
            self._continue_trial(self._trial, seconds / expected)
        elif self._watch is not None and self._watch.saw(seconds / expected):
            self._end_watch(self._watch)
        elif self._token >= self._next_trial and (challenger := self._challenger(others)):
            self._trial = _Trial(challenger, others)
            self._now = challenger

    def _expected(self, split: Split, misses: int) -> float:
        gathered = self._split_of(split, misses)
        return self._lanes.step(gathered, misses - gathered)

    def _probe_price(self) -> float:
        """Seconds that a probe of the unused lane adds."""
        misses = max(1, round(sum(self._steps) / max(1, len(self._steps))))
        gathered = self._split_of(self._now, misses)
        if 0 < gathered < misses:
            return 0.0
        moved = self._lanes.step(gathered - 1, misses - gathered + 1) if gathered else self._lanes.step(1, misses - 1)
        return max(0.0, moved - self._lanes.step(gathered, misses - gathered))

    def _challenger(self, others: float) -> Split | None:
        """The most promising split that would differ. A lane alone has its turn at last, whatever is thought of it."""

        def cost(split: Split) -> float:
            return others + sum(self._expected(split, misses) for misses in self._steps)

        def price(split: Split) -> float:
            return 2 * (cost(split) / own - 1) / _REGRET  # tokens over which one of it is no loss; twice, as there are two

        own = cost(self.in_use)
        different = {split for split in Split if split is not self.in_use and not self._is_same(split)}
        hopeful = [split for split in different if cost(split) < own * _WORTH_A_TRIAL and not self._is_barred(split)]
        simple = [split for split in different & {*_ALONE} if self._token - self._barred[split][0] > price(split)]
        return min({*hopeful, *simple}, key=lambda split: (split not in _ALONE, cost(split)), default=None)

    def _is_same(self, split: Split) -> bool:
        return all(self._split_of(split, misses) == self._split_of(self.in_use, misses) for misses in self._steps)

    def _continue_trial(self, trial: "_Trial", ratio: float) -> None:
        challenging = self._now is trial.challenger
        (trial.challengers if challenging else trial.incumbents).append(ratio)
        gain = trial.gain()
        if trial.is_over:
            self._end_trial(trial, gain)
        else:
            self._now = self.in_use if challenging else trial.challenger

    def _end_trial(self, trial: "_Trial", gain: float) -> None:
        challenger, before = trial.challenger, self.in_use
        regret = max(0.0, -gain) * len(trial.challengers)  # in tokens
        self._next_trial = self._token + _LEAST_GAP
        self._trial = None
        if gain > (_GAIN_SIMPLE if challenger in _ALONE else _GAIN):
            self.in_use = challenger
            self._watch = _Watch(before, median(trial.incumbents), trial.others)
        else:
            self._bar(challenger, max(_BARRED_TOKENS // 4, round(regret / _REGRET * (len(Split) - 1))))
        self._now = self.in_use

    def _bar(self, split: Split, tokens: int) -> None:
        self._barred[split] = self._token + tokens, self._lanes

    def _is_barred(self, split: Split) -> bool:
        """For its time, or until the lanes have become other ones."""
        until, lanes = self._barred[split]
        return self._token < until and not differ(self._lanes, lanes, _OTHER_LANES)

    def _end_watch(self, watch: "_Watch") -> None:
        """Keep the new split, or roll back where it does not hold what its trial promised."""
        self._watch = None
        if watch.disappoints:
            self._bar(self.in_use, _BARRED_TOKENS)
            self.in_use = self._now = watch.before


class _Trial:
    """Tokens with the split in use and with another take turns. Figures are a token's seconds over those expected of it."""

    def __init__(self, challenger: Split, others: float) -> None:
        self.challenger, self.others = challenger, others
        self.challengers: list[float] = []
        self.incumbents: list[float] = []
        self.is_over = False

    def gain(self) -> float:
        """Share of time that the challenger saves; ends the trial where that is clear."""
        if not self.challengers or not self.incumbents:
            return 0.0
        gain = 1 - median(self.challengers) / median(self.incumbents)
        is_hopeless = gain * len(self.challengers) < -_HOPELESS
        self.is_over = is_hopeless or len(self.challengers) + len(self.incumbents) >= 2 * _TRIAL_TOKENS
        return gain


class _Watch:
    """The first tokens with a new split, held against the tokens of the split before."""

    def __init__(self, before: Split, level: float, others: float) -> None:
        self.before, self._level, self.others = before, level, others
        self._ratios: list[float] = []

    def saw(self, ratio: float) -> bool:
        """Whether that was enough."""
        self._ratios.append(ratio)
        return len(self._ratios) >= _TRIAL_TOKENS

    @property
    def disappoints(self) -> bool:
        return median(self._ratios) > self._level * (1 + _GAIN_SIMPLE)


def _tilted(lanes: LaneCosts, split: Split) -> LaneCosts:
    if split is Split.MORE_GPU:
        return replace(lanes, cpu=Lane(lanes.cpu.fixed * _TILT, lanes.cpu.each * _TILT))
    if split is Split.MORE_CPU:
        return replace(lanes, link=Lane(lanes.link.fixed * _TILT, lanes.link.each * _TILT))
    return lanes
