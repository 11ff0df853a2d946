"""What a banner has to say, as a value that a controller hands to a page. Knows no widget, no cause and no remedy."""

from collections.abc import Callable
from dataclasses import dataclass

Action = tuple[str, Callable[[], object]]  # button text, what it does


@dataclass(frozen=True, slots=True)
class Problem:
    """One sentence; more on demand; what can be done, the best first."""

    sentence: str
    detail: str = ""
    actions: tuple[Action, ...] = ()
    is_of_engine: bool = False  # loading a model again answers it
