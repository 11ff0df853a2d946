"""A checkpoint's vocabulary, in whichever of the three published files it has, as what the `tokenizers` library reads.

tokenizer.json is that already. tekken.json (Mistral) and tiktoken.model (Kimi) are byte strings by rank and a pattern that cuts
a text into words; within a word the neighbours whose joint has the lowest rank are joined first, as tiktoken does it.
"""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from engine.checkpoint.index import read_json
from engine.checkpoint.naming import model_name
from engine.errors import EngineError
from engine.text.special import special_tokens

_TEKKEN_SPECIAL = (  # of files that do not list theirs; mistral_common/tokens/tokenizers/tekken.py, DEPRECATED_SPECIAL_TOKENS
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
_KIMI_RESERVED = 256  # ids after the ranks; tokenization_kimi.py of Kimi-K2, as is the pattern
_KIMI_ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_KIMI_UPPER, _KIMI_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_KIMI_ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_KIMI_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


@dataclass(frozen=True, slots=True)
class _Ranked:
    """`specials` are (id, text, whether it is hidden); a rank plus `offset` is an id."""

    ranks: dict[bytes, int]
    offset: int
    pattern: str
    specials: tuple[tuple[int, str, bool], ...]


def vocabulary_file(folder: Path) -> Path:
    """The one that is used; tokenizer.json where there is none. Raises nothing."""
    names = ("tokenizer.json", "tekken.json", "tiktoken.model")
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def tokenizer_json(folder: Path) -> str:
    """The text of a tokenizer.json, made where there is none. Raises `EngineError` where no file is there or it is broken."""
    file = vocabulary_file(folder)
    if not file.is_file():
        raise EngineError(
            "model.missing_file",
            f"{model_name(folder)} has no {file.name}.",
            "The download is incomplete: get the model again.",
        )
    try:
        return file.read_text(encoding="utf-8") if file.name == "tokenizer.json" else _converted(_ranked(file))
    except EngineError:
        raise
    except Exception as error:  # a file may be broken in any way, and the library raises a bare Exception
        raise bad_vocabulary(folder, error) from error


def special_texts(folder: Path) -> tuple[str, ...]:
    """Of its special tokens, the longest first; none where the file is absent or broken, which its reader will say."""
    file = vocabulary_file(folder)
    try:
        if file.name == "tokenizer.json":
            return special_tokens(file.read_text(encoding="utf-8"))
        ranked = _ranked(file)
    except Exception:  # as above
        return ()
    return tuple(sorted((text for _, text, is_hidden in ranked.specials if is_hidden), key=len, reverse=True))


def bad_vocabulary(folder: Path, error: Exception) -> EngineError:
    text = f"{vocabulary_file(folder).name} of {model_name(folder)} cannot be used: {error or type(error).__name__}."
    return EngineError("model.bad_tokenizer", text, "Get the file again.")


def _ranked(file: Path) -> _Ranked:
    return _tekken(read_json(file)) if file.name == "tekken.json" else _kimi(file, file.with_name("tokenizer_config.json"))


def _tekken(values: dict[str, Any]) -> _Ranked:
    config = values["config"]
    offset = int(config["default_num_special_tokens"])
    size = int(config["default_vocab_size"]) - offset
    listed = values.get("special_tokens")
    named = dict(enumerate(_TEKKEN_SPECIAL)) if listed is None else {item["rank"]: item["token_str"] for item in listed}
    shown = {item["rank"] for item in listed or () if not item["is_control"]}
    specials = tuple((number, named.get(number, f"<SPECIAL_{number}>"), number not in shown) for number in range(offset))
    ranks = {base64.b64decode(item["token_bytes"]): item["rank"] for item in values["vocab"] if item["rank"] < size}
    return _Ranked(ranks, offset, config["pattern"], specials)


def _kimi(file: Path, config_file: Path) -> _Ranked:
    config = read_json(config_file) if config_file.is_file() else {}
    if config.get("tokenizer_class", "TikTokenTokenizer") != "TikTokenTokenizer":
        text = f"{file.name} is for a {config['tokenizer_class']}, and Stoker knows how Kimi's cuts words."
        raise EngineError("model.bad_tokenizer", text, "Get a release with a tokenizer.json.")
    lines = (line.split() for line in file.read_bytes().splitlines() if line.strip())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    added = {int(number): token for number, token in config.get("added_tokens_decoder", {}).items()}
    specials = []
    for number in range(len(ranks), len(ranks) + _KIMI_RESERVED):
        token = added.get(number, {})
        specials.append((number, token.get("content", f"<|reserved_token_{number}|>"), bool(token.get("special", True))))
    return _Ranked(ranks, 0, _KIMI_PATTERN, tuple(specials))


def _converted(source: _Ranked) -> str:
    letters = _byte_letters()

    def written(token: bytes) -> str:
        return token.decode("latin-1").translate(letters)

    by_rank = sorted(source.ranks.items(), key=lambda item: item[1])
    vocab = {written(token): rank + source.offset for token, rank in by_rank}
    merges = []
    for token, _ in by_rank:
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [(source.ranks[left], source.ranks[right], left, right) for left, right in halves if _both(source, left, right)]
        merges += [(written(left), written(right)) for _, _, left, right in sorted(pairs)]
    vocab |= {text: number for number, text, _ in source.specials}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    words = pre_tokenizers.Split(Regex(source.pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for number, text, is_hidden in source.specials:
        added = (tokenizer.add_special_tokens if is_hidden else tokenizer.add_tokens)([AddedToken(text, normalized=False)])
        assert added == 0 or tokenizer.token_to_id(text) == number, f"{text} has the id {number}"
    return str(tokenizer.to_str())


def _both(source: _Ranked, left: bytes, right: bytes) -> bool:
    return left in source.ranks and right in source.ranks


def _byte_letters() -> dict[int, int]:
    """The letters by which GPT-2's byte-level vocabularies write bytes: printable ones themselves, the others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {byte: 256 + number for number, byte in enumerate(others)}
