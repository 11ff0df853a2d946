"""Every bad argument is refused with a code before memory is touched."""

import ctypes
from collections.abc import Callable
from ctypes import pointer as to

import pytest
import torch

from engine.errors import EngineError
from engine.kernels.abi import BlockCall, RouteCall, descriptor
from engine.kernels.native import ExpertTable, Native
from engine.kernels.reference import Reference
from engine.kernels.weights import Format, ScaleType, Weight
from tests.kernels.matrices import FOUR_BIT, dense, fp8, mxfp4

Kernels = Callable[..., Native]
SIZES = {ScaleType.F32: 4, ScaleType.BF16: 2, ScaleType.F16: 2, ScaleType.E8M0: 1, ScaleType.E4M3: 1}
CASES = [
    ({"rows": 0}, "shapes"),
    ({"cols": -32}, "shapes"),
    ({"rows": 1 << 40}, "shapes"),
    ({"row_stride": 63}, "stride"),
    ({"row_stride": -64}, "stride"),
    ({"row_stride": 1 << 50}, "stride"),
    ({"rows": 65}, "ends before"),
    ({"scale_row_stride": 8}, "ends before"),
    ({"scale_row_stride": -4}, "stride"),
    ({"block_cols": 24}, "block"),
    ({"block_cols": 48}, "block"),
    ({"block_cols": 0}, "block"),
    ({"block_rows": 2}, "block"),
    ({"scales": None}, "null"),
    ({"scale_type": 9}, "unknown"),
    ({"scale_type": 0}, "unknown"),
    ({"format": Format.F32}, "unknown"),
]


@pytest.mark.parametrize(("change", "reason"), CASES, ids=lambda value: str(value))
def test_matrices(change: dict[str, object], reason: str, kernels: Kernels) -> None:
    weight, _ = mxfp4(64, 128)
    broken = _with(weight, **change)
    with pytest.raises(EngineError, match=reason) as caught:
        kernels().check(broken, "model.up_proj")
    assert "model.up_proj" in caught.value.text
    pool, x = kernels(), torch.zeros(1)
    assert pool.lib.stoker_linear(pool.pool, x.data_ptr(), 1, ctypes.byref(descriptor(broken)), 0, x.data_ptr()) != 0


def test_a_format_of_the_future(kernels: Kernels) -> None:
    pool, matrix = kernels(), descriptor(mxfp4(64, 128)[0])
    for number in (-1, 8, 1 << 30):
        matrix.format = number
        assert pool.lib.stoker_check(ctypes.byref(matrix)) == 2


def test_buffers_that_end_early(kernels: Kernels) -> None:
    for make in (dense(torch.bfloat16), fp8(32, 32), *FOUR_BIT.values()):
        weight, _ = make(64, 128)
        kernels().check(weight, "whole")
        for part in ("data", "scales", "zeros"):
            held = getattr(weight, part)
            if held is not None:
                with pytest.raises(EngineError, match="ends before"):
                    kernels().check(_with(weight, **{part: held[:-1]}), part)


def test_pools(library: None) -> None:
    for threads, isa in ((0, "best"), (-1, "best"), (5000, "best"), (1, "neon" if _is_x86() else "avx2")):
        with pytest.raises(EngineError):
            Native(threads, isa)


def test_experts(kernels: Kernels) -> None:
    pool = kernels()
    table = ExpertTable(2)
    good, wrong = mxfp4(64, 128)[0], mxfp4(32, 128)[0]
    down = mxfp4(128, 64)[0]
    x, out = torch.zeros(1, 128), torch.zeros(1, 1, 128)
    table.set(0, good, good, down)

    def call(slot: int) -> None:
        pool.moe(table, x, torch.tensor([[slot]], dtype=torch.int32), out)

    call(0)
    call(-1)
    for slot in (-2, 2, 1 << 30):
        with pytest.raises((AssertionError, IndexError)):
            call(slot)
    for parts in (
        (good, wrong, down),
        (wrong, good, down),
        (good, good, good),
        (None, good, down),
        (dense(torch.float32)(64, 128)[0], good, down),
    ):
        table.set(1, *parts)
        with pytest.raises(AssertionError):
            call(1)
    with pytest.raises(AssertionError, match="index"):  # a rank nobody computed
        pool.moe(table, x, torch.tensor([[-1]], dtype=torch.int32), None, torch.ones(1, 1))


