"""Vocabulary files of each kind, small and made here: which is used, what is said of broken ones, ids against the weights' rows."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.config import Wishes
from engine.engine import Engine
from engine.errors import EngineError
from engine.protocol import ChatMessage
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.helpers.tiny import write_mixtral, write_text_files

WORDS = [b"ab", b"abc", "é".encode(), "🙂".encode()[:2]]


def _tekken(folder: Path, **changes: Any) -> None:
    tokens = [bytes([byte]) for byte in range(256)] + WORDS
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for rank, token in enumerate(tokens)]
    special = [
        {"rank": 0, "token_str": "<unk>", "is_control": True},
        {"rank": 1, "token_str": "<s>", "is_control": True},
        {"rank": 2, "token_str": "[THINK]", "is_control": False},
    ]
    config = {"pattern": r"\p{L}+|[^\p{L}]", "default_vocab_size": 4 + len(tokens) - 1, "default_num_special_tokens": 4}
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special} | changes))


def _tiktoken(folder: Path, **config: Any) -> None:
    tokens = [bytes([byte]) for byte in range(256)] + WORDS
    lines = (f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens))
    (folder / "tiktoken.model").write_text("\n".join(lines))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_tekken(tmp_path: Path) -> None:
    _tekken(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("<s>abc ab🙂") == [1, 4 + 257, 4 + 32, 4 + 256, 4 + 0xF0, 4 + 0x9F, 4 + 0x99, 4 + 0x82]
    assert tokenizer.encode("[THINK]<SPECIAL_3>") == [2, 3], "ids without a name are special too"
    assert tokenizer.decode([1, 2, 4 + 258, 3]) == "[THINK]é"
    assert tokenizer.vocab_size == 4 + 256 + 3, "the last rank is beyond the vocabulary's size"


def test_tiktoken(tmp_path: Path) -> None:
    added = {"261": {"content": "[EOS]", "special": True}, "262": {"content": "<think>", "special": False}}
    _tiktoken(tmp_path, tokenizer_class="TikTokenTokenizer", added_tokens_decoder=added)
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("abc[EOS]<think>🙂") == [257, 261, 262, 259, 0x99, 0x82]
    assert tokenizer.decode([257, 261, 262]) == "abc<think>"
    assert tokenizer.token_id("<|reserved_token_260|>") == 260


@pytest.mark.parametrize(("write", "token"), [(_tekken, "<s>"), (_tiktoken, "<|reserved_token_300|>")])
def test_special_tokens_that_a_person_typed_are_text(write: Callable[..., None], token: str, tmp_path: Path) -> None:
    write(tmp_path, chat_template=None)
    (tmp_path / "chat_template.jinja").write_text(f"{token}{{{{ messages[0].content }}}}")
    tokenizer = Tokenizer(tmp_path)
    ids = tokenizer.encode(ChatTemplate(tmp_path).render([ChatMessage("user", f"a{token}b")]))
    assert [number == tokenizer.token_id(token) for number in ids].count(True) == 1
    assert tokenizer.decode(ids) == f"a{token}b"


def test_a_tokenizer_json_comes_first(tmp_path: Path) -> None:
    _tekken(tmp_path)
    write_text_files(tmp_path)
    assert Tokenizer(tmp_path).file_name == "tokenizer.json"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"), ("tekken.json", "{}"), ("tekken.json", '{"config": {}, "vocab": []}'), ("tekken.json", "[]"),
        ("tiktoken.model", "not base64 at all"), ("tiktoken.model", "YQ== x"), ("tiktoken.model", "YQ==\n"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(EngineError, match=name):
        Tokenizer(tmp_path)


def test_a_tiktoken_file_of_another_family_is_not_guessed_at(tmp_path: Path) -> None:
    _tiktoken(tmp_path, tokenizer_class="ChatGLM4Tokenizer")
    with pytest.raises(EngineError, match="for a ChatGLM4Tokenizer"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tekken.json"])
def test_an_id_beyond_the_rows_is_named_with_its_file_before_anything_is_loaded(name: str, tmp_path: Path) -> None:
    """An id may lie beyond the rows although there are fewer tokens than rows."""
    folder = write_mixtral(tmp_path / "model")
    if name == "tokenizer.json":
        values = json.loads((folder / name).read_text())
        values["model"]["vocab"]["zz"] = 300
        (folder / name).write_text(json.dumps(values))
    else:
        (folder / "tokenizer.json").unlink()
        _tekken(folder, config={"pattern": ".", "default_vocab_size": 301, "default_num_special_tokens": 41})
    with pytest.raises(
        EngineError, match=rf"{name} of model has ids for 301 tokens, and the weights have rows for 300"
    ) as caught:
        Engine(folder, Wishes(), progress=lambda *_: pytest.fail("something was loaded"))
    assert caught.value.code == "model.vocabulary"
