"""What a load leaves behind: when a model was used."""

from pathlib import Path

import torch

from engine.models.registry import SUPPORTED
from engine.store.library import list_models
from engine.store.loads import note_loaded
from tests.helpers.tiny import write_mixtral


def test_a_load_is_remembered(tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "models" / "tiny", torch.bfloat16)
    assert list_models(tmp_path / "models", SUPPORTED)[0].last_used == 0
    note_loaded(tmp_path, folder)
    assert list_models(tmp_path / "models", SUPPORTED)[0].last_used > 1e9


def test_a_full_drive_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    note_loaded(tmp_path / "file", tmp_path)  # a folder that cannot be made