def test_scales_that_are_no_numbers(kernels: Kernels) -> None:
    pool, table = kernels(), ExpertTable(1)
    for name, make in {"fp8": fp8(32, 32), "fp8-e8m0": fp8(32, 32, torch.float8_e8m0fnu), **FOUR_BIT}.items():
        for part in range(3):
            matrices = [make(64, 128)[0], make(64, 128)[0], make(128, 128)[0]]
            table.set(0, *matrices)
            assert pool.has_finite_scales(table, 0), name
            assert Reference().has_finite_scales(table, 0), name
            scales = matrices[part].scales
            assert scales is not None
            for at in (0, len(scales) // SIZES[matrices[part].scale_type] - 1):
                size = SIZES[matrices[part].scale_type]
                kept = scales[at * size : (at + 1) * size].clone()
                scales[at * size : (at + 1) * size] = 255  # NaN in all of them
                assert not pool.has_finite_scales(table, 0), (name, part, at)
                assert not Reference().has_finite_scales(table, 0), (name, part, at)
                scales[at * size : (at + 1) * size] = kept
    table.set(0, None, matrices[1], matrices[2])
    assert pool.has_finite_scales(table, 0)
    assert pool.lib.stoker_check_scales(None) == 1
    table.set(0, None, matrices[1], _with(matrices[2], scales=None))
    with pytest.raises(AssertionError, match="null"):
        pool.has_finite_scales(table, 0)


def a_block() -> tuple[BlockCall, list[object]]:
    """A call that is computed, and what it points to."""
    q, k, o = (dense(torch.float32)(*shape)[0] for shape in ((64, 48), (32, 48), (48, 64)))
    x, normed, vector = torch.zeros(2, 48), torch.zeros(2, 48), torch.ones(48)
    turn, cache = torch.zeros(2, 8), torch.zeros(2, 2, 5, 16)
    matrices = [descriptor(weight) for weight in (q, k, k, o)]
    call = BlockCall(
        tokens=2, hidden=48, heads=4, kv_heads=2, head_dim=16, rotary_dim=16, x=x.data_ptr(), normed=normed.data_ptr(),
        input_norm=vector.data_ptr(), post_norm=vector.data_ptr(), cosine=turn.data_ptr(), sine=turn.data_ptr(),
        q=to(matrices[0]), k=to(matrices[1]), v=to(matrices[2]), o=to(matrices[3]),
        keys=cache[0].data_ptr(), values=cache[1].data_ptr(), kv_head_stride=80, kv_token_stride=16, length=5, scale=1.0,
    )  # fmt: skip
    return call, [q, k, o, x, vector, turn, cache, matrices, normed]


NULL, FORMAT, SHAPE, STRIDE, OPTION = 1, 2, 3, 5, 8
BAD_BLOCKS: list[tuple[str, object, int]] = [
    *((name, None, NULL) for name in ("x", "input_norm", "post_norm", "cosine", "sine", "keys", "values", "normed", "q", "k", "v", "o")),
    ("q_norm", 64, NULL), ("k_norm", 64, NULL),  # one without the other
    ("tokens", 0, SHAPE), ("tokens", -1, SHAPE), ("tokens", 6, SHAPE), ("tokens", 1 << 40, SHAPE),
    ("hidden", 47, SHAPE), ("hidden", 0, SHAPE), ("heads", 3, SHAPE), ("heads", 8, SHAPE), ("kv_heads", 0, SHAPE),
    ("kv_heads", 4, SHAPE), ("head_dim", 8, SHAPE), ("head_dim", 1 << 20, SHAPE), ("length", 1, SHAPE), ("length", -5, SHAPE),
    ("rotary_dim", 17, SHAPE), ("rotary_dim", 18, SHAPE), ("rotary_dim", -2, SHAPE),
    ("kv_type", 1, FORMAT), ("kv_type", -1, FORMAT), ("kv_head_stride", 15, STRIDE), ("kv_token_stride", 1 << 50, STRIDE),
    ("window", -1, OPTION), ("scale", float("nan"), OPTION), ("softcap", -1.0, OPTION), ("eps", -1.0, OPTION),
    ("eps", float("nan"), OPTION), ("flags", 2, OPTION), ("flags", -1, OPTION),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "status"), BAD_BLOCKS, ids=str)
