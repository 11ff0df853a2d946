"""The one exception that a person gets to read. A bug is an assert with text, never one of these."""


class EngineError(Exception):
    """What went wrong in one sentence with its numbers, and the next step.

    `code` is stable and machine-readable (`model.not_found`), `text` says what happened, `hint` says what to do.
    """

    def __init__(self, code: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.text} {self.hint}".strip()
