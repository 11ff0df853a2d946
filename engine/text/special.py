"""Special tokens that a person typed are text, those that a chat template wrote are not: how the two are told apart.

A message's own are marked before the template sees it. Where a rendered conversation has marks, a second tokenizer reads it: to
that one every special token has another name, which only the template's unmarked ones are given.
"""

import json
import re
from collections.abc import Sequence

from tokenizers import Tokenizer as HfTokenizer

_MARK, _NAME = "\ufdd0", "\ufdd1"  # noncharacters: no text has them


def special_tokens(tokenizer_json: str) -> tuple[str, ...]:
    """From the text of a tokenizer.json, the longest first; none where it has none or is broken, which its reader will say."""
    found = re.search(r'"added_tokens"\s*:\s*(?=\[)', tokenizer_json)
    if found is None:
        return ()
    try:
        added, _ = json.JSONDecoder().raw_decode(tokenizer_json, found.end())
        names = {token["content"] for token in added if token.get("special") and len(token["content"]) > 1}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return ()
    return tuple(sorted(names, key=len, reverse=True))


def mark(text: str, tokens: Sequence[str]) -> str:
    """The text of a message with a mark within each of `tokens` that it holds."""
    if not tokens:
        return text
    clean = text.replace(_MARK, "").replace(_NAME, "")
    return _any(tokens).sub(lambda found: found[0][0] + _MARK + found[0][1:], clean)


class GuardedTokenizer:
    """Ids of a rendered conversation in which marked special tokens are text."""

    def __init__(self, tokenizer_json: str) -> None:
        """The text of a usable tokenizer.json."""
        self._tokens = special_tokens(tokenizer_json)
        values = json.loads(tokenizer_json)
        named = []
        for token in values["added_tokens"]:
            number, token["content"] = token["id"], (_NAME if token["content"] in self._tokens else "") + token["content"]
            named.append((token["content"], number))
        values["truncation"] = values["padding"] = values["post_processor"] = None
        self._tokenizer = HfTokenizer.from_str(json.dumps(values))
        self._ids = {self._tokenizer.token_to_id(name): number for name, number in named}  # it numbers them anew

    def encode(self, text: str) -> list[int]:
        """Of text with marks."""
        named = _any(self._tokens).sub(lambda found: _NAME + found[0], text).replace(_MARK, "")
        return [self._ids.get(token, token) for token in self._tokenizer.encode(named, add_special_tokens=False).ids]


def has_marks(text: str) -> bool:
    return _MARK in text


def _any(tokens: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(token) for token in tokens))
