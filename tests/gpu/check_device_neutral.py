"""No architecture lets a tensor of the host meet one of a device: their passes over fake tensors of a device that is none.

What the experts and the kernels of a device do is not looked at; routing, norms, rotation, attention, caches and states are.
For a process of its own, as torch is told of the device once for all.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from engine.kernels.reference import Reference
from engine.kernels.weights import plain
from engine.kv.cache import KvCache
from engine.models.decoder import Plain, Table
from engine.models.layers import Weights
from engine.models.registry import find
from tests.golden.parity import ROWS, tiny_config

_setup_privateuseone_for_python_backend("card")
CARD, CPU = torch.device("card", 0), torch.device("cpu")
_NUMBERS: dict[str, Any] = {"layer_scalar": 1.0}  # taken for their value when a model is built, which fake tensors have none of
_FROM_DISK = "mixtral"


def weights_of(shapes: dict[str, tuple[int, ...]], embedding: torch.device) -> Weights:
    matrices = {
        name: plain(torch.empty(shape, dtype=torch.bfloat16, device=embedding if "embed_tokens" in name else CARD))
        for name, shape in shapes.items()
        if len(shape) == 2 and not name.endswith(".weight") and not isinstance(shape, Plain | Table)
    }
    tables = {
        name: torch.zeros(shape, dtype=torch.int64, device=CARD) for name, shape in shapes.items() if isinstance(shape, Table)
    }
    vectors: dict[str, Any] = {}
    for name, shape in shapes.items():
        if name in tables:
            continue
        stem, _, kind = name.rpartition(".")
        if kind == "bias" and stem in matrices:
            matrices[stem] = replace(matrices[stem], bias=torch.empty(shape, device=CARD))
        elif name not in matrices:
            vectors[name] = torch.ones(shape, device=CARD) if kind not in _NUMBERS else _NUMBERS[kind]
    return Weights(matrices, vectors, tables=tables)


@pytest.mark.parametrize(("name", "embedding"), [*((name, CARD) for name in ROWS), (_FROM_DISK, CPU)])
def test_a_pass(name: str, embedding: torch.device) -> None:
    published = tiny_config(name).to_dict() | {"model_type": ROWS[name].model_type}
    module = find(published, name).load()
    config = module.Config.read(published, name)
    with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True):
        kernels = Reference()
        model = module.build(config, weights_of(module.weight_shapes(config), embedding), kernels)
        kv = KvCache(config.num_layers, config.num_kv_heads, config.head_dim, 64, CARD, compressed=config.kept_compressed)

        def experts(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            assert x.device == ids.device == weights.device == CARD, f"layer {layer}"
            return torch.zeros_like(x)

        for count in (9, 1, 1):
            logits = model(torch.zeros(count, dtype=torch.int64), kv, experts)
            assert logits.device == CARD
            assert logits.shape == (config.vocab_size,)
            kv.advance(count)
            kv.mark()
