"""What a row of models shows, as a value that a page hands to a widget. Knows no widget and no model."""

from dataclasses import dataclass

from app.core.problem import Action

ITEM_ROLE = 0x0101  # the first that Qt leaves to its users, under which a list of rows gives the value itself


@dataclass(frozen=True, slots=True)
class RowView:
    """`actions`: the first is the button, the others a menu. `chip_color` is the name of a palette's colour."""

    key: str
    title: str
    subtitle: str
    size: str
    chip: str
    chip_color: str
    speed: str = ""  # tokens/s
    tooltip: str = ""
    actions: tuple[Action, ...] = ()
    is_primary: bool = False
