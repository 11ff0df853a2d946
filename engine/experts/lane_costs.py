"""What each lane of a miss costs, kept true from the seconds that layer-steps take: the arithmetic behind `miss.py`. Pure."""

from engine.card_rates import Lane, LaneCosts

_FADE = 1 - 1 / 64  # by each layer-step, of what was seen before: one or two tokens count
_OWN_WEIGHT = 6.0  # in layer-steps, of the cost known so far: it stands for sizes that were not seen of late
_LEAST_EACH = 0.05  # of what an expert costs with its share of the hand-off: the smallest of costs is still one
_OUTLIER = 3.0  # times the expected seconds, beyond which a layer-step counts as that: something else held up the computer
_MOST_SLOWDOWN = 1.75  # 1.5 and 1.7 have been measured where a link and a CPU were alike
_SURPRISE = 1.3  # times as fast as expected: the lane is worth another look at once
_FORGET = 0.99  # by each token without both lanes at work, of what they take from one another
_DRIFT_RATE, _DRIFT = 1 / 16, 0.1  # deviation beside the other lane that is the lane's own, once it goes on


class Cost:
    """What a lane costs: a line over the number of experts by least squares with forgetting, the line so far as a ballast."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.was_surprising = False
        self._sums = [0.0] * 5  # weight, n, n², t, n·t
        self._drift = 0.0  # of late, of what was seen beside the other lane from what was expected

    def saw(self, experts: int, seconds: float) -> None:
        """So many took so long, alone."""
        expected = self.lane.seconds(experts)
        self.was_surprising = seconds < expected / _SURPRISE
        seconds = min(seconds, expected * _OUTLIER)
        fresh = (1.0, experts, experts * experts, seconds, experts * seconds)
        self._sums = [total * _FADE + value for total, value in zip(self._sums, fresh, strict=True)]
        weights, n, nn, t, nt = self._sums
        for size in (1, 8):
            own, known = _OWN_WEIGHT / 2, self.lane.seconds(size)
            weights, n, nn, t, nt = (
                weights + own,
                n + own * size,
                nn + own * size * size,
                t + own * known,
                nt + own * size * known,
            )
        each = max((weights * nt - n * t) / (weights * nn - n * n), _LEAST_EACH * t / n)
        fixed = (t - each * n) / weights
        self.lane = Lane(fixed, each) if fixed > 0 else Lane(0.0, nt / nn)

    def saw_beside(self, experts: int, seconds: float) -> bool:
        """The same beside the other lane, less what that took away. What goes on to be far from expected is the lane's own
        doing; otherwise True, for it says nothing of the lane."""
        expected = self.lane.seconds(experts)
        self._drift += _DRIFT_RATE * (min(seconds / expected, _OUTLIER) - 1 - self._drift)
        if abs(self._drift) <= _DRIFT:
            self.was_surprising = seconds < expected / _SURPRISE
            return True
        self.saw(experts, seconds)
        return False


class Share:
    """What the RAM gives to both lanes together, from the time that each loses beside the other."""

    def __init__(self, seed: LaneCosts) -> None:
        self.ram_each = seed.ram_each
        self._beside = 16 * (seed.link.each + seed.cpu.each)  # seconds of both at once, and those lost by it
        self._lost = self._beside * (1 - 1 / seed.slowdown)

    def saw(self, lost: float, beside: float, lanes: LaneCosts) -> None:
        self._lost, self._beside = self._lost * _FADE + min(lost, beside), self._beside * _FADE + beside
        slowdown = 1 / (1 - min(max(self._lost / self._beside, 0.0), 1 - 1 / _MOST_SLOWDOWN))
        self.ram_each = slowdown / (1 / lanes.link.each + 1 / lanes.cpu.each)

    def forget(self) -> None:
        """A token has passed without a layer-step of both: what is known of them is believed a little less."""
        self.ram_each *= _FORGET


def differ(one: LaneCosts, other: LaneCosts, by: float) -> bool:
    """Whether what four experts cost differs by that share, alone in either lane or in both."""
    pairs = ((one.step(*counts), other.step(*counts)) for counts in ((4, 0), (0, 4), (2, 2)))
    return any(abs(a - b) > by * min(a, b) for a, b in pairs)
