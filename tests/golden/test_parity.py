"""Stream and logits against transformers, the independent reference, for every architecture: prefill, token by token, after
a rewind, and with as few experts in memory as run."""

import pytest

from engine.kernels.reference import Reference
from engine.models.registry import SUPPORTED
from tests.golden.parity import ROWS, Golden, make_golden, measure
from tests.helpers.tiny import kernels_named

pytest.importorskip("transformers", reason="the reference for parity is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs


@pytest.fixture(scope="module", params=ROWS)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make_golden(request.param, tmp_path_factory.mktemp("golden"))


def test_the_experts_matter(golden: Golden) -> None:
    difference = (golden.logits - golden.without_experts).norm() / golden.logits.norm()
    assert difference > 0.05, "a forgotten expert would go unnoticed"


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_passes_equal_the_reference(golden: Golden, kernels: str) -> None:
    errors = measure(golden, kernels_named(kernels))
    assert errors.largest < 1e-4, errors


def test_experts_from_disk_give_the_same(golden: Golden) -> None:
    errors = measure(golden, Reference(), slots=1)
    assert errors.largest < 1e-4, errors


def test_every_architecture_has_a_row() -> None:
    assert {row.model_type for row in ROWS.values()} >= SUPPORTED
