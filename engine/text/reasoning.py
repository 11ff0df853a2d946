"""What a person may choose of a model's thinking: found by rendering its chat template with one value after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.config import Reasoning
from engine.errors import EngineError
from engine.protocol import ReasoningChoices
from engine.text.renderer import TemplateFault

_SWITCHES = ("enable_thinking", "thinking")
_EFFORTS = ("reasoning_effort", "thinking_effort", "reasoning_strength", "thinking_mode")
_LADDER = ("none", "no_think", "disabled", "minimal", "low", "adaptive", "medium", "high", "xhigh", "max", "enabled")
_USUAL = ("low", "medium", "high")  # of templates that write down whatever they are given
_PLAIN = ("low", "high", "medium")  # of names for the same, those that are kept
_NONSENSE = "qzxw"

Try = Callable[[dict[str, Any]], str]  # variables to a rendering of one question; raises `TemplateFault`


@dataclass(frozen=True, slots=True)
class Switches:
    """Which of the template's variables carry a choice; empty where none does."""

    choices: ReasoningChoices
    switch: str = ""
    effort: str = ""

    def variables(self, wish: Reasoning, model: str) -> dict[str, Any]:
        """For the template. Raises `EngineError` for what it does not take."""
        given: dict[str, Any] = {}
        if wish.is_on is not None:
            if not self.switch:
                text = f"{model} does not let its thinking be switched on or off."
                raise EngineError("reasoning.switch", text, "Leave it to the model.")
            given[self.switch] = wish.is_on
        if wish.effort:
            if wish.effort not in self.choices.efforts:
                takes = ", ".join(self.choices.efforts)
                hint = f"It takes {takes}." if takes else "Leave it to the model."
                raise EngineError("reasoning.effort", f"{model} takes no reasoning effort {wish.effort!r}.", hint)
            given[self.effort] = wish.effort
        return given


def find_switches(variables: Mapping[str, Sequence[str]], render: Try) -> Switches:
    """`variables` as in `Renderer`. Nothing is offered where the template does not even take one question."""
    plain = _attempt(render, {})
    if plain is None:
        return Switches(ReasoningChoices())
    switch, is_on = "", None
    for name in _SWITCHES:
        if name in variables:
            on, off = _attempt(render, {name: True}), _attempt(render, {name: False})
            if on is not None and off is not None and on != off:
                switch, is_on = name, True if on == plain else False if off == plain else None
                break
    base = {switch: True} if switch else {}
    for name in _EFFORTS:
        if name in variables:
            efforts, default = _efforts(name, variables[name], lambda given: render(base | given))
            if efforts:
                return Switches(ReasoningChoices(efforts, default, bool(switch), is_on), switch, name)
    return Switches(ReasoningChoices(can_switch=bool(switch), is_on=is_on), switch)


def _efforts(name: str, texts: Sequence[str], render: Try) -> tuple[tuple[str, ...], str]:
    """Values that are taken and differ, from the least on, and which of them is meant when there is none."""
    plain, nonsense = _attempt(render, {}), _attempt(render, {name: _NONSENSE})
    named = [text for text in texts if text.replace("_", "").isalpha() and text.islower()]
    is_free = nonsense is not None and _NONSENSE in nonsense
    candidates = dict.fromkeys([*(value for value in _PLAIN if is_free or value in named), *named])
    by_text: dict[str, str] = {}
    for value in candidates:
        text = _attempt(render, {name: value})
        if text is not None and (text != nonsense or value in _LADDER):
            by_text.setdefault(text, value)
    if len(by_text) < 2 and set(by_text) <= {plain}:
        return (), ""
    efforts = sorted(by_text.values(), key=lambda value: _LADDER.index(value) if value in _LADDER else len(_LADDER))
    return tuple(efforts), by_text.get(plain or "", "")


def _attempt(render: Try, given: dict[str, Any]) -> str | None:
    try:
        return render(given)
    except TemplateFault:
        return None
