"""The block model, and that streaming in any portions comes to the same blocks as parsing the whole."""

import random

import pytest

from app.core.highlight import Role, highlight
from app.core.markdown import Code, Heading, ListBlock, Paragraph, Quote, Rule, Span, Table, parse
from app.core.markdown_stream import StreamingDocument

EVERYTHING = """Intro **bold *both* b** `code` ~~gone~~
second line

1. one

2. two
   ```py
   x = 1
   ```
3. three

| a | b |
|---|--:|
| 1 | `2` |

```sql
SELECT 1

-- still code
```
> quote
> goes on

- [ ] open
- [x] done

---
Title
=====

~~~
tilde ``` fence
~~~
1

2. not a list after a number alone
"""


def text_of(block: object) -> str:
    assert isinstance(block, Paragraph | Heading)
    return "".join(span.text for span in block.spans)


def test_kinds_of_blocks() -> None:
    kinds = [type(block) for block in parse(EVERYTHING)]
    assert kinds == [Paragraph, ListBlock, Table, Code, Quote, ListBlock, Rule, Heading, Code, Paragraph, ListBlock]


def test_inline_styles_nest() -> None:
    (block,) = parse("a **b *c*** `d*`")
    assert isinstance(block, Paragraph)
    assert block.spans == (
        Span("a "), Span("b ", bold=True), Span("c", bold=True, italic=True), Span(" "), Span("d*", code=True),
    )  # fmt: skip


def test_table_has_alignment_and_code() -> None:
    (table,) = parse("|a|b|c|\n|:-|-:|:-:|\n|1|`2`|3|")
    assert isinstance(table, Table)
    assert table.aligns == ("left", "right", "center")
    assert table.rows[1][1] == (Span("2", code=True),)


def test_html_stays_text() -> None:
    block, script = parse("a <b>x</b> <img src=http://e.org/x.png>\n\n<script>alert(1)</script>")
    assert text_of(block) == "a <b>x</b> <img src=http://e.org/x.png>"
    assert text_of(script) == "<script>alert(1)</script>"


def test_images_become_words_and_address() -> None:
    (block,) = parse("![a cat](https://e.org/cat.png)")
    assert text_of(block) == "a cat (https://e.org/cat.png)"


@pytest.mark.parametrize("target", ["javascript:alert(1)", "file:///etc/passwd", "data:text/html,x", "other.md", "//e.org"])
def test_only_web_and_mail_links(target: str) -> None:
    (block,) = parse(f"[words]({target})")
    assert isinstance(block, Paragraph)
    assert not any(span.link for span in block.spans)


def test_web_link_keeps_its_address() -> None:
    (block,) = parse("[words](HTTPS://e.org/a)")
    assert isinstance(block, Paragraph)
    assert block.spans[0].text == "words"
    assert block.spans[0].link.lower() == "https://e.org/a"


@pytest.mark.parametrize("seed", range(20))
def test_any_portions_give_the_same_blocks(seed: int) -> None:
    dice = random.Random(seed)
    document, position = StreamingDocument(), 0
    while position < len(EVERYTHING):
        size = dice.randint(1, 9)
        document.append(EVERYTHING[position : position + size])
        position += size
    document.finish()
    assert tuple(document.blocks) == parse(EVERYTHING)


def test_noise_in_portions_gives_the_same_blocks() -> None:
    parts = (
        "a", "b ", " ", "\n", "\n\n", "- ", "1. ", "**", "*", "`", "```", "\n```py\n", "\n```\n", "~~~", "~~", "| a | b |\n",
        "|--|--|\n", "|", "> ", "# ", "---", "===", "[x](", "http://e.org", ")", "![", "_", "    ", "<b>", "\\", "\t", "2", ".",
    )  # fmt: skip
    for seed in range(400):
        dice = random.Random(seed)
        text = "".join(dice.choice(parts) for _ in range(dice.randint(3, 40)))
        document, position = StreamingDocument(), 0
        while position < len(text):
            size = dice.randint(1, 5)
            document.append(text[position : position + size])
            position += size
        document.finish()
        assert tuple(document.blocks) == parse(text), repr(text)


