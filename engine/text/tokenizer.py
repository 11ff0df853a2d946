"""Text to token ids and back, by the checkpoint's own vocabulary. Streaming never emits half a character."""

from pathlib import Path

from tokenizers import Tokenizer as HfTokenizer

from engine.errors import EngineError
from engine.text.special import GuardedTokenizer, has_marks
from engine.text.vocabulary import bad_vocabulary, tokenizer_json, vocabulary_file

_UNFINISHED = "\ufffd"


class Tokenizer:
    """Wraps one vocabulary. Special tokens are parsed in prompts, since chat templates write them as text.

    Those that `special.mark` has marked are not: they are what a person typed.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `EngineError` where the file is absent or broken."""
        self._folder = folder
        self._guarded: GuardedTokenizer | None = None  # made when first needed
        source = tokenizer_json(folder)
        try:
            self._tokenizer = HfTokenizer.from_str(source)
            self._tokenizer.no_truncation()  # a file saved while training may carry either, and would cut prompts silently
            self._tokenizer.no_padding()
        except Exception as error:  # the library raises a bare Exception for every kind of broken file
            raise bad_vocabulary(folder, error) from error
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special}
        # DeepSeek LLM adds letters such as "ö", which the library takes for the bytes that byte-level vocabularies write so.
        plain = {number: token.content for number, token in added.items() if not token.special}
        self._letters = {number: text for number, text in plain.items() if _UNFINISHED in self._tokenizer.decode([number])}

    @property
    def file_name(self) -> str:
        return vocabulary_file(self._folder).name

    @property
    def vocab_size(self) -> int:
        """Ids, from 0 to the highest; not all of them need have a token."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """Raises `EngineError` for text that this tokenizer has no tokens for."""
        try:
            clean = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates are no text
            if has_marks(clean):
                self._guarded = self._guarded or GuardedTokenizer(tokenizer_json(self._folder))
                return self._guarded.encode(clean)
            return list(self._tokenizer.encode(clean, add_special_tokens=False).ids)
        except Exception as error:  # the library raises a bare Exception
            raise EngineError(
                "model.bad_tokenizer", f"The tokenizer refused the text: {error}.", f"Get {self.file_name} again."
            ) from error

    def decode(self, ids: list[int]) -> str:
        """Without special tokens."""
        letter = next((place for place, number in enumerate(ids) if number in self._letters), None)
        if letter is None:
            return str(self._tokenizer.decode(ids, skip_special_tokens=True))
        return self.decode(ids[:letter]) + self._letters[ids[letter]] + self.decode(ids[letter + 1 :])

    def decode_all(self, ids: list[int]) -> str:
        """With them."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def token_id(self, text: str) -> int | None:
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special


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
        before, now = self._window()
        if len(now) <= len(before) or now.endswith(_UNFINISHED):
            return ""
        return self._emit(before, now)

    def finish(self) -> str:
        """Whatever was held back, replacement characters included; more may follow."""
        if self._emitted_to == len(self._ids):
            return ""
        return self._emit(*self._window())

    def _window(self) -> tuple[str, str]:
        """The text emitted last, and the same with what is held."""
        before = self._tokenizer.decode(self._ids[self._window_start : self._emitted_to])
        return before, self._tokenizer.decode(self._ids[self._window_start :])

    def _emit(self, before: str, now: str) -> str:
        self._window_start, self._emitted_to = self._emitted_to, len(self._ids)
        return now[len(before) :]
