"""Finding models on the Hub, reading their cards, and the verdict from headers alone, over a fake hub."""

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint.index import open_checkpoint
from engine.config import NO_WISHES, Wishes
from engine.errors import EngineError
from engine.hardware.machine import Machine
from engine.judge import Ground, footprint_of, judge_catalogue, judge_entry, plan_facts, read_named
from engine.models.registry import SUPPORTED
from engine.protocol import Change, Fit, Gate, HubModel, HubSort, ModelEntry, Verdict
from engine.shelf import Shelf, stamp_of
from engine.source import inspect
from engine.store.catalogue import read_catalogue
from engine.store.formats import format_name, unread_method
from engine.store.search import plain_card, read_card, search
from engine.store.web import Line
from engine.units import GB
from tests.helpers.rates import notebook
from tests.helpers.tiny import write_mixtral
from tests.hub.server import FakeHub
from tests.perf import layout
from tests.perf.encode import ENCODINGS
from tests.perf.shapes import SHAPES, config_of
from tests.store.conftest import line_to

FREE = 10**13


@pytest.fixture
def roomy(tmp_path: Path) -> Ground:
    machine = Machine(64 * GB, 60 * GB, False)
    return Ground(machine, notebook(tmp_path / "data", machine, tmp_path), FREE, tmp_path)


def planned(line: Line, name: str, ground: Ground, wishes: Wishes = NO_WISHES) -> tuple[HubModel, int]:
    facts = read_named(line, name, lambda: False)
    return plan_facts(facts, ground, wishes)[0], facts.num_files


def _of_folder(folder: Path, ground: Ground) -> Verdict:
    verdict = judge_entry(ModelEntry(folder.name, str(folder), "", "", 0), ground).verdict
    assert verdict is not None
    return verdict


def files_of(folder: Path) -> dict[str, bytes | Path]:
    return {item.name: item.read_bytes() for item in folder.iterdir()}


def with_ram(roomy: Ground, gigabytes: float, free: int = FREE) -> Ground:
    return replace(roomy, machine=replace(roomy.machine, ram_available=int(gigabytes * GB)), free_bytes=free)


def test_search_by_name_and_by_architecture(hub: FakeHub, line: Line) -> None:
    hub.add("a/Coder-Small", {"config.json": b'{"model_type": "mixtral"}'}, downloads=5, parameters={"BF16": 1000})
    hub.add("b/Coder-Other", {"config.json": b'{"model_type": "bloom"}'}, downloads=9)
    gated = {"model_type": "qwen3_moe", "quantization_config": {"quant_method": "fp8"}}
    hub.add("c/Coder-Gated", {"config.json": json.dumps(gated).encode()}, downloads=7, gate="manual", licence="mit")
    found = search(line, "coder", HubSort.DOWNLOADS, SUPPORTED)
    assert [model.releases[0].repo for model in found] == ["c/Coder-Gated", "a/Coder-Small"]
    assert (found[0].gate, found[0].licence, found[0].releases[0].weight_format) == (Gate.REVIEW, "mit", "FP8")
    assert (found[1].releases[0].bytes, found[1].total_params, found[1].architecture) == (2000, 1000, "mixtral")
    everything = search(line, "coder", HubSort.DOWNLOADS, frozenset())
    assert [model.name for model in everything] == ["Coder-Other", "Coder-Gated", "Coder-Small"]


def test_search_without_a_network_says_so(line: Line) -> None:
    nowhere = replace(line, access=replace(line.access, endpoint="http://127.0.0.1:9"))
    with pytest.raises(EngineError, match="online") as caught:
        search(nowhere, "x", HubSort.DOWNLOADS, SUPPORTED)
    assert caught.value.code == "hub.unreachable"


def test_verdict_from_headers_equals_the_loaders(hub: FakeHub, line: Line, tmp_path: Path, roomy: Ground) -> None:
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    hub.add("maker/Tiny", files_of(folder))
    loaders, ours = inspect(folder).footprint, footprint_of(open_checkpoint(folder))
    assert ours.slot_bytes >= loaders.slot_bytes
    assert ours.slot_bytes - loaders.slot_bytes <= 3 * 2 * 4096
    same = ("dense_bytes", "dense_read_bytes", "expert_bytes", "num_moe_layers", "num_experts", "top_k", "num_layers",
            "num_kv_heads", "head_dim", "hidden_size", "expert_size", "vocab_size", "max_context", "model_bytes", "weight_format")  # fmt: skip
    assert {name: getattr(ours, name) for name in same} == {name: getattr(loaders, name) for name in same}
    model, num_files = planned(line, "maker/Tiny", roomy)
    (release,) = model.releases
    assert release.verdict is not None
    assert (release.verdict.fit, release.weight_format, num_files) == (Fit.RAM, "BF16", 4)
    assert release.bytes == sum(item.stat().st_size for item in folder.iterdir())


