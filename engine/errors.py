"""The one exception that a person gets to read. A bug is an assert with text, never one of these."""

_LONGEST = 600  # characters; names and messages out of a file may be of any length


class EngineError(Exception):
    """What went wrong in one sentence with its numbers, and the next step.

    `code` is stable and machine-readable (`model.not_found`), `text` says what happened, `hint` says what to do.
    """

    def __init__(self, code: str, text: str, hint: str = "") -> None:
        self.code = code
        self.text = _presentable(text)
        self.hint = _presentable(hint)
        super().__init__(self.text)

    def __str__(self) -> str:
        return f"{self.text} {self.hint}".strip()


def _presentable(text: str) -> str:
    """One line of printable characters: text out of a foreign file must not steer a terminal or fill a window."""
    line = "".join(character if character.isprintable() else " " for character in text[: 2 * _LONGEST])
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
