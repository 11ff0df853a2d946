"""Each published encoding of each family on its tiny checkpoint, against transformers run on the dequantised weights."""

import pytest

from engine.config import KvType
from engine.errors import EngineError
from engine.kernels.native import Native
from engine.kernels.reference import Reference
from engine.source import inspect
from tests.golden.parity import ENCODED, Golden, differences, differences_in_bf16, make_golden, measure

pytest.importorskip("transformers", reason="the reference for parity is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs


def native(isa: str) -> Native:
    try:
        return Native(2, isa, fast=False)
    except EngineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=ENCODED)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make_golden(request.param, tmp_path_factory.mktemp("encoded"))


def test_passes_equal_the_reference(golden: Golden) -> None:
    """Also with one expert of a layer in memory."""
    for slots in (None, 1):
        errors = measure(golden, Reference(), slots)
        assert errors.largest < 1e-4, (slots, errors)


def test_the_kernels_equal_it_where_activations_stay_wide(golden: Golden) -> None:
    assert differences(golden, native("portable"), KvType.FP32).quantile(0.9) < 1e-4


def test_the_fastest_kernels_are_as_near_as_the_reference_in_bf16(golden: Golden) -> None:
    """At a tenth of the positions: activations in 8 bits, as the kernels for 4-bit weights have them, choose another expert of a
    random router here and there, and what comes after sees it."""
    assert differences(golden, native("best"), KvType.FP32).quantile(0.1) < 2 * differences_in_bf16(golden).median()


def test_it_is_known_for_what_it_is(golden: Golden) -> None:
    source = inspect(golden.folder)
    kind = golden.row.encoding.split()[0].rstrip(",")
    assert source.expert_format.label == {"FP4": "MXFP4"}.get(kind, kind)
    assert ((golden.logits - golden.without_experts).norm() / golden.logits.norm()) > 0.05, (
        "a forgotten expert would go unnoticed"
    )
