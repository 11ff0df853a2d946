"""What a banner has to say, as a value that a controller hands to the page."""

from collections.abc import Callable
from dataclasses import dataclass

Action = tuple[str, Callable[[], object]]  # button text, what it does


@dataclass(frozen=True, slots=True)
class Problem:
    sentence: str
    detail: str = ""
    actions: tuple[Action, ...] = ()