def test_final_blocks_never_change_and_changes_are_told() -> None:
    document = StreamingDocument()
    whole = parse(EVERYTHING)
    shown: list[object] = []
    for character in EVERYTHING:
        changed = document.append(character)
        assert document.blocks[:changed] == shown[:changed]
        assert tuple(document.blocks[: document.num_final]) == whole[: document.num_final]
        shown = list(document.blocks)
    assert document.num_final >= len(whole) - 2


def test_open_fence_is_code_from_its_first_line() -> None:
    document = StreamingDocument("Look:\n\n```py\nx = 1\n")
    assert document.blocks[1] == Code("py", "x = 1", closed=False)
    document.append("y")
    assert document.blocks[1] == Code("py", "x = 1\ny", closed=False)
    document.append(" = `a`\n``")
    code = document.blocks[1]
    assert isinstance(code, Code)
    assert not code.closed
    assert "y = `a`" in code.text
    document.append("`\nDone")
    assert document.blocks[1] == Code("py", "x = 1\ny = `a`", closed=True)
    assert text_of(document.blocks[2]) == "Done"


@pytest.mark.parametrize(
    ("half", "text"),
    [
        ("see **bo", "see bo"), ("see **bold*", "see bold"), ("see *it", "see it"), ("run `make te", "run make te"),
        ("a [link](https://e.o", "a link"), ("2 * 3", "2 * 3"), ("snake_case_na", "snake_case_na"),
    ],
)  # fmt: skip
def test_half_inline_looks_like_the_whole(half: str, text: str) -> None:
    assert text_of(StreamingDocument(half).blocks[0]) == text


def test_half_markers_wait() -> None:
    document = StreamingDocument("Items:\n-")
    assert document.blocks == [Paragraph((Span("Items:"),))]
    document.append(" one")
    assert isinstance(document.blocks[1], ListBlock)


def test_a_table_is_one_from_its_header() -> None:
    document = StreamingDocument("| Plan | Rows |")
    for part in ("\n", "|--", "-|--", "-|", "\n", "| a", " | b |"):
        assert isinstance(document.blocks[0], Table), part
        document.append(part)
    table = document.blocks[0]
    assert isinstance(table, Table)
    assert [len(row) for row in table.rows] == [2, 2]


def test_a_long_open_list_is_cut_so_that_parsing_stays_short() -> None:
    document = StreamingDocument()
    for number in range(1, 401):
        document.append(f"{number}. item number {number}\n   with a second line\n")
        assert len(document._tail) < 4_000
    items = [item for block in document.blocks if isinstance(block, ListBlock) for item in block.items]
    assert len(items) == 400
    last = document.blocks[-1]
    assert isinstance(last, ListBlock)
    assert last.start is not None
    assert last.start + len(last.items) == 401, "the numbers go on"


def test_hostile_nesting_ends() -> None:
    parse("> " * 3000 + "x")
    parse("[" * 5000)
    parse("*a " * 5000)


def test_highlight_covers_what_it_names() -> None:
    text = "def f(x):\n    return 'é😀' + 1  # ok\n"
    roles = {text[start : start + length]: role for start, length, role in highlight(text, "python")}
    assert roles["def"] is Role.KEYWORD
    assert roles["f"] is Role.NAME
    assert roles["1"] is Role.NUMBER
    assert roles["# ok"] is Role.COMMENT


def test_highlight_gives_up_politely() -> None:
    assert list(highlight("x", "no-such-language")) == []
    assert list(highlight("x", "")) == []
    long = "x = 1\n" * 3000
    assert max(start for start, _, _ in highlight(long, "python")) < 6 * 2000
