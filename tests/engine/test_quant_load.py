"""Quantised checkpoints through the load path: sound ones compute, damaged ones are refused by tensor, file and format.

Expectations come from the plain model: its weights are quantised here, and a sound checkpoint must still compute nearly the same.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import Wishes
from engine.engine import Engine
from engine.errors import EngineError
from tests.helpers.tiny import kernels_named, session_on, write_mixtral
from tests.perf.quantise import QUANTISERS, Tensors, fp8_block, mxfp4

FILE = "model.safetensors"
EXPERT = "model.layers.1.block_sparse_moe.experts.3.w1"
DENSE = "model.layers.1.self_attn.q_proj"
TOKENS = [int(token) for token in torch.randint(3, 300, (48,), generator=torch.Generator().manual_seed(1))]


def is_expert(name: str) -> bool:
    return ".experts." in name


def is_projection(name: str) -> bool:
    return ".self_attn." in name


def write(folder: Path, kind: str, chosen: Callable[[str], bool] = is_expert) -> Path:
    """A Mixtral with the chosen matrices in that format."""
    write_mixtral(folder, hidden_size=64, intermediate_size=96, num_attention_heads=8, num_hidden_layers=2)
    tensors: Tensors = {}
    for name, tensor in load_file(folder / FILE).items():
        if chosen(name):
            stem = name.removesuffix(".weight")
            tensors |= {stem + suffix: part.contiguous() for suffix, part in QUANTISERS[kind](tensor).items()}
        else:
            tensors[name] = tensor
    save_file(tensors, folder / FILE)
    return folder


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)


def logits(folder: Path, kernels: str) -> torch.Tensor:
    with session_on(folder, 4, kernels_named(kernels)) as (session, _):
        return session.sync(TOKENS)[0]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("kind", QUANTISERS)
@pytest.mark.parametrize("chosen", [is_expert, is_projection], ids=["experts", "dense"])
def test_sound_checkpoints_compute(kind: str, chosen: Callable[[str], bool], tmp_path: Path) -> None:
    plain = write_mixtral(tmp_path / "plain", hidden_size=64, intermediate_size=96, num_attention_heads=8, num_hidden_layers=2)
    folder = write(tmp_path / "model", kind, chosen)
    wanted = logits(plain, "reference")
    assert error(logits(folder, "reference"), wanted) < (0.2 if kind == "FP8" else 0.6)
    assert error(logits(folder, "native"), logits(folder, "reference")) < 0.02


def test_bytes_at_odd_addresses(tmp_path: Path) -> None:
    """Published files align nothing but the whole; one more byte before them shifts every tensor."""
    folder = write(tmp_path / "model", "NVFP4")
    wanted = {kernels: logits(folder, kernels) for kernels in ("reference", "native")}
    data = (folder / FILE).read_bytes()
    length = int.from_bytes(data[:8], "little")
    (folder / FILE).write_bytes((length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :])
    for kernels, expected in wanted.items():
        assert torch.equal(logits(folder, kernels), expected)


def poison(stem: str, suffix: str, value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        scales = tensors[stem + suffix]
        raw = scales.float()
        raw.view(-1)[-1] = value
        tensors[stem + suffix] = raw.to(scales.dtype)

    return change


def of_every(suffix: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Tensors], None]:
    """The same damage in each expert, so that none is the odd one out."""

    def apply(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(suffix) and is_expert(name)]:
            changed = change(tensors.pop(name))
            if changed is not None:
                tensors[name] = changed.contiguous()

    return apply


def one_in(kind: str) -> Callable[[Tensors], None]:
    """One expert of the layer in another format."""

    def apply(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(f"{EXPERT}.")]:
            del tensors[name]
        tensors |= {EXPERT + suffix: part for suffix, part in QUANTISERS[kind](torch.randn(96, 64)).items()}

    return apply


def every_down_in_mxfp4(tensors: Tensors) -> None:
    for name in [name for name in tensors if is_expert(name) and ".w2." in name]:
        del tensors[name]
        if name.endswith(".weight"):
            stem = name.removesuffix(".weight")
            tensors |= {stem + suffix: part for suffix, part in mxfp4(torch.randn(64, 96)).items()}


def narrow(tensors: Tensors) -> None:
    """Columns that are no whole number of blocks."""
    of_every(".weight", lambda codes: codes[:, :24])(tensors)


DAMAGES: dict[str, tuple[str, Callable[[Tensors], object], tuple[str, ...]]] = {
    "no scale for one": ("FP8", lambda tensors: tensors.pop(f"{EXPERT}.weight_scale_inv"), ("Expert 3", "weight_scale_inv")),
    "no scales": ("FP8", of_every("_scale_inv", lambda _: None), ("experts.0.w1.weight", FILE, "FP8", "no .weight_scale_inv")),
    "no scales of 4 bits": ("GPTQ", of_every(".scales", lambda _: None), ("experts.0.w1.qweight", FILE, "GPTQ", "no .scales")),
    "no global scale": ("NVFP4", of_every("_scale_2", lambda _: None), (FILE, "NVFP4", "no .weight_scale_2")),
    "scales of another shape": ("FP8", of_every("_scale_inv", lambda s: s.expand(3, 5)), ("scale_inv", FILE, "FP8", "3, 5")),
    "too few scales": (
        "MXFP4",
        of_every("_scale", lambda s: s[:, :1]),
        ("experts.0.w1.weight_scale", FILE, "MXFP4", "[96, 1]"),
    ),
    "too few zero points": ("AWQ", of_every(".qzeros", lambda z: z[:1]), ("qzeros", FILE, "AWQ")),
    "scales of another type": ("FP8", of_every("_scale_inv", torch.Tensor.int), ("scale_inv", FILE, "FP8", "I32")),
    "4-bit scales of another type": ("INT4", of_every("_scale", torch.Tensor.int), ("weight_scale", FILE, "INT4", "I32")),
    "columns that do not divide": ("MXFP4", narrow, ("w1.weight", FILE, "MXFP4", "48 columns")),
    "groups that do not divide": (
        "INT4",
        of_every("_scale", lambda s: s[:, :1].expand(-1, 7)),
        ("weight_scale", FILE, "INT4", "7 scales"),
    ),
    "NaN in FP8": ("FP8", poison(EXPERT, ".weight_scale_inv", float("nan")), (EXPERT, FILE, "FP8", "1 of its scales")),
    "infinity in FP8": ("FP8", poison(EXPERT, ".weight_scale_inv", float("inf")), (EXPERT, FILE, "FP8", "1 of its scales")),
    "NaN in MXFP4": ("MXFP4", poison(EXPERT, ".weight_scale", 255), (EXPERT, FILE, "MXFP4", "1 of its scales")),
    "NaN in NVFP4": ("NVFP4", poison(EXPERT, ".weight_scale", float("nan")), (EXPERT, FILE, "NVFP4", "1 of its scales")),
    "NaN in INT4": ("INT4", poison(EXPERT, ".weight_scale", float("nan")), (EXPERT, FILE, "INT4", "1 of its scales")),
    "infinity in GPTQ": ("GPTQ", poison(EXPERT, ".scales", float("inf")), (EXPERT, FILE, "GPTQ", "1 of its scales")),
    "NaN in AWQ": ("AWQ", poison(EXPERT, ".scales", float("nan")), (EXPERT, FILE, "AWQ", "1 of its scales")),
    "a global scale of 0": ("NVFP4", poison(EXPERT, ".weight_scale_2", 0.0), (f"{EXPERT}.weight_scale_2", FILE, "positive")),
    "reordered columns": ("GPTQ", poison(EXPERT, ".g_idx", 0), (f"{EXPERT}.g_idx", FILE, "GPTQ", "reordered")),
    "a shape that is not the matrix's": (
        "INT4",
        poison(EXPERT, ".weight_shape", 63),
        (f"{EXPERT}.weight_shape", FILE, "INT4", "[96, 63]"),
    ),
    "one expert in another format": (
        "FP8",
        one_in("MXFP4"),
        ("Expert 3 of layer 1", f"{EXPERT}.weight", FILE, "U8[96, 32]", "F8_E4M3[96, 64]"),
    ),
    "down in another format": ("FP8", every_down_in_mxfp4, ("w2", "MXFP4", "w1", "FP8", "must share one format")),
}


def refused(folder: Path, expected: tuple[str, ...]) -> None:
    with pytest.raises(EngineError) as caught:
        Engine(folder, Wishes())
    assert all(part in caught.value.text for part in expected), caught.value.text
    assert caught.value.hint, "a person needs a next step"
    assert "\n" not in caught.value.text


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_experts_are_refused_by_name(name: str, tmp_path: Path) -> None:
    kind, damage, expected = DAMAGES[name]
    folder = write(tmp_path / "model", kind)
    edit(folder, damage)
    refused(folder, expected)


DENSE_DAMAGES: dict[str, tuple[str, Callable[[Tensors], object], tuple[str, ...]]] = {
    "no scale": ("FP8", lambda t: t.pop(f"{DENSE}.weight_scale_inv"), (f"{DENSE}.weight", FILE, "FP8", "no .weight_scale_inv")),
    "scales of another shape": (
        "MXFP4",
        lambda t: t.update({f"{DENSE}.weight_scale": t[f"{DENSE}.weight_scale"][:, :1].contiguous()}),
        (f"{DENSE}.weight_scale", FILE, "MXFP4", "[64, 1]"),
    ),
    "NaN": ("FP8", poison(DENSE, ".weight_scale_inv", float("nan")), (f"{DENSE}.weight_scale_inv", FILE, "FP8", "not finite")),
    "NaN in E8M0": ("MXFP4", poison(DENSE, ".weight_scale", 255), (f"{DENSE}.weight_scale", FILE, "MXFP4", "not finite")),
    "a negative global scale": ("NVFP4", poison(DENSE, ".weight_scale_2", -1), (f"{DENSE}.weight_scale_2", FILE, "positive")),
    "reordered columns": ("GPTQ", poison(DENSE, ".g_idx", 0), (f"{DENSE}.g_idx", FILE, "GPTQ", "reordered")),
}


@pytest.mark.parametrize("name", DENSE_DAMAGES)
def test_damaged_dense_matrices_are_refused_by_name(name: str, tmp_path: Path) -> None:
    kind, damage, expected = DENSE_DAMAGES[name]
    folder = write(tmp_path / "model", kind, is_projection)
    edit(folder, damage)
    refused(folder, expected)


def test_a_file_cut_within_the_scales(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "FP8")
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(data[:-1])
    refused(folder, (FILE, "ends at"))


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_a_damaged_expert_that_loading_did_not_read(kernels: str, tmp_path: Path) -> None:
    """It is refused when it comes, as often as it comes, and what the engine holds stays whole."""
    folder = write(tmp_path / "model", "MXFP4")
    edit(folder, poison(EXPERT, ".weight_scale", 255))
    with session_on(folder, 2, kernels_named(kernels)) as (session, _):
        for _ in range(4):
            session.rewind(0)
            with pytest.raises(EngineError, match=f"{EXPERT}.weight_scale"):
                session.sync(TOKENS)


def test_fused_halves_that_share_a_block_of_scales() -> None:
    from engine.checkpoint.experts import ExpertMap, ExpertNames, ExpertPart, ExpertRange
    from engine.checkpoint.safetensors import TensorRef
    from engine.experts.bind import recognise_experts

    parts = fp8_block(torch.randn(320, 128))  # halves of 160 rows in blocks of 128
    types = {torch.float8_e4m3fn: "F8_E4M3", torch.float32: "F32"}
    refs = [
        (matrix, suffix, TensorRef(f"{matrix}{suffix}[0]", Path(FILE), 0, part.nbytes, types[part.dtype], tuple(part.shape)))
        for matrix in ("gate_up_proj", "down_proj")
        for suffix, part in parts.items()
    ]
    sample = ExpertRange((), tuple(ExpertPart(matrix, suffix, ref, 0, 0) for matrix, suffix, ref in refs))
    names = ExpertNames("experts", fused=("gate_up_proj", "down_proj"))
    with pytest.raises(EngineError, match=r"gate_up_proj\.weight.* FP8: its 320 rows"):
        recognise_experts(ExpertMap({0: (sample,)}), names, {})
