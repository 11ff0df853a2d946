"""Whether to guess the next layer's experts: while some are missing at all, and while most guesses prove right. No tensors."""

_CALM_CALLS = 256  # layers served in a row without a miss, after which guessing would find nothing to read
_MEMORY = 64.0  # guesses that the share of right ones is taken over
_LEAST_RIGHT = 0.5  # a wrong guess costs the drive as much as a right one saves
_RETRY_CALLS = 32  # where guesses are distrusted, one call in so many tries again


class Trust:
    """Starts trusting. One object per runner."""

    def __init__(self) -> None:
        self._calm, self._calls, self._right = 0, 0, 1.0

    def saw(self, misses: int) -> None:
        """A layer was served, with so many experts missing or guessed."""
        self._calm = 0 if misses else self._calm + 1

    def judge(self, right: int, guessed: int) -> None:
        """Of `guessed` reads, `right` were asked for."""
        weight = min(1.0, guessed / _MEMORY)
        self._right += (right / guessed - self._right) * weight

    def should_guess(self) -> bool:
        self._calls += 1
        if self._calm >= _CALM_CALLS:
            return False
        return self._right >= _LEAST_RIGHT or self._calls % _RETRY_CALLS == 0
