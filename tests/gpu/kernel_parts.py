"""Parts of `tests.gpu.run_all` without a model: the kernels against float64, the link, and a captured step against an eager one."""

from dataclasses import replace
from typing import Any

import torch

from engine.kernels.gpu.cache import Bank, Cache, Described
from engine.kernels.gpu.experts import DeviceExperts
from engine.kernels.gpu.shape import WORDS, Form, MatrixShape
from engine.kernels.native import ExpertTable
from engine.kernels.weights import Activation, ExpertMath, Weight
from engine.tiers.arena import BLOCK, RamArena, align_up
from engine.tiers.vram import VramArena
from tests.gpu.described import describe
from tests.gpu.layers import make_layer, moved, route
from tests.gpu.setting import Row, Setting
from tests.kernels.matrices import relative_error
from tests.kernels.test_moe import exact_moe

_FORMATS = ("bf16", "fp8-128", "mxfp4", "nvfp4", "int4-32-zeros-f16")
_EXPERTS, _COPIES, _TOP_K = 8, 8, 8  # different ones, and how often each is in memory, so that no cache holds them all
_AT_ONCE = 8


def kernels(setting: Setting) -> list[Row]:
    """Errors against float64, GB/s of weights for a token, and arithmetic for batches."""
    sizes, device = setting.sizes, setting.device.device
    setting.rates["vram"] = _read_gbps(setting)
    rows: list[Row] = [{"what": "memory read", "GB/s": setting.rates["vram"]}]
    for name in _FORMATS:
        torch.manual_seed(1)
        layer = make_layer(name, hidden=sizes.hidden, wide=sizes.wide, experts=_EXPERTS, device=device)
        table = ExpertTable(_EXPERTS * _COPIES)
        for slot in range(len(table)):
            gate, up, down = layer[0].get(slot % _EXPERTS)
            assert gate is not None
            table.set(slot, *(moved(part, device) for part in (gate, up, down)))
        table.words = torch.frombuffer(table.entries, dtype=torch.int64).view(len(table), WORDS).to(device)
        each = sum(part.data.nbytes + (0 if part.scales is None else part.scales.nbytes) for part in table.get(0) if part)
        for tokens in sizes.batches:
            x, (ids, weights) = torch.randn(tokens, sizes.hidden), route(tokens, _TOP_K, _EXPERTS)
            exact_rows = min(tokens, 8)
            exact = exact_moe(layer, x[:exact_rows], ids[:exact_rows], weights[:exact_rows], Activation.SILU, 1.702, 7.0)
            there = [part.to(device) for part in (x, ids, weights)]
            y = setting.kernels.moe(table, there[0], there[1], None, there[2])
            assert y is not None
            turns = [((there[1] + _EXPERTS * turn) % len(table)).contiguous() for turn in range(_COPIES)]  # elsewhere in memory
            outputs = torch.empty(tokens, _TOP_K, sizes.hidden, device=device)

            def every() -> None:
                for slots in turns:  # noqa: B023
                    setting.kernels.moe(table, there[0], slots, outputs, there[2])  # noqa: B023

            seconds = setting.seconds(setting.captured(every) if tokens == 1 else every) / _COPIES
            flops = 6 * tokens * _TOP_K * sizes.hidden * sizes.wide
            rows.append({
                "what": f"{name}, {tokens} tokens", "error": relative_error(y[:exact_rows].cpu(), exact),
                "microseconds": seconds * 1e6, "GB/s": each * _TOP_K / seconds / 1e9 if tokens == 1 else None,
                "TFLOP/s": flops / seconds / 1e12 if tokens > 1 else None,
            })  # fmt: skip
    return rows


