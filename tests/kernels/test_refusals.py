"""Every bad argument is refused with a code before memory is touched."""

import ctypes
from collections.abc import Callable

import pytest
import torch

from engine.errors import EngineError
from engine.kernels.abi import descriptor
from engine.kernels.native import ExpertTable, Native
from engine.kernels.weights import Format, Weight
from tests.kernels.matrices import FOUR_BIT, dense, fp8, mxfp4

Kernels = Callable[..., Native]
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
