"""Attention with its norms, cache and residual stream as one call, on every tier, against the same in float64."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from engine.kernels.kept import keep, numbers, width
from engine.kernels.native import Native
from engine.kernels.reference import Reference, rms_norm, rotate
from engine.kernels.spec import AttentionSpec, Rotation
from engine.kernels.weights import Weight
from tests.kernels.matrices import EXACT, FOUR_BIT, relative_error

Kernels = Callable[..., Native]
EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """What an architecture may ask for."""

    formats: tuple[str, str, str, str] = ("f32", "f32", "f32", "f32")  # of q, k, v, o
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    rotary_dim: int = 32
    head_norms: bool = False
    biases: bool = False
    sinks: bool = False
    window: int | None = None
    softcap: float = 0.0
    cache: torch.dtype = torch.float32
    limit: float = 3e-6  # of the relative error


CASES = {
    "plain": Case(),
    "head norms": Case(head_norms=True),
    "biases, sinks and a window": Case(biases=True, sinks=True, window=9),
    "everything": Case(head_norms=True, biases=True, sinks=True, window=20, softcap=4.0, rotary_dim=16),
    "no rotation": Case(rotary_dim=0),
    "partial rotation, odd sizes": Case(hidden=100, heads=6, kv_heads=3, head_dim=20, rotary_dim=12),
    "one head for all queries": Case(heads=6, kv_heads=1),
    "bf16 weights and cache": Case(("bf16",) * 4, cache=torch.bfloat16, head_norms=True, limit=5e-3),
    "transposed and FP8": Case(("bf16-by-columns", "fp8-32-e8m0", "f16", "bf16-by-columns-2")),
    "4 bits": Case(("mxfp4", "nvfp4", "int4-32-zeros-f16", "gptq-32"), limit=3e-2),
    "4 bits beside plain ones": Case(("f32", "mxfp4", "f32", "awq-128"), limit=3e-2),
}


def made(name: str, rows: int, cols: int, biased: bool) -> tuple[Weight, torch.Tensor]:
    """A matrix whose products have about unit variance, and its values with the bias as last column."""
    weight, values = (EXACT | FOUR_BIT)[name](rows, cols)
    bias = torch.randn(rows) * 0.3 if biased else torch.zeros(rows)
    if weight.scales is not None:
        spread = float(values.std()) * cols**0.5
        weight, values = replace(weight, global_scale=weight.global_scale / spread), values / spread
    return replace(weight, bias=bias if biased else None), torch.cat((values, bias.double()[:, None]), dim=1)


class Exact(Reference):
    """The reference in float64 over matrices given as values with a last column for the bias."""

    def __init__(self, values: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._values = values

    def linear(self, x: torch.Tensor, weight: torch.Tensor | Weight) -> torch.Tensor:
        assert x.dtype == torch.float64, "or the expectation is no better than what it judges"
        matrix = self._values[id(weight)]
        return x @ matrix[:, :-1].T + matrix[:, -1]


def make_case(case: Case) -> tuple[AttentionSpec, AttentionSpec, Exact]:
    """The spec, the same in float64, and what computes that."""
    width, kv_width = case.heads * case.head_dim, case.kv_heads * case.head_dim
    shapes = ((width, case.hidden), (kv_width, case.hidden), (kv_width, case.hidden), (case.hidden, width))
    parts = [made(name, *shape, case.biases) for name, shape in zip(case.formats, shapes, strict=True)]
    (q, _), (k, _), (v, _), (o, _) = parts
    spec = AttentionSpec(
        q, k, v, o, case.heads, case.kv_heads, case.head_dim,
        input_norm=torch.rand(case.hidden) + 0.5,
        post_norm=torch.rand(case.hidden) + 0.5,
        eps=EPS,
        scale=0.5 / case.head_dim,
        q_norm=torch.rand(case.head_dim) + 0.5 if case.head_norms else None,
        k_norm=torch.rand(case.head_dim) + 0.5 if case.head_norms else None,
        sinks=torch.randn(case.heads) if case.sinks else None,
        window=case.window,
        softcap=case.softcap,
    )  # fmt: skip
    exact = replace(
        spec,
        input_norm=spec.input_norm.double(),
        post_norm=spec.post_norm.double(),
        q_norm=None if spec.q_norm is None else spec.q_norm.double(),
        k_norm=None if spec.k_norm is None else spec.k_norm.double(),
        sinks=None if spec.sinks is None else spec.sinks.double(),
    )
    return spec, exact, Exact({id(weight): values for weight, values in parts})


def rotation_of(case: Case, start: int, tokens: int) -> Rotation:
    half = case.rotary_dim // 2
    angles = torch.arange(start, start + tokens)[:, None] * torch.rand(half)[None, :]
    return angles.cos().contiguous(), angles.sin().contiguous()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("tokens", "start"), [(1, 0), (1, 130), (3, 70), (5, 0), (17, 64), (70, 0), (70, 33)])
def test_against_float64(name: str, tokens: int, start: int, isa: str, kernels: Kernels) -> None:
    torch.manual_seed(1)
    case = CASES[name]
    spec, exact, judge = make_case(case)
    x = torch.randn(tokens, case.hidden)
    rotation = rotation_of(case, start, tokens)
    room = torch.randn(2, case.kv_heads, start + tokens + 7, case.head_dim).to(case.cache)
    caches = [room.clone(), room.double()]
    streams = [x.clone(), x.double()]
    found = kernels(isa, fast=False).attention_block(spec)(streams[0], rotation, caches[0][0], caches[0][1], start)
    precise = (rotation[0].double(), rotation[1].double())
    wanted = judge.attention_block(exact)(streams[1], precise, caches[1][0], caches[1][1], start)
    end = start + tokens
    assert relative_error(found, wanted) < case.limit
    assert relative_error(streams[0] - x, streams[1] - x.double()) < case.limit, "the stream"
    stored = max(case.limit, 4e-3 if case.cache == torch.bfloat16 else 0)  # half a unit in the last place
    assert relative_error(caches[0][:, :, start:end], caches[1][:, :, start:end]) < stored, "the cache"
    assert torch.equal(caches[0][:, :, :start], room[:, :, :start]), "positions before"
    assert torch.equal(caches[0][:, :, end:], room[:, :, end:]), "positions after"


@pytest.mark.parametrize("head_dim", [20, 32, 80])
@pytest.mark.parametrize(("tokens", "start"), [(1, 70), (17, 64)])
def test_a_cache_in_8_bits(tokens: int, start: int, head_dim: int, isa: str, kernels: Kernels) -> None:
    """Written by the kernels as the reference writes it, and read alike."""
    torch.manual_seed(5)
    spec, _, _ = make_case(Case(head_dim=head_dim, rotary_dim=20, head_norms=True))
    x, rotation = torch.randn(tokens, spec.o.rows), rotation_of(Case(rotary_dim=20), start, tokens)
    room = torch.empty(2, 2, start + tokens + 3, width(torch.uint8, head_dim), dtype=torch.uint8)
    for part in room:
        keep(part, 0, torch.randn(room.shape[2], 2, head_dim))
    caches, streams = [room.clone(), room.clone()], [x.clone(), x.clone()]
    found = kernels(isa).attention_block(spec)(streams[0], rotation, caches[0][0], caches[0][1], start)
    wanted = Reference().attention_block(spec)(streams[1], rotation, caches[1][0], caches[1][1], start)
    assert relative_error(found, wanted.double()) < 1e-3, "a code may round to its other side"
    new = slice(start, start + tokens)
    theirs = numbers(caches[1][:, :, new])
    assert relative_error(numbers(caches[0][:, :, new]), theirs.double()) < 1e-3
    assert (caches[0][:, :, new] == caches[1][:, :, new]).float().mean() > 0.99
    for untouched in (slice(0, start), slice(start + tokens, None)):
        assert torch.equal(caches[0][:, :, untouched], room[:, :, untouched])


@pytest.mark.parametrize("fast", [False, True])
def test_threads_and_chunks_do_not_change_a_bit(fast: bool, isa: str, kernels: Kernels) -> None:
    torch.manual_seed(2)
    case = CASES["everything"]
    spec = make_case(case)[0]
    x, rotation = torch.randn(48, case.hidden), rotation_of(case, 0, 48)
    results = []
    for threads, chunk in ((1, 48), (3, 48), (2, 16)):
        block = kernels(isa, threads, fast).attention_block(spec)
        cache, stream = torch.zeros(2, case.kv_heads, 48, case.head_dim), x.clone()
        normed = [
            block(stream[at : at + chunk], (rotation[0][at : at + chunk], rotation[1][at : at + chunk]), cache[0], cache[1], at)
            for at in range(0, 48, chunk)
        ]
        results.append((torch.cat(normed), stream, cache))
    for other in results[1:]:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(results[0], other, strict=True))


def test_a_cache_of_any_stride(isa: str, kernels: Kernels) -> None:
    """Positions may lie apart, and heads next to each other within one."""
    torch.manual_seed(3)
    case = CASES["plain"]
    spec = make_case(case)[0]
    x, rotation = torch.randn(6, case.hidden), rotation_of(case, 10, 6)
    dense = torch.randn(2, case.kv_heads, 20, case.head_dim)
    apart = torch.empty(2, 20, case.kv_heads, case.head_dim + 8)[..., : case.head_dim].transpose(1, 2)
    apart.copy_(dense)
    block = kernels(isa).attention_block(spec)
    first = block(x.clone(), rotation, dense[0], dense[1], 10)
    assert torch.equal(first, block(x.clone(), rotation, apart[0], apart[1], 10))
    assert torch.equal(dense, apart)


def test_the_parts_are_what_they_are_called() -> None:
    """The norm and the rotation that the expectation is made of, from their definitions."""
    torch.manual_seed(4)
    x, weight = torch.randn(3, 2, 8).double(), torch.rand(8).double()
    expected = torch.stack([row / (row.square().mean() + EPS).sqrt() * weight for row in x.view(-1, 8)]).view_as(x)
    assert relative_error(rms_norm(x, weight, EPS), expected) < 1e-12
    angles = torch.rand(3, 3).double()
    turned = rotate(x, (angles.cos(), angles.sin()))
    pairs = torch.view_as_complex(torch.stack((x[..., :3], x[..., 3:6]), dim=-1)) * torch.exp(1j * angles)[:, None]
    assert relative_error(turned, torch.cat((pairs.real, pairs.imag, x[..., 6:]), dim=-1)) < 1e-12
