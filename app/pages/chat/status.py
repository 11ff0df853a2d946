"""Engine state and models → the words that the page shows for them. Pure: no widget, no signal."""

from app.backends.local import EngineState
from app.pages.chat.model_card import plan_summary
from app.pages.chat.model_choice import ModelChoice

_ENGINE_WORDS = {
    EngineState.STOPPED: "The engine is not running",
    EngineState.STARTING: "The engine is starting",
    EngineState.DEAD: "The engine has ended",
}


def card_state(state: EngineState, choice: ModelChoice) -> tuple[str, str, str]:
    """Name, detail and "ok", "busy", "bad" or "off", for the model card."""
    name = choice.name or "No model"
    if state in _ENGINE_WORDS:
        return name, _ENGINE_WORDS[state], {EngineState.DEAD: "bad", EngineState.STARTING: "busy"}.get(state, "off")
    if choice.loading:
        return name, "Loading", "busy"
    if choice.plan is not None:
        return name, plan_summary(choice.plan), "ok"
    return name, "No models yet" if choice.models == () else "Choose a model above the chat", "off"


def why_not_send(state: EngineState, choice: ModelChoice, *, is_answering_elsewhere: bool) -> str:
    """A few words for the composer; "" when a message can be sent."""
    if state in _ENGINE_WORDS:
        return _ENGINE_WORDS[state]
    if choice.loading:
        return "You can send when the model is loaded"
    if choice.plan is None:
        return "There is no model yet" if choice.models == () else "Choose a model first"
    if is_answering_elsewhere:
        return "Another chat is being answered"
    return ""


def placeholder_words(state: EngineState, choice: ModelChoice) -> dict[str, str]:
    """For `Placeholder.show_text`."""
    if choice.models == ():
        return {
            "title": "No models yet",
            "text": "Make the small demo model in a terminal, then look again:",
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
