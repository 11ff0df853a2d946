"""Engine state and models → the words that the page shows for them. Pure: no widget, no signal."""

from app.backends.local import EngineState
from app.pages.chat.model_card import CardState, plan_summary
from app.pages.chat.model_choice import ModelChoice

_ENGINE_WORDS = {
    EngineState.STOPPED: "The engine is not running",
    EngineState.STARTING: "The engine is starting",
    EngineState.DEAD: "The engine has ended",
}


_LOOKING = "Looking for models…"
_LONGEST_TITLE = 32  # characters, so that it fits beside the button


def is_looking(state: EngineState, choice: ModelChoice) -> bool:
    """The engine has not told yet which models there are: nothing is known to be missing."""
    return choice.models is None and state is not EngineState.DEAD and not choice.name


def short_title(title: str) -> str:
    """“A title”, not longer than the composer has room for."""
    return f"“{title if len(title) <= _LONGEST_TITLE else title[: _LONGEST_TITLE - 1].rstrip() + '…'}”"


def card_state(state: EngineState, choice: ModelChoice) -> CardState:
    name = choice.title or "No model"
    if state is EngineState.DEAD:
        return CardState(name, _ENGINE_WORDS[state], "bad", "Restart")
    if state in _ENGINE_WORDS:
        return CardState(name, _ENGINE_WORDS[state], "busy" if state is EngineState.STARTING else "off")
    if choice.loading:
        return CardState(name, "Loading", "busy")
    if choice.is_outdated:
        # Not in the middle of an answer, which a reload would cut off.
        action = "Reload" if state is EngineState.READY else ""
        return CardState(name, "The settings have changed since it was loaded", "ok", action)
    if choice.plan is not None:
        return CardState(name, plan_summary(choice.plan), "ok")
    return CardState(name, "No models yet" if choice.models == () else "Choose a model above the chat", "off")


def why_not_send(state: EngineState, choice: ModelChoice, *, answering_elsewhere: str) -> str:
    """A few words for the composer; "" when a message can be sent. `answering_elsewhere` is the title of another chat."""
    if is_looking(state, choice):
        return _LOOKING
    if state in _ENGINE_WORDS:
        return _ENGINE_WORDS[state]
    if choice.loading:
        return "You can send when the model is loaded"
    if choice.plan is None:
        return "There is no model yet" if choice.models == () else "Choose a model first"
    if answering_elsewhere:
        return f"{short_title(answering_elsewhere)} is being answered"
    return ""


def placeholder_words(state: EngineState, choice: ModelChoice) -> dict[str, str]:
    """For `Placeholder.show_text`."""
    if is_looking(state, choice):
        return {"title": _LOOKING}
    if choice.models == ():
        return {
            "title": "No models yet",
            "text": "Get one on the models page (Ctrl+2), or make the small demo model in a terminal:",
            "command": "stoker demo",
            "note": f"Models are kept in {choice.folder}",
            "button": "Look again",
        }
    if state in _ENGINE_WORDS:
        return {"title": _ENGINE_WORDS[state], "text": "" if state is not EngineState.STARTING else "This takes a few seconds."}
    if choice.loading:
        return {"title": choice.loading, "text": "You can write your message already."}
    if choice.plan is not None:
        return {"title": choice.plan.model_name, "text": choice.plan.sentence}
    return {"title": "No model is loaded", "text": "Choose one above." if choice.models else ""}
