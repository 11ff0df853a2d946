"""The cache that the device keeps by itself, against one of plain Python, and its experts against the reference."""

import pytest
import torch

from engine.kernels.gpu.cache import Cache
from engine.kernels.gpu.experts import DeviceExperts
from engine.kernels.gpu.kernels import DeviceKernels
from engine.kernels.native import ExpertTable
from engine.kernels.reference import Reference
from engine.kernels.weights import ExpertMath, Weight
from tests.gpu.described import describe
from tests.kernels.matrices import EXACT, FOUR_BIT, relative_error

LAYERS, EXPERTS, TOP_K = 2, 9, 3


def empty_cache(num_experts: int, num_slots: int, pairs: int) -> Cache:
    def filled(size: int, value: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full((size,), value, dtype=dtype)

    return Cache(
        filled(num_experts, -1), filled(num_slots, -1), filled(num_slots, -1, torch.int64), filled(1, 0, torch.int64),
        filled(pairs, -9), filled(pairs, -9), filled(1, -9),
    )  # fmt: skip


@pytest.mark.parametrize("slots_each", [6, 7, 9])
@pytest.mark.parametrize("tokens", [1, 2])
def test_least_recently_used_leaves(kernels: DeviceKernels, slots_each: int, tokens: int) -> None:
    torch.manual_seed(slots_each)
    cache = empty_cache(LAYERS * EXPERTS, LAYERS * slots_each, tokens * TOP_K)
    counters = torch.zeros(2, dtype=torch.int64)
    last = [dict[int, int]() for _ in range(LAYERS)]  # the step that used each expert last
    hits = misses = 0
    for step in range(18):
        layer = step % LAYERS
        ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens)]).int()
        before = set((cache.slot_of.view(LAYERS, EXPERTS)[layer] >= 0).nonzero().flatten().tolist())
        slots = kernels.launcher.resolve(ids, cache, counters, layer * EXPERTS, layer * slots_each, slots_each)
        held = cache.slot_of.view(LAYERS, EXPERTS)[layer]
        after = set((held >= 0).nonzero().flatten().tolist())
        wanted = list(dict.fromkeys(ids.flatten().tolist()))
        absent = [expert for expert in wanted if expert not in before]
        assert len(after) == min(slots_each, len(before) + len(absent))
        gone, kept = before - after, (before & after) - set(wanted)
        assert all(last[layer][one] <= last[layer][other] for one in gone for other in kept)
        last[layer] |= dict.fromkeys(wanted, step)
        hits, misses = hits + len(wanted) - len(absent), misses + len(absent)
        assert counters.tolist() == [hits, misses]
        assert int(cache.num_moved) == len(absent)
        moved = cache.moved_experts[: len(absent)] - layer * EXPERTS
        assert moved.tolist() == absent
        assert len(set(cache.moved_slots[: len(absent)].tolist())) == len(absent)
        assert torch.equal(held[ids.long()], slots)
        assert bool(((slots >= layer * slots_each) & (slots < (layer + 1) * slots_each)).all())
        for expert in after:
            assert cache.expert_of[held[expert]] == layer * EXPERTS + expert


def test_what_the_step_uses_never_leaves(kernels: DeviceKernels) -> None:
    """Three are wanted and two slots are there: the third gets none."""
    cache, counters = empty_cache(8, 2, 3), torch.zeros(2, dtype=torch.int64)
    kernels.launcher.resolve(torch.tensor([[5]], dtype=torch.int32), cache, counters, 0, 0, 2)
    slots = kernels.launcher.resolve(torch.tensor([[1, 5, 2]], dtype=torch.int32), cache, counters, 0, 0, 2)
    assert slots.tolist() == [[1, 0, -1]]
    assert int(cache.num_moved) == 1


class Checkpoint:
    """Experts in slots of memory, each at its own place within its slot, with biases behind."""

    def __init__(self, name: str, hidden: int, wide: int) -> None:
        self.count = LAYERS * EXPERTS
        self.stride = 64 << 10
        self.memory = torch.zeros(self.count * self.stride + 4096, dtype=torch.uint8)
        self.start = -self.memory.data_ptr() % 4096
        self.table = ExpertTable(self.count)
        for expert in range(self.count):
            place = self.start + expert * self.stride + expert % 3 * 8
            parts = []
            for rows, cols in ((wide, hidden), (wide, hidden), (hidden, wide)):
                weight, values = (EXACT | FOUR_BIT)[name](rows, cols)
                changes = (
                    {"global_scale": weight.global_scale * (1 + expert % 2) / float(values.std()) / cols**0.5}
                    if weight.scales is not None
                    else {}
                )
                part, place = self._placed(weight, place, changes)
                parts.append(part)
            assert place <= self.start + (expert + 1) * self.stride
            self.table.set(expert, *parts)

    def _placed(self, weight: Weight, place: int, changes: dict[str, object]) -> tuple[Weight, int]:
        fields = {name: getattr(weight, name) for name in Weight.__slots__} | changes
        for name in ("data", "scales", "zeros"):
            if fields[name] is not None:
                self.memory[place : place + fields[name].nbytes] = fields[name]
                fields[name] = self.memory[place : place + fields[name].nbytes]
                place += -(-fields[name].nbytes // 8) * 8
        bias = torch.randn(weight.rows)
        own = self.memory[place : place + bias.nbytes].view(torch.float32)
        own[:] = bias
        return Weight(**fields | {"bias": own}), place + bias.nbytes

    def address(self, expert: int) -> int:
        return self.memory.data_ptr() + self.start + expert * self.stride


@pytest.mark.parametrize("name", ["bf16", "nvfp4"])
def test_a_layer_without_the_host(kernels: DeviceKernels, name: str) -> None:
    """Few slots, so that experts come and go; the sum is that of a table over the experts where they were."""
    torch.manual_seed(5)
    hidden, wide, slots_each = 64, 32, 6
    checkpoint = Checkpoint(name, hidden, wide)
    arena = torch.zeros(LAYERS * slots_each * checkpoint.stride + 4096, dtype=torch.uint8)
    first = arena.data_ptr() + -arena.data_ptr() % 4096
    described = describe(
        [(checkpoint.table, expert, checkpoint.address(expert)) for expert in range(checkpoint.count)], checkpoint.stride
    )
    experts = DeviceExperts(
        kernels, ExpertMath(), described,
        [checkpoint.address(expert) for expert in range(checkpoint.count)],
        [first + slot * checkpoint.stride for slot in range(LAYERS * slots_each)],
        checkpoint.stride, range(LAYERS), 2 * TOP_K,
    )  # fmt: skip
    seen, misses = [set[int]() for _ in range(LAYERS)], 0
    for step in range(5):
        layer, tokens = step % LAYERS, 1 + step // 2 % 2
        x, weights = torch.randn(tokens, hidden), torch.rand(tokens, TOP_K)
        ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens)]).int()
        y = experts(layer, x, ids, weights)
        expected = Reference().moe(checkpoint.table, x, ids + layer * EXPERTS, None, weights)
        assert expected is not None
        assert relative_error(y, expected.double()) < 2e-6
        misses += len(set(ids.flatten().tolist()) - seen[layer])
        seen[layer] |= set(ids.flatten().tolist())
    assert int(experts.counters[1]) >= misses > LAYERS * TOP_K
    assert experts.bytes_moved == int(experts.counters[1]) * checkpoint.stride
