"""Machine and footprint and wishes to one frozen `Plan`, or the reason why there is none. Pure; nothing is decided after it."""

from dataclasses import replace

from engine.config import Wishes
from engine.errors import EngineError
from engine.hardware.machine import Machine
from engine.plan.footprint import Footprint
from engine.protocol import Plan
from engine.units import GB, MB, format_bytes, parse_bytes

PREFILL_CHUNK = 512  # tokens; larger chunks read each expert fewer times per prompt but need more workspace
_DEFAULT_CONTEXT = 8192
_SHORTEST_CONTEXT = 256
_RUNTIME_BYTES = int(0.15 * GB)  # what Python and torch take beyond what they have at the time of planning
CACHED_ROWS = 2048  # of an embedding on disk: all tokens of a prefill chunk, and most that a text repeats
_LEAST_TABLE_BYTES = 64 * MB
_RESERVE_SHARE = 0.05  # of what is available, left to the rest of the computer
_CAPPED_RESERVE_SHARE = 0.01  # where a container caps this process, the rest of the computer has its memory already


def make_plan(machine: Machine, footprint: Footprint, wishes: Wishes, default_expert_ram: str | None = None) -> Plan:
    """Dense weights, KV cache, workspace and a reserve come first; experts get the rest, or what is wished for.

    `default_expert_ram` is the model's own suggestion, used where the person has none. Raises `EngineError` with the
    numbers and the nearest plan that works, before anything is allocated.
    """
    context = _context(footprint, wishes)
    footprint = _without_table(machine, footprint, wishes, default_expert_ram, context)
    fitting = _fitting_context(machine, footprint, context)
    if wishes.context is None and fitting is not None:
        context = fitting
    room = _room(machine, footprint, context)
    if room < footprint.floor_bytes:
        raise _too_little(machine, footprint, context, fitting)
    kv, workspace = footprint.kv_bytes_per_token * context, footprint.workspace_bytes(PREFILL_CHUNK, context)
    slots, why = _expert_slots(footprint, room, wishes.expert_ram, default_expert_ram)
    layers = footprint.num_moe_layers
    return Plan(
        model_name=footprint.name,
        architecture=footprint.architecture,
        weight_format=footprint.weight_format,
        num_layers=layers,
        num_experts=footprint.num_experts,
        top_k=footprint.top_k,
        expert_bytes=footprint.expert_bytes,
        slots_per_layer=tuple(slots // layers + (layer < slots % layers) for layer in range(layers)),
        dense_bytes=footprint.dense_bytes,
        expert_ram_bytes=slots * footprint.slot_bytes,
        kv_bytes=kv,
        workspace_bytes=workspace,
        context=context,
        model_bytes=footprint.model_bytes,
        sentence=_sentence(footprint, slots, why),
    )


def _without_table(
    machine: Machine, footprint: Footprint, wishes: Wishes, default_expert_ram: str | None, context: int
) -> Footprint:
    """An embedding table that is only looked up stays on disk where some experts would have to: a token reads one row of it."""
    everything = footprint.experts_total * footprint.slot_bytes
    is_small = footprint.looked_up_bytes < _LEAST_TABLE_BYTES
    if is_small or wishes.expert_ram or default_expert_ram or _room(machine, footprint, context) >= everything:
        return footprint
    cached = CACHED_ROWS * (footprint.looked_up_bytes // footprint.vocab_size)
    return replace(footprint, dense_bytes=footprint.dense_bytes - footprint.looked_up_bytes + cached)


def reserve_bytes(machine: Machine) -> int:
    """What stays free."""
    return int((_CAPPED_RESERVE_SHARE if machine.is_capped else _RESERVE_SHARE) * machine.ram_available)


def _room(machine: Machine, footprint: Footprint, context: int) -> int:
    """Bytes left for experts."""
    fixed = footprint.dense_bytes + footprint.kv_bytes_per_token * context + footprint.workspace_bytes(PREFILL_CHUNK, context)
    return machine.ram_available - fixed - _RUNTIME_BYTES - reserve_bytes(machine)


def _fitting_context(machine: Machine, footprint: Footprint, wanted: int) -> int | None:
    """The wanted context or the first of its halves that leaves room for the experts' floor; None if none does."""
    context = wanted
    while _room(machine, footprint, context) < footprint.floor_bytes:
        context //= 2
        if context < _SHORTEST_CONTEXT:
            return None
    return context


def _context(footprint: Footprint, wishes: Wishes) -> int:
    if wishes.context is None:
        return min(_DEFAULT_CONTEXT, footprint.max_context)
    shortest = min(16, footprint.max_context)
    if not shortest <= wishes.context <= footprint.max_context:
        raise EngineError(
            "plan.context",
            f"A context of {wishes.context} tokens is not possible: "
            f"{footprint.name} takes {shortest} to {footprint.max_context}.",
            f"Ask for a context of {min(max(shortest, wishes.context), footprint.max_context)}.",
        )
    return wishes.context


def _expert_slots(footprint: Footprint, room: int, wished: str | None, suggested: str | None) -> tuple[int, str]:
    """Slots in all, and the reason for that number."""
    total, fitting = footprint.experts_total, room // footprint.slot_bytes
    if wished:
        return _wished_slots(footprint, room, wished), f"the memory for experts is set to {wished}"
    if suggested and (slots := _suggested_slots(footprint, suggested)) < fitting:
        return slots, f"this model suggests {suggested} of memory for experts, to show them moving"
    return (total, "") if fitting >= total else (fitting, f"{format_bytes(room)} of memory is free for them")


def _wished_slots(footprint: Footprint, room: int, wished: str) -> int:
    slots, floor = _slots_of(footprint, wished), footprint.floor_slots
    if slots < floor:
        raise EngineError(
            "plan.below_floor",
            f"{wished} of memory for experts holds {slots}; {footprint.name} needs {floor} at once "
            f"({footprint.top_k} are chosen for each token, and the next layer's are read meanwhile).",
            f"Set the memory for experts to {-(-footprint.floor_bytes // MB)}MB or more.",
        )
    if slots > room // footprint.slot_bytes:
        raise EngineError(
            "plan.too_much",
            f"{wished} of memory for experts is {format_bytes(slots * footprint.slot_bytes)}, "
            f"but {format_bytes(room)} is free for experts.",
            f"Set the memory for experts to {room // MB}MB or less, or ask for a shorter context.",
        )
    return slots


def _suggested_slots(footprint: Footprint, suggested: str) -> int:
    """A suggestion never stands in the way: unreadable ones are ignored, small ones raised to what runs."""
    try:
        slots = _slots_of(footprint, suggested)
    except EngineError:
        return footprint.experts_total
    return max(slots, footprint.floor_slots)


def _slots_of(footprint: Footprint, budget: str) -> int:
    if budget.strip().endswith("%"):
        return parse_bytes(budget, whole=footprint.experts_total)
    return min(footprint.experts_total, parse_bytes(budget, whole=footprint.experts_total) // footprint.slot_bytes)


def _too_little(machine: Machine, footprint: Footprint, context: int, fitting: int | None) -> EngineError:
    limit = "this container allows" if machine.is_capped else "is available"
    needed = machine.ram_available - _room(machine, footprint, context) + footprint.floor_bytes
    kv = footprint.kv_bytes_per_token * context
    return EngineError(
        "plan.too_little_memory",
        f"{footprint.name} needs {format_bytes(needed)} of memory at least "
        f"({format_bytes(footprint.dense_bytes)} dense weights, {format_bytes(footprint.floor_bytes)} experts, "
        f"{format_bytes(kv)} context, the rest to run), and {format_bytes(machine.ram_available)} {limit}.",
        f"Ask for a context of {fitting}." if fitting else "Close other programs, or take a smaller model.",
    )


def _sentence(footprint: Footprint, slots: int, why: str) -> str:
    total = footprint.experts_total
    all_bytes = total * footprint.expert_bytes
    if slots == total:
        return f"All {total} experts ({format_bytes(all_bytes)}) stay in RAM: each is read from disk once, when first needed."
    resident, per_layer = slots * footprint.expert_bytes, slots // footprint.num_moe_layers
    return (
        f"{slots} of {total} experts ({format_bytes(resident)} of {format_bytes(all_bytes)}) stay in RAM, about {per_layer} of "
        f"{footprint.num_experts} in each layer; the others are read from disk when a token needs them, because {why}."
    )
