"""Every kernel compiled for cards from sm_75 to sm_120, and the shared memory that it takes there."""

from typing import Any

import pytest

from engine.kernels.gpu.launch import MATMUL, MATVEC, SHARED_BYTES
from engine.kernels.gpu.shape import MatrixShape, shape_of
from tests.gpu.compiled import of_cache, of_matrix
from tests.gpu.layers import EVERY

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
OLDEST, NEWEST = min(SHARED_BYTES), max(SHARED_BYTES)
KINDS = [
    "f32",
    "f16",
    "bf16",
    "bf16-by-columns-2",
    "fp8-128",
    "fp8-channel",
    "mxfp4",
    "nvfp4",
    "int4-128-zeros",
    "int4-channel-f32",
]
QUICK = [("mxfp4", OLDEST), ("fp8-128", 90)]


def cases() -> list[Any]:
    every = [(name, capability) for name in KINDS for capability in SHARED_BYTES]
    return [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in every]


@pytest.mark.parametrize(("name", "capability"), cases())
def test_fits(name: str, capability: int) -> None:
    shape = shape_of(EVERY[name](256, 1024)[0])
    assert isinstance(shape, MatrixShape)
    operands, size = ("*fp16", 2) if capability == OLDEST else ("*bf16", 2)
    for kernel, made in of_matrix(shape, capability, operands).items():
        launch = (MATVEC if kernel.startswith("matvec") else MATMUL)[shape.form.format]
        assert made.metadata.shared <= launch.shared_bytes(shape.form, size) <= SHARED_BYTES[capability], kernel


@pytest.mark.parametrize("capability", [OLDEST, NEWEST])
def test_the_cache_fits(capability: int) -> None:
    for kernel, made in of_cache(capability).items():
        assert made.metadata.shared <= SHARED_BYTES[capability], kernel