def test_a_plan_moves_headers_alone(hub: FakeHub, line: Line, tmp_path: Path, roomy: Ground) -> None:
    folder = write_mixtral(
        tmp_path / "tiny", torch.float32, hidden_size=512, intermediate_size=512, vocab_size=3000, num_hidden_layers=1
    )
    hub.add("maker/Large", files_of(folder))
    planned(line, "maker/Large", roomy)
    assert sum(item.stat().st_size for item in folder.iterdir()) > 30e6
    assert hub.sent_bytes < 200_000


def test_verdicts_follow_memory_and_drive(roomy: Ground) -> None:
    model = next(model for model in read_catalogue() if model.name == "gpt-oss-20b")

    def verdict(ground: Ground) -> tuple[Fit, tuple[float, float] | None]:
        found = judge_catalogue(model, ground).releases[0].verdict
        assert found is not None
        return found.fit, found.tokens_per_second

    assert verdict(with_ram(roomy, 40))[0] is Fit.RAM
    assert verdict(with_ram(roomy, 9))[0] is Fit.DISK
    assert verdict(with_ram(roomy, 2))[0] is Fit.NO_MEMORY
    assert verdict(with_ram(roomy, 40, free=5 * GB))[0] is Fit.NO_SPACE
    slower, faster = verdict(with_ram(roomy, 9))[1], verdict(with_ram(roomy, 12))[1]
    assert slower is not None
    assert faster is not None
    assert slower < faster
    assert verdict(replace(roomy, notebook=None)) == (Fit.RAM, None)
    more = judge_catalogue(model, with_ram(roomy, 9)).releases[0].verdict
    assert more is not None
    assert more.plan is not None
    gain = next(gain for gain in more.plan.gains if gain.change is Change.RAM)
    assert gain.tokens_per_second > slower


def test_every_entry_of_the_catalogue_adds_up(roomy: Ground) -> None:
    models = read_catalogue()
    assert len(models) >= 15
    repos = [repo for model in models for repo, _, _ in model.releases]
    assert len(set(repos)) == len(repos)
    for model in models:
        shape = model.geometry
        routed = shape.moe_layers * shape.experts * shape.matrices * shape.hidden * shape.expert_size
        assert 0.6 < routed / model.total_params < 1, model.name
        assert model.active_params < model.total_params
        verdicts = [release.verdict for release in judge_catalogue(model, roomy).releases]
        is_supported = model.architecture in SUPPORTED
        assert all(verdict is not None and (verdict.fit is not Fit.UNSUPPORTED) == is_supported for verdict in verdicts), (
            model.name
        )
        if is_supported:
            assert min(shape.kv_heads, shape.head_dim, shape.vocab, shape.max_context) > 0, model.name


def test_what_is_not_supported_is_said(tmp_path: Path, roomy: Ground) -> None:
    folder = write_mixtral(tmp_path / "other", model_type="bloom")
    found = _of_folder(folder, roomy)
    assert (found.fit, "bloom" in found.text) == (Fit.UNSUPPORTED, True)
    folder = write_mixtral(tmp_path / "bits", quantization_config={"quant_method": "bitsandbytes"})
    found = _of_folder(folder, roomy)
    assert (found.fit, "bitsandbytes" in found.text) == (Fit.UNSUPPORTED, True)


