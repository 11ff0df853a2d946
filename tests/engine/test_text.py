"""Streaming text: pieces join to the whole, no half character, stop strings in pieces; templates as published."""

import json
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.protocol import ChatMessage
from engine.text.stream import StopStrings
from engine.text.template import ChatTemplate
from engine.text.tokenizer import StreamDecoder, Tokenizer
from tests.helpers.tiny import write_text_files

TEXTS = ["plain", "naïve café", "日本語テキスト", "🙂👩‍👩‍👧 family", "tab\tnew\nline  two", "Ωmega ½ \u200d end", ""]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_text_files(tmp_path)
    return Tokenizer(tmp_path)


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_and_never_split_a_character(tokenizer: Tokenizer, text: str) -> None:
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.add(token) for token in tokenizer.encode(text)]
    assert all("\ufffd" not in piece for piece in pieces)
    assert "".join(pieces) + decoder.finish() == text


def test_a_broken_tail_is_shown_at_the_end_only(tokenizer: Tokenizer) -> None:
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode("ok 🙂")[:-1]
    assert "".join(decoder.add(token) for token in ids) == "ok "
    assert decoder.finish().startswith("\ufffd")


@pytest.mark.parametrize("step", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("one END two", ["END"], "one "),
        ("one EN two", ["END"], "one EN two"),
        ("aab", ["ab"], "a"),
        ("x</s>y", ["</s>", "</"], "x"),
        ("nothing", [], "nothing"),
        ("EEND", ["END"], "E"),
        ("ends with E", ["END"], "ends with E"),
    ],
)
def test_stop_strings_arriving_in_pieces(text: str, stops: list[str], kept: str, step: int) -> None:
    stream = StopStrings(stops)
    out = ""
    for start in range(0, len(text), step):
        out += stream.add(text[start : start + step])
        if stream.is_hit:
            break
    out += stream.finish()
    assert out == kept
    assert stream.is_hit == (kept != text)


def _template(folder: Path, template: object) -> ChatTemplate:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "bos_token": {"content": "<s>"}}))
    return ChatTemplate(folder)


def test_templates_get_what_published_ones_use(tmp_path: Path) -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.first %}{{ m['content'] | tojson }}{% endif %}{% break %}{% endfor %}"
    )
    assert _template(tmp_path, source).render([ChatMessage("user", 'say "é"')]) == '<s>"say \\"é\\""'
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert _template(tmp_path, named).render([]) == "yes"
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert _template(tmp_path, "from the config").render([]) == "from the file"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{{ undefined_function() }}",
    ],
)
def test_a_template_that_fails_is_one_sentence(tmp_path: Path, source: str) -> None:
    with pytest.raises(EngineError, match="chat template"):
        _template(tmp_path, source).render([ChatMessage("user", "hi")])


def test_a_refused_conversation_is_told_in_the_templates_words(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="roles must alternate") as caught:
        _template(tmp_path, "{{ raise_exception('roles must alternate') }}").render([ChatMessage("user", "hi")])
    assert caught.value.code == "prompt.refused"


@pytest.mark.parametrize("template", [["x"], 5, None, [{"name": "rag"}]])
def test_no_usable_template_is_named(tmp_path: Path, template: object) -> None:
    with pytest.raises(EngineError, match="no chat template"):
        _template(tmp_path, template)


def test_truncation_and_padding_of_a_file_saved_in_training_are_not_used(tmp_path: Path, tokenizer: Tokenizer) -> None:
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    saved["truncation"] = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    saved["padding"] = {
        "strategy": {"Fixed": 32},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    assert len(Tokenizer(tmp_path).encode("x" * 100)) == 100
    assert len(Tokenizer(tmp_path).encode("x")) == 1
