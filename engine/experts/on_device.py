"""When a decoded token's experts are left to the device alone: always where it holds them all, and where it must fetch some,
for as long as whole tokens are no slower so.

The host then waits for nothing between a token's embedding and its logits.
"""

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

import torch

from engine.experts.gathered import Begun, Gathered
from engine.experts.resident import Resident
from engine.experts.vram import VramTier
from engine.kernels.weights import ExpertMath
from engine.tiers.arena import RamArena

# Not measured on any card yet.
_TRIAL_TOKENS = 12  # of either side
_WORSE = 1.02  # times the host's tokens, at which the device's are given up
_OTHER_TIMES = 1.5  # times its first tokens, at which the device is tried anew
_HELD_TOKENS = 2048  # until the host is tried again
_BARRED_TOKENS = 512


Routed = list[tuple[int, torch.Tensor]]  # layers and ids int32 [1, k]


class OnDevice:
    """Over one tier. `whole()` gives RAM's slots of all experts, layer by layer, or None while some are absent.

    Between a `begin` that says so and `end` the layers of a decoded token are computed by calling this. `take_back` before the
    host moves an expert, `look` before a prompt.
    """

    def __init__(
        self,
        tier: VramTier,
        layers: Sequence[int],
        num_experts: int,
        math: ExpertMath,
        ram: RamArena,
        top_k: int,
        whole: Callable[[], list[int] | None],
    ) -> None:
        experts = [(layer, expert) for layer in layers for expert in range(num_experts)]
        self._tier, self._ram, self._whole = tier, ram, whole
        self._resident = Resident(tier, layers, num_experts, math)
        self._gathered = Gathered(tier, experts, layers, math, ram, top_k)
        self._way: Resident | Gathered | None = None  # of the token under way
        self.routed: Routed = []  # of the token under way; recordings keep theirs
        self.epoch = 0  # names the memory that a recording addresses
        self._host: deque[float] = deque(maxlen=_TRIAL_TOKENS)  # seconds of the last tokens of either side
        self._device: deque[float] = deque(maxlen=_TRIAL_TOKENS)
        self._first: float | None = None  # the middle of the device's first tokens, once it was compared with the host's
        self._token = self._barred_until = self._held_until = 0
        self._is_open = False  # the token under way has begun and not ended
        self._is_refused = False  # for good
        self.notice = ""
        """A sentence where the device fetched other bytes than RAM holds."""

    @property
    def is_on(self) -> bool:
        """Of the token under way."""
        return self._way is not None

    @property
    def gathers(self) -> bool:
        """Some of its experts come over the link."""
        return self._way is self._gathered

    def begin(self, *, is_by_link: bool) -> None:
        """A decoded token follows; `is_by_link` says that the link would serve all of its misses."""
        if self._is_open and self._gathered.has_slots:
            self._gathered.misses()  # of a token that was given up: they count for none
        self.routed, self._way, self._is_open = [], None, True
        if self._gathered.has_slots:
            if is_by_link and self._keeps_gathering():
                self._way = self._gathered
                return
            self.take_back()
        if self._resident.is_ready():
            self._way = self._resident
        elif is_by_link and self._start_gathering():
            self._way = self._gathered

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of a token's experts: x fp32 [1, H], ids int32 [1, k], weights fp32 [1, k] to [1, H]."""
        assert self._way is not None, "it has begun"
        self.routed.append((layer, ids))
        return self._way(layer, x, ids, weights)

    def end(self, seconds: float) -> tuple[int, int]:
        """The token is there and took so long; its experts that were on the device, and those that came over the link."""
        self._token, self._is_open = self._token + 1, False
        if self._way is None:
            self._host.append(seconds)
            return 0, 0
        numbers = torch.cat([ids for _, ids in self.routed]).cpu().tolist()
        for (layer, _), experts in zip(self.routed, numbers, strict=True):
            self._tier.policy.touch(layer, experts)
        total, misses = sum(map(len, numbers)), 0
        if self._way is self._gathered:
            self._device.append(seconds)
            misses = self._gathered.misses()
        return total - misses, misses

    def look(self) -> None:
        """The host computes a prompt with what is there."""
        self._way = None
        if self._gathered.has_slots:
            self._gathered.look()

    def take_back(self) -> None:
        """The host may move experts again."""
        self._way = None
        if self._gathered.has_slots:
            self._gathered.end()
            self.epoch += 1
            self._device.clear()
            self._first = None

    def _start_gathering(self) -> bool:
        """Whether the device took its slots."""
        if self._is_refused or self._token < self._barred_until or len(self._host) < _TRIAL_TOKENS:
            return False
        if not self._gathered.is_possible or (slots := self._whole()) is None:
            return False
        if not all(self._tier.accelerator.reads(self._ram.tensor(slot)) for slot in slots):
            self._barred_until = self._token + _BARRED_TOKENS
            return False
        begun = self._gathered.begin(slots)
        self.epoch += 1
        self._held_until = self._token + _HELD_TOKENS
        self._is_refused = begun is not Begun.RUNS
        if begun is Begun.WRONG_BYTES:
            self.notice = "The graphics card fetched wrong bytes by itself, so the processor sends it the experts."
        return begun is Begun.RUNS

    def _keeps_gathering(self) -> bool:
        """False where the host serves the next tokens: as a trial for a while, or because it is faster."""
        if len(self._device) < _TRIAL_TOKENS:
            return True
        now = median(self._device)
        if self._first is None:
            self._first = now
            if now > _WORSE * median(self._host):
                self._barred_until = self._token + _BARRED_TOKENS
                return False
        if now > _OTHER_TIMES * self._first or self._token >= self._held_until:
            self._host.clear()
            return False
        return True
