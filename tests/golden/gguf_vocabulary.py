"""The vocabulary of a GGUF file as a tokenizer.json, written without the engine: what the makers' own file held."""

import struct
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MODERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {  # as each model's tokenizer.json has them
    "gpt-2": (_WORDS,),
    "llama-bpe": (_MODERN % "{1,3}",),
    "qwen2": (_MODERN % "",),
    "qwen35": (_MARKED,),
    "starcoder": (r"\p{N}", _WORDS),
    "refact": (r"\p{N}", _WORDS),
    "command-r": (r"\p{N}", _WORDS),
    "mpt": (_WORDS,),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _WORDS, r"[0-9][0-9][0-9]"),
    "deepseek-llm": (
        r"[\r\n]",
        r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-\ud7ff]+",
        r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
}
_CONTROL, _USER = 3, 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


def metadata(file: Path) -> dict[str, Any]:
    """Of the format's description in ggml's docs/gguf.md, version 3."""
    data = file.read_bytes()
    magic, version, _, count = struct.unpack_from("<4sIQQ", data)
    assert (magic, version) == (b"GGUF", 3)
    place, values = 24, {}

    def read(kind: int) -> Any:
        nonlocal place
        if kind == _TEXT:
            (size,) = struct.unpack_from("<Q", data, place)
            place += 8 + size
            return data[place - size : place].decode("utf-8", "replace")
        if kind == _ARRAY:
            item, size = struct.unpack_from("<IQ", data, place)
            place += 12
            return [read(item) for _ in range(size)]
        (value,) = struct.unpack_from(f"<{_SCALARS[kind]}", data, place)
        place += struct.calcsize(f"<{_SCALARS[kind]}")
        return value

    for _ in range(count):
        key = read(_TEXT)
        values[key.removeprefix("tokenizer.ggml.")] = read(read(4))
    return values


def goldens(file: Path) -> list[tuple[str, list[int]]]:
    """Texts, and the ids that the makers' tokenizers gave for them."""
    texts = file.with_name(f"{file.name}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = file.with_name(f"{file.name}.out").read_text(encoding="utf-8").splitlines()
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=False)]


def write_tokenizer(file: Path, folder: Path) -> None:
    values = metadata(file)
    kind = values["model"]
    tokens, types = values["tokens"], values.get("token_type", [])
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _gemma}[kind](values, vocab)
    for token, what in zip(tokens, types, strict=True):
        if what in (_CONTROL, _USER):
            add = tokenizer.add_special_tokens if what == _CONTROL else tokenizer.add_tokens
            add([AddedToken(token, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))


def _byte_level(values: dict[str, Any], vocab: dict[str, int]) -> Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in values["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=values["pre"] == "llama-bpe"))
    words = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[values["pre"]]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(values: dict[str, Any], vocab: dict[str, int]) -> Tokenizer:
    scores = values["scores"]
    merges = []
    for token, number in vocab.items():
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        merges += [(-scores[number], vocab[left], left, right) for left, right in halves if left in vocab and right in vocab]
    pairs = [(left, right) for _, _, left, right in sorted(merges)]
    tokenizer = Tokenizer(models.BPE(vocab, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def _gemma(values: dict[str, Any], vocab: dict[str, int]) -> Tokenizer:
    merges = [(merge[: merge.index(" ", 1)], merge[merge.index(" ", 1) + 1 :]) for merge in values["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer
