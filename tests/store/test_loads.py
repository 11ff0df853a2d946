"""What a load leaves behind: when a model was used and the rates for the next prediction."""

from pathlib import Path

import torch

from engine.config import Wishes
from engine.engine import inspect, predicted_plan_for
from engine.meter import Link
from engine.models.registry import SUPPORTED
from engine.store.library import list_models
from engine.store.loads import known_rates, note_loaded
from tests.helpers.tiny import write_mixtral


def test_a_load_is_remembered_with_its_rates(tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "models" / "tiny", torch.bfloat16)
    assert known_rates(tmp_path) is None
    assert list_models(tmp_path / "models", SUPPORTED)[0].last_used == 0
    plan = predicted_plan_for(inspect(folder), Wishes(context=256))
    note_loaded(tmp_path, folder, plan)
    assert list_models(tmp_path / "models", SUPPORTED)[0].last_used > 1e9
    rates = known_rates(tmp_path)
    assert rates is not None
    assert rates.ceilings == {link: plan.ceilings_gbps[link] for link in (Link.RAM, Link.DISK)}
    assert plan.predicted is not None
    assert rates.compute_gbps == plan.predicted.links[Link.RAM].gbps


def test_unusable_rates_are_none_and_a_full_drive_is_no_obstacle(tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    plan = predicted_plan_for(inspect(folder), Wishes(context=256))
    for content in (
        "[]",
        "{}",
        '{"compute_gbps": "x", "ceilings": {}}',
        '{"compute_gbps": 0, "ceilings": {"ram": 1, "disk": 1}}',
    ):
        (tmp_path / "rates.json").write_text(content)
        assert known_rates(tmp_path) is None
    (tmp_path / "file").write_text("")
    note_loaded(tmp_path / "file", folder, plan)  # a folder that cannot be made
