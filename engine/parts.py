"""What a session runs on, put together as planned: checkpoint, tiers, experts and model. The one place that joins them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from engine.captured import Captured, CudaGraphs
from engine.checkpoint.experts import Run
from engine.devices import open_tiers, start_lanes
from engine.experts.bind import ExpertBinder
from engine.experts.budget import SlotBudget
from engine.experts.cache import ExpertCache
from engine.experts.device_lanes import DeviceLanes
from engine.experts.heat import hottest
from engine.experts.lanes import CpuLane
from engine.experts.on_device import OnDevice
from engine.experts.policy import Expert, Heat
from engine.experts.run import ExpertRunner
from engine.experts.table import SlotTable
from engine.experts.vram import Device
from engine.hardware.probe import probe
from engine.kernels.kernels import Kernels
from engine.kv.cache import KvCache
from engine.meter import Link, Meter
from engine.models.decoder import Decoder
from engine.models.lookahead import NextRouter
from engine.plan.footprint import guest_slots
from engine.plan.plan import CACHED_ROWS, reserve_bytes
from engine.protocol import Plan
from engine.session import Parts
from engine.source import EMBEDDING, Source
from engine.tiers.arena import RamArena
from engine.tiers.dense import load_placed
from engine.tiers.disk import DiskReader
from engine.tiers.rows import RowStore

_WARM_SECONDS = 3.0  # of loading, for what would otherwise be read when first needed

LoadProgress = Callable[[str, int, int], None]  # (stage, done bytes, total bytes)


def open_parts(
    source: Source,
    plan: Plan,
    reader: DiskReader,
    kernels: Kernels,
    progress: LoadProgress = lambda *_: None,
    heat: Mapping[Expert, float] | None = None,
    room: Callable[[], int] = lambda: probe().ram_available,
    devices: Sequence[Device] = (),
    kept_path: Any = None,
) -> Parts:
    """Dense weights into memory, expert slots and KV cache as planned. Raises `EngineError`, with devices `DeviceLost`.

    `heat` is that of an earlier run, for a warm start; `room()` what this process may still take, watched from now on. With
    `devices`, those that the plan has slots for, the model runs on the first of them; `kept_path` is what `MissPath.kept`
    gave there.
    """
    experts, footprint, meter = source.experts, source.footprint, Meter()
    reserve = reserve_bytes(probe()) // 2  # the plan leaves twice that
    arena = RamArena(footprint.slot_bytes, sum(plan.slots_per_layer))
    arena.populate()
    rows = _rows_on_disk(source, plan, reader)
    dense = [ref for ref in source.dense.refs if rows is None or ref.name != EMBEDDING]
    small_refs = experts.small_refs()
    device = devices[0].device if devices else torch.device("cpu")
    placed, small = load_placed(
        reader, dense, small_refs, device, lambda done, total: progress("Reading the dense weights", done, total)
    )
    policy = Heat(experts.layers, experts.num_experts)
    cache = ExpertCache(experts.layers, plan.slots_per_layer, policy, guest_slots(footprint.top_k))
    binder = ExpertBinder(experts, source.expert_format, small)
    binder.check_resident()
    binder.check_layout(arena.tensor(0), kernels.check)
    main = devices[0].kernels if devices else kernels
    if rows is not None:
        placed[EMBEDDING] = rows.data
    weights = source.dense.bind(placed, main.check, shortened=[] if rows is None else [EMBEDDING])
    if rows is not None:
        stem = EMBEDDING.removesuffix(".weight")
        weights.matrices[stem] = replace(weights.matrices[stem], rows=rows.capacity)
    names = source.architecture
    look_ahead = NextRouter(weights, names.router, names.norm, names.table, experts.layers, footprint.top_k, main)
    budget = SlotBudget(cache, arena, guest_slots(footprint.top_k), reserve, room)
    table = SlotTable(arena, binder, kernels)
    cpu = CpuLane(table, kernels, source.config.math, meter, experts.expert_bytes)
    lanes: CpuLane | DeviceLanes = cpu
    if devices:
        tiers = open_tiers(devices, experts, source.expert_format, small, footprint, plan.card_slots)
        lanes = DeviceLanes(
            tiers, cpu, arena, source.config.math, meter, experts.expert_bytes, footprint.hidden_size, footprint.top_k
        )
    runner = ExpertRunner(experts, cache, arena, table, reader, lanes, meter, look_ahead, budget)
    kv = KvCache(
        footprint.num_layers, footprint.num_kv_heads, footprint.head_dim, plan.context, device, plan.kv_type,
        source.config.kept_windows, plan.prefill_chunk, source.config.kept_compressed,
    )  # fmt: skip
    model = source.architecture.load().build(source.config, weights, main)
    if heat:
        policy.warm(heat)
        wanted = hottest(heat, cache.member_slots)
        runner.load(wanted, _WARM_SECONDS, lambda done: progress("Reading the experts used last", done, len(wanted)))
    if isinstance(lanes, DeviceLanes):
        start_lanes(lanes, runner, kept_path)
        until = time.monotonic() + _WARM_SECONDS
        lanes.warm(heat or {}, lambda wanted: runner.bring(wanted, until - time.monotonic()))
        if len(lanes.tiers) == 1:
            lanes.on_device = OnDevice(
                lanes.tiers[0], experts.layers, experts.num_experts, source.config.math, arena, footprint.top_k, runner.whole
            )
    captured = None
    if isinstance(lanes, DeviceLanes) and lanes.on_device is not None and device.type == "cuda" and isinstance(model, Decoder):
        captured = Captured(model, kv, lanes.on_device, CudaGraphs(device))
    dense_link, hot = (Link.VRAM, lanes.heat) if isinstance(lanes, DeviceLanes) else (Link.RAM, policy.heat)
    return Parts(
        model, kv, runner, hot, meter, footprint.dense_read_bytes, rows, dense_link, plan.prefill_chunk, look_ahead.announce,
        captured,
    )  # fmt: skip


def _rows_on_disk(source: Source, plan: Plan, reader: DiskReader) -> RowStore | None:
    """The embedding table where the plan leaves it on disk."""
    if plan.dense_bytes == source.footprint.dense_bytes:
        return None
    ref = source.checkpoint.tensor(EMBEDDING)
    return RowStore(reader, Run(ref.file, ref.offset, ref.nbytes), ref.nbytes // ref.shape[0], CACHED_ROWS)
