"""Text to token ids and back, by the checkpoint's own tokenizer.json. Streaming never emits half a character."""

from pathlib import Path

from tokenizers import Tokenizer as HfTokenizer

from engine.errors import EngineError
from engine.text.special import GuardedTokenizer, has_marks

_UNFINISHED = "\ufffd"


class Tokenizer:
    """Wraps one tokenizer.json. Special tokens are parsed in prompts, since chat templates write them as text.

    Those that `special.mark` has marked are not: they are what a person typed.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `EngineError` where the file is absent or broken."""
        file = self._file = folder / "tokenizer.json"
        self._guarded: GuardedTokenizer | None = None  # made when first needed
        if not file.is_file():
            raise EngineError(
                "model.missing_file",
                f"{folder.name} has no tokenizer.json.",
                "The download is incomplete: get the model again.",
            )
        try:
            self._tokenizer = HfTokenizer.from_str(file.read_text(encoding="utf-8"))
            self._tokenizer.no_truncation()  # a file saved while training may carry either, and would cut prompts silently
            self._tokenizer.no_padding()
        except Exception as error:  # the library raises a bare Exception for every kind of broken file
            raise EngineError(
                "model.bad_tokenizer", f"tokenizer.json of {folder.name} cannot be used: {error}.", "Get the file again."
            ) from error

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Raises `EngineError` for text that this tokenizer has no tokens for."""
        try:
            clean = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates are no text
            if has_marks(clean):
                self._guarded = self._guarded or GuardedTokenizer(self._file.read_text(encoding="utf-8"))
                return self._guarded.encode(clean)
            return list(self._tokenizer.encode(clean, add_special_tokens=False).ids)
        except Exception as error:  # the library raises a bare Exception
            raise EngineError(
                "model.bad_tokenizer", f"The tokenizer refused the text: {error}.", "Get tokenizer.json again."
            ) from error

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def token_id(self, text: str) -> int | None:
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)


class StreamDecoder:
    """Ids one at a time to pieces of text that join to the whole; a character split over tokens comes with its last one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # a short window: decoding depends on the neighbour before
        self._window_start = 0
        self._emitted_to = 0

    def add(self, token_id: int) -> str:
        """The text that became certain with this token, possibly empty."""
        self._ids.append(token_id)
        before = self._tokenizer.decode(self._ids[self._window_start : self._emitted_to])
        now = self._tokenizer.decode(self._ids[self._window_start :])
        if len(now) <= len(before) or now.endswith(_UNFINISHED):
            return ""
        self._window_start, self._emitted_to = self._emitted_to, len(self._ids)
        return now[len(before) :]

    def finish(self) -> str:
        """Whatever was held back, replacement characters included."""
        before = self._tokenizer.decode(self._ids[self._window_start : self._emitted_to])
        now = self._tokenizer.decode(self._ids[self._window_start :])
        self._window_start = self._emitted_to = len(self._ids)
        return now[len(before) :]