def test_attention_blocks(field: str, value: object, status: int, kernels: Kernels) -> None:
    pool = kernels()
    call, held = a_block()
    run = pool.lib.stoker_attention_block
    assert run(pool.pool, ctypes.byref(call)) == 0
    setattr(call, field, value)
    assert run(pool.pool, ctypes.byref(call)) == status
    del held


def test_attention_blocks_without_rotation_need_no_angles(kernels: Kernels) -> None:
    pool = kernels()
    call, held = a_block()
    call.rotary_dim, call.cosine, call.sine = 0, None, None
    assert pool.lib.stoker_attention_block(pool.pool, ctypes.byref(call)) == 0
    assert pool.lib.stoker_attention_block(pool.pool, None) == NULL
    assert pool.lib.stoker_attention_block(None, ctypes.byref(call)) == NULL
    del held


BAD_ROUTES: list[tuple[str, object, int]] = [
    *((name, None, NULL) for name in ("x", "router", "ids", "weights")),
    ("tokens", 0, SHAPE), ("tokens", -3, SHAPE), ("top_k", 0, SHAPE), ("top_k", 9, SHAPE), ("top_k", -1, SHAPE),
    ("flags", 1, OPTION), ("flags", 4, OPTION),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "status"), BAD_ROUTES, ids=str)
def test_routes(field: str, value: object, status: int, kernels: Kernels) -> None:
    pool = kernels()
    x, ids, weights = torch.zeros(1, 16), torch.zeros(1, 8, dtype=torch.int32), torch.zeros(1, 8)
    router = dense(torch.float32)(8, 16)[0]
    matrix = descriptor(router)
    call = RouteCall(
        tokens=1, top_k=8, x=x.data_ptr(), router=to(matrix), flags=2, ids=ids.data_ptr(), weights=weights.data_ptr()
    )
    assert pool.lib.stoker_route(pool.pool, ctypes.byref(call)) == 0
    setattr(call, field, value)
    assert pool.lib.stoker_route(pool.pool, ctypes.byref(call)) == status
    assert pool.lib.stoker_route(pool.pool, None) == NULL


def test_null_pointers_and_odd_options(kernels: Kernels) -> None:
    pool = kernels()
    lib, handle = pool.lib, pool.pool
    matrix = ctypes.byref(descriptor(dense(torch.float32)(4, 4)[0]))
    x = torch.zeros(1, 4)
    assert lib.stoker_linear(None, x.data_ptr(), 1, matrix, 0, x.data_ptr()) == 1
    assert lib.stoker_linear(handle, None, 1, matrix, 0, x.data_ptr()) == 1
    assert lib.stoker_linear(handle, x.data_ptr(), 1, None, 0, x.data_ptr()) == 1
    assert lib.stoker_linear(handle, x.data_ptr(), 0, matrix, 0, x.data_ptr()) == 3
    assert lib.stoker_linear(handle, x.data_ptr(), 1, matrix, 64, x.data_ptr()) == 8
    assert lib.stoker_moe(handle, None) == 1
    assert lib.stoker_attention(handle, None) == 1
    assert lib.stoker_check(None) == 1
    assert lib.stoker_pool_create(1, 0, 0, None) == 1
    lib.stoker_pool_destroy(None)
    assert all(lib.stoker_error_text(code) for code in range(-1, 20))


def test_an_absent_library_is_a_sentence(tmp_path: "object") -> None:
    from pathlib import Path

    with pytest.raises(EngineError, match="not built"):
        Native(1, library=Path(str(tmp_path)) / "stoker_kernels.so")
    broken = Path(str(tmp_path)) / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(EngineError, match="cannot be loaded"):
        Native(1, library=broken)


def _with(weight: Weight, **changes: object) -> Weight:
    return Weight(**{name: getattr(weight, name) for name in Weight.__slots__} | changes)


def _is_x86() -> bool:
    import platform

    return platform.machine().lower() in ("x86_64", "amd64")
