"""A model is called by its name, not by the commit whose folder of the Hugging Face cache it lies in."""

from pathlib import Path

import pytest

from engine.checkpoint.naming import model_name


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/models/Qwen3-30B-A3B", "Qwen3-30B-A3B"),
        ("hub/models--openai--gpt-oss-20b/snapshots/6cee5e81ee83917806bbde320786a8fb61efebee", "gpt-oss-20b"),
        ("hub/models--gpt2/snapshots/607a30d783dfa663caf39e06633721c8d4cfcd7e", "gpt2"),
        ("snapshots/mine", "mine"),
        ("mine/snapshots/of-today", "of-today"),
        ("/", ""),
    ],
)
def test_name_of_a_folder(folder: str, name: str) -> None:
    assert model_name(Path(folder)) == name