def _read_gbps(setting: Setting) -> float:
    memory = torch.zeros(setting.sizes.read_bytes // 8, dtype=torch.int64, device=setting.device.device)
    return memory.nbytes / setting.seconds(memory.sum) / 1e9


def link(setting: Setting) -> list[Row]:
    """Experts of several sizes from registered memory into slots: by copies and by the gather kernel."""
    rows: list[Row] = []
    device, launcher = setting.device.device, setting.kernels.launcher
    for wanted in setting.sizes.gathered_bytes:
        stride = align_up(wanted, BLOCK)
        ram, vram = RamArena(stride, 3 * _AT_ONCE), VramArena(setting.device.accelerator, stride, _AT_ONCE)
        for slot in range(ram.num_slots):
            ram.tensor(slot).random_(0, 256)
        registered = ram.register(setting.device.accelerator)
        turn = iter(range(1 << 30))

        def pairs(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            first = number % 3 * _AT_ONCE
            return [(ram.tensor(first + slot), vram.tensor(slot)) for slot in range(_AT_ONCE)]  # noqa: B023

        for _ in range(2):
            setting.device.accelerator.copy(pairs(0)).finish()
        busy = sum(setting.device.accelerator.copy(pairs(next(turn))).finish() for _ in range(setting.sizes.rounds))
        copied = _AT_ONCE * stride * setting.sizes.rounds / busy / 1e9
        setting.rates["link"] = max(setting.rates.get("link", 0.0), copied)
        row: Row = {"what": f"{stride / 1e6:.1f} MB", "registered": registered > 0, "copies GB/s": copied}
        if launcher is not None and registered:
            cache = _moves([list(range(number * _AT_ONCE, (number + 1) * _AT_ONCE)) for number in range(3)], device)
            nothing = torch.zeros(ram.num_slots, WORDS, dtype=torch.int64, device=device)
            bank = Bank(
                torch.tensor([ram.address(slot) for slot in range(ram.num_slots)], device=device),
                torch.tensor([vram.address(slot) for slot in range(_AT_ONCE)], device=device),
                Described(nothing, nothing, _ANY, _ANY),
                torch.zeros(_AT_ONCE, WORDS, dtype=torch.int64, device=device), stride,
            )  # fmt: skip
            seconds = setting.seconds(lambda: launcher.gather(cache[next(turn) % 3], bank))  # noqa: B023
            launcher.gather(cache[1], bank)
            row["gather GB/s"] = _AT_ONCE * stride / seconds / 1e9
            row["equal"] = all(torch.equal(vram.tensor(slot).cpu(), ram.tensor(_AT_ONCE + slot)) for slot in range(_AT_ONCE))
            setting.rates["link"] = max(setting.rates["link"], row["gather GB/s"])
        rows.append(row)
        ram.give_back(0)
    return rows


_FORM = Form("F32", "NONE", 0, 0, has_zeros=False, zero_offset=0, bias="NONE", is_packed=False)
_ANY = MatrixShape(_FORM, 32, 32, (32, 1, 0, 0, 0, 0))  # nothing is multiplied by it


def _moves(lists: list[list[int]], device: torch.device) -> list[Cache]:
    none = torch.zeros(1, dtype=torch.int32, device=device)
    slots = torch.arange(_AT_ONCE, dtype=torch.int32, device=device)
    count = torch.tensor([_AT_ONCE], dtype=torch.int32, device=device)
    return [
        Cache(none, none, none, none, torch.tensor(experts, dtype=torch.int32, device=device), slots, count)
        for experts in lists
    ]


def graph(setting: Setting) -> list[Row]:
    """A step with look-up, gather and sum captured once and replayed, against the same eagerly."""
    if setting.kernels.launcher is None:
        return [{"what": "skipped", "why": "Triton does not run here"}]
    sizes, device, experts, layers = setting.sizes, setting.device.device, 16, 2
    layer = make_layer("mxfp4", hidden=sizes.hidden, wide=sizes.wide, experts=experts * layers)
    stride = align_up(sum(_part_bytes(part) for part in layer[0].get(0)) + BLOCK)
    ram = RamArena(stride, experts * layers)
    table = ExpertTable(ram.num_slots)
    for slot in range(ram.num_slots):
        table.set(slot, *_placed(layer[0], slot, ram.tensor(slot)))
    if not setting.is_simulated and not ram.register(setting.device.accelerator):
        return [{"what": "skipped", "why": "the system does not let the card read memory"}]
    described = describe([(table, slot, ram.address(slot)) for slot in range(ram.num_slots)], stride)
    sources = [ram.address(slot) for slot in range(ram.num_slots)]

    def made() -> DeviceExperts:
        arena = VramArena(setting.device.accelerator, stride, 10 * layers)
        arenas.append(arena)
        targets = [arena.address(slot) for slot in range(arena.num_slots)]
        return DeviceExperts(setting.kernels, ExpertMath(), described, sources, targets, stride, range(layers), _TOP_K)

    arenas: list[VramArena] = []
    eager, captured = made(), made()
    x, ids = torch.zeros(1, sizes.hidden, device=device), torch.zeros(1, _TOP_K, dtype=torch.int32, device=device)
    weights = torch.zeros(1, _TOP_K, device=device)

    def step(with_experts: DeviceExperts) -> torch.Tensor:
        y = x
        for number in range(layers):
            y = y + with_experts(number, y, ids, weights)
        return y

    step(captured)
    setting.wait()
    is_captured = device.type == "cuda"
    if is_captured:
        replay = torch.cuda.CUDAGraph()
        with torch.cuda.graph(replay):
            result = step(captured)
    step(eager)
    differing = 0
    for _ in range(12):
        x.copy_(torch.randn(1, sizes.hidden))
        (chosen, shares) = route(1, _TOP_K, experts)
        ids.copy_(chosen)
        weights.copy_(shares)
        if is_captured:
            replay.replay()
        else:
            result = step(captured)
        differing += not torch.equal(result, step(eager))
    same_counts = torch.equal(eager.counters, captured.counters) if not is_captured else None
    row: Row = {"what": "12 steps of 2 layers", "captured": is_captured, "differing": differing, "same counts": same_counts}
    row["eager microseconds"] = setting.seconds(lambda: step(eager)) * 1e6
    if is_captured:
        row["replay microseconds"] = setting.seconds(replay.replay) * 1e6
    return [row]


def _part_bytes(part: object) -> int:
    tensors = [getattr(part, name) for name in ("data", "scales", "zeros", "bias")]
    return sum(align_up(tensor.nbytes, 16) for tensor in tensors if tensor is not None)


def _placed(table: ExpertTable, slot: int, memory: torch.Tensor) -> list[Weight]:
    """An expert's matrices with everything that they point to in `memory`."""
    place, parts = 0, []
    for part in table.get(slot):
        assert part is not None
        changes: dict[str, Any] = {}
        for name in ("data", "scales", "zeros", "bias"):
            tensor = getattr(part, name)
            if tensor is None:
                continue
            own = memory[place : place + tensor.nbytes]
            own[:] = tensor.contiguous().view(torch.uint8)
            changes[name] = own.view(tensor.dtype)
            place += align_up(tensor.nbytes, 16)
        parts.append(replace(part, **changes))
    return parts
