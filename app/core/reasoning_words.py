"""What a person may choose of the loaded model's thinking, in words. Pure; the choice of a chat is kept by its `key`."""

from dataclasses import dataclass

from engine.protocol import NO_REASONING, Reasoning, ReasoningChoices

_AUTOMATIC, _ON, _OFF = "automatic", "on", "off"


@dataclass(frozen=True, slots=True)
class Choice:
    key: str
    words: str
    reasoning: Reasoning


def choices(offered: ReasoningChoices) -> tuple[Choice, ...]:
    """From the least on; empty where the model takes none."""
    found = []
    if offered.can_switch:
        found.append(Choice(_OFF, "off", Reasoning(is_on=False)))
        if not offered.efforts:
            found.append(Choice(_ON, "on", Reasoning(is_on=True)))
    is_on = True if offered.can_switch else None
    found += [Choice(effort, effort.replace("_", " "), Reasoning(effort, is_on)) for effort in offered.efforts]
    if found and not any(choice.key == _default_key(offered) for choice in found):
        found.insert(0, Choice(_AUTOMATIC, "as the model does", NO_REASONING))
    return tuple(found)


def chosen(offered: ReasoningChoices, key: str) -> Choice | None:
    """What a chat's key means for this model: its default where it takes no such thing, None where it takes nothing."""
    found = {choice.key: choice for choice in choices(offered)}
    return found.get(key) or found.get(_default_key(offered)) or found.get(_AUTOMATIC)


def wish(offered: ReasoningChoices, key: str) -> Reasoning:
    """What is asked of the engine: nothing where a chat has chosen nothing that this model takes."""
    choice = chosen(offered, key)
    return choice.reasoning if choice is not None and choice.key == key else NO_REASONING


def _default_key(offered: ReasoningChoices) -> str:
    if offered.can_switch and offered.is_on is False:
        return _OFF
    if offered.efforts:
        return offered.default_effort
    return {True: _ON, False: _OFF, None: ""}[offered.is_on]