@pytest.mark.parametrize(
    ("dtype", "quantization", "name"),
    [
        ("BF16", None, "BF16"), ("F8_E4M3", {"quant_method": "fp8"}, "FP8"), ("U8", {"quant_method": "mxfp4"}, "MXFP4"),
        ("U8", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"), ("I32", {"quant_method": "awq"}, "AWQ"),
        ("I32", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "INT4"),
        ("U8", {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "NVFP4"),
    ],
)  # fmt: skip
def test_names_of_formats(dtype: str, quantization: dict[str, str] | None, name: str) -> None:
    config = {"quantization_config": quantization} if quantization else {}
    assert format_name({dtype: 10, "F32": 1}, config) == name
    assert unread_method(config) == ""


def test_experts_of_a_format_of_their_own_name_it() -> None:
    config = {"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"}
    assert format_name({"I8": 10, "F8_E4M3": 1}, config) == "MXFP4"
    assert format_name({"F8_E4M3": 10}, config | {"expert_dtype": "fp8"}) == "FP8"


def test_card(hub: FakeHub, line: Line) -> None:
    hub.repos["maker/Model-8x1"].files["README.md"] = (
        b"---\nlicense: mit\n---\n<div align='center'>\n  <img src='http://evil/x.png'>\n</div>\n\n# Hello\n\n"
        b"[![badge](https://b)](https://c) See <a href='https://example.org'>the site</a>.\n\n```html\n<div>stays</div>\n```\n"
    )
    text = read_card(line, "maker/Model-8x1")
    assert text == "# Hello\n\n See [the site](https://example.org).\n\n```html\n<div>stays</div>\n```"
    del hub.repos["maker/Model-8x1"].files["README.md"]
    assert read_card(line, "maker/Model-8x1") == ""
    long = plain_card("word " * 30_000)
    assert len(long) < 50_000


def test_a_gated_repository_cannot_be_judged_without_access(hub: FakeHub, tmp_path: Path, roomy: Ground) -> None:
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    hub.tokens = {"hf_a"}
    hub.add("maker/Gated", files_of(folder), gate="auto", accepted={"hf_a"})
    with pytest.raises(EngineError) as caught:
        planned(line_to(hub), "maker/Gated", roomy)
    assert caught.value.code == "hub.gated"
    model, _ = planned(line_to(hub, "hf_a"), "maker/Gated", roomy)
    assert model.gate is Gate.TERMS


def test_the_plan_of_a_huge_checkpoint_moves_little(hub: FakeHub, line: Line, roomy: Ground, tmp_path: Path) -> None:
    """700 GB in shards as makers cut them, with every tensor by name; the files are holes behind their headers."""
    shape = replace(SHAPES["qwen3-30b-a3b"], layers=60, hidden=6144, expert_size=2560)
    shards: list[dict[str, Any]] = [{}]
    size = total = 0
    for spec, _ in layout.parts(shape, ENCODINGS["bf16"], ENCODINGS["bf16"], "uniform", 0):
        if size + spec.num_bytes > 4.3e9:
            shards.append({})
            size = 0
        offsets = [size, size + spec.num_bytes]
        shards[-1][spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
        size, total = size + spec.num_bytes, total + spec.num_bytes
    assert total > 690e9
    files: dict[str, bytes | Path] = {"config.json": json.dumps(config_of(shape)).encode()}
    for number, header in enumerate(shards, 1):
        file = tmp_path / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(file, 8 + len(text) + max(item["data_offsets"][1] for item in header.values()))
        files[file.name] = file
    hub.add("maker/Huge", files, sha256=dict.fromkeys(files, "0" * 64))
    model, num_files = planned(line, "maker/Huge", roomy)
    (release,) = model.releases
    assert num_files == len(shards) + 1
    assert release.bytes >= total
    assert release.verdict is not None
    assert release.verdict.fit is Fit.DISK
    assert release.verdict.plan is not None
    assert release.verdict.plan.model_bytes == total
    assert release.verdict.plan.predicted_tokens_per_second is not None
    assert hub.sent_bytes < 5_000_000


def test_another_wish_for_the_same_model_reads_nothing_again(hub: FakeHub, line: Line, tmp_path: Path, roomy: Ground) -> None:
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    hub.add("maker/Tiny", files_of(folder))
    now, shelf = [0.0], Shelf(lambda: now[0])

    def context(wishes: Wishes) -> int:
        facts = shelf.find("maker/Tiny", stamp_of("maker/Tiny"), lambda: read_named(line, "maker/Tiny", lambda: False))
        verdict = plan_facts(facts, roomy, wishes)[0].releases[0].verdict
        assert verdict is not None
        assert verdict.plan is not None
        return verdict.plan.context

    context(NO_WISHES)
    before = hub.sent_bytes
    assert [context(Wishes(context=count)) for count in (32, 64)] == [32, 64]
    assert hub.sent_bytes == before
    now[0] = 3600.0
    context(NO_WISHES)
    assert hub.sent_bytes > before, "its makers may have changed it"


def test_a_folder_that_changes_is_read_again(line: Line, tmp_path: Path, roomy: Ground) -> None:
    folder, shelf = write_mixtral(tmp_path / "tiny", torch.bfloat16), Shelf()

    def look() -> str:
        facts = shelf.find(str(folder), stamp_of(str(folder)), lambda: read_named(line, str(folder), lambda: False))
        return facts.unsupported

    assert look() == ""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "something_else"}))
    assert "something_else" in look()


def test_between_its_limits_every_wish_can_be_planned(line: Line, tmp_path: Path, roomy: Ground) -> None:
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    facts = read_named(line, str(folder), lambda: False)
    ground = with_ram(roomy, 0.2)
    limits = plan_facts(facts, ground)[1]
    assert limits is not None
    for context in (limits.least_context, limits.most_context):
        at_context = plan_facts(facts, ground, Wishes(context=context))[1]
        assert at_context is not None
        for size in (at_context.least_expert_ram, at_context.most_expert_ram):
            verdict = plan_facts(facts, ground, Wishes(f"{size}B", context))[0].releases[0].verdict
            assert verdict is not None
            assert verdict.fit.runs, verdict.text


def test_without_a_network_the_catalogue_answers_and_says_so(line: Line, roomy: Ground) -> None:
    nowhere = replace(line, access=replace(line.access, endpoint="http://127.0.0.1:9"))
    facts = read_named(nowhere, "openai/gpt-oss-20b", lambda: False)
    assert "catalogue" in facts.caution
    assert facts.download_bytes == facts.model.releases[0].bytes > 13 * GB
    model, limits = plan_facts(facts, roomy)
    assert limits is not None
    assert model.releases[0].verdict is not None
    assert model.releases[0].verdict.fit is Fit.RAM
    with pytest.raises(EngineError, match="online"):
        read_named(nowhere, "maker/Unknown", lambda: False)
