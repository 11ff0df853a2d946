"""Machine and footprint and wishes to one frozen `Plan`, or the reason why there is none. Pure; nothing is decided after it."""

from dataclasses import dataclass, replace

from engine.config import Wishes
from engine.errors import EngineError
from engine.hardware.machine import Gpu, Machine
from engine.meter import Link
from engine.plan.footprint import Footprint, experts_resident, slots_kept
from engine.protocol import Plan, Tier
from engine.units import MB, TB, format_bytes, parse_bytes

PREFILL_CHUNK = 512  # tokens; larger chunks read each expert fewer times per prompt but need more workspace
LEAST_CHUNK, MOST_CHUNK = 64, 2048  # as far as rows of an embedding on disk are kept
DEFAULT_CONTEXT = 8192
SHORTEST_CONTEXT = 256
_RUNTIME_BYTES = 64 * MB  # what Python and torch take beyond what they have at the time of planning: 10 MB, and a margin
CACHED_ROWS = 2048  # of an embedding on disk: all tokens of a prefill chunk, and most that a text repeats
_LEAST_TABLE_BYTES = 64 * MB
_RESERVE_SHARE = 0.05  # of what is available, left to the rest of the computer
_CAPPED_RESERVE_SHARE = 0.01  # where a container caps this process, the rest of the computer has its memory already
LEAST_CARD_SLOTS = 2  # one to compute from and one to read into
_VRAM_RESERVE_SHARE = 0.08  # of a card's free memory: its driver, the screen, and what other programs take while this one runs


@dataclass(frozen=True, slots=True)
class _Vram:
    """What goes to the cards: the dense part, KV cache and workspace to the roomiest one, expert slots to all."""

    name: str = ""
    room: int = 0
    card_slots: tuple[int, ...] = ()
    kept: int = 0  # experts that stay there

    @property
    def has_dense(self) -> bool:
        return bool(self.card_slots)


def make_plan(
    machine: Machine,
    footprint: Footprint,
    wishes: Wishes,
    default_expert_ram: str | None = None,
) -> Plan:
    """Dense weights, KV cache, workspace and a reserve come first; experts get the rest, or what is wished for.

    `default_expert_ram` is the model's own suggestion, used where the person has none. Raises `EngineError` with the numbers
    and the nearest plan that works, before anything is allocated.
    """
    context, chunk = _context(footprint, wishes), _chunk(wishes)
    footprint = replace(footprint, kv_type=wishes.kv_type or footprint.kv_type)
    vram = _vram_use(machine, footprint, wishes.vram_limit, context, chunk)
    if vram.has_dense:
        in_ram = replace(footprint, dense_bytes=0)
    else:
        in_ram = _without_table(machine, footprint, wishes, default_expert_ram, context, chunk)
    fitting = None if vram.has_dense else _fitting_context(machine, in_ram, context, chunk)
    if wishes.context is None and fitting is not None and fitting < context:  # so short, a card may have room for it
        return make_plan(machine, footprint, replace(wishes, context=fitting), default_expert_ram)
    room = _room(machine, in_ram, context, chunk, has_cache=not vram.has_dense)
    if room < footprint.floor_bytes:
        raise _too_little(machine, in_ram, room, 0 if vram.has_dense else in_ram.kv_bytes(context, chunk), fitting)
    slots, why = _expert_slots(footprint, room, wishes.expert_ram, default_expert_ram)
    if vram.kept == footprint.experts_total and not wishes.expert_ram:
        slots = footprint.floor_slots  # they pass through RAM once
    layers = footprint.num_moe_layers
    plan = Plan(
        model_name=footprint.name,
        architecture=footprint.architecture,
        weight_format=footprint.weight_format,
        num_layers=layers,
        num_experts=footprint.num_experts,
        top_k=footprint.top_k,
        expert_bytes=footprint.expert_bytes,
        slots_per_layer=tuple(slots // layers + (layer < slots % layers) for layer in range(layers)),
        dense_bytes=footprint.dense_bytes if vram.has_dense else in_ram.dense_bytes,
        expert_ram_bytes=slots * footprint.slot_bytes,
        kv_bytes=footprint.kv_bytes(context, chunk),
        workspace_bytes=footprint.workspace_bytes(chunk, context),
        context=context,
        prefill_chunk=chunk,
        kv_type=footprint.kv_type,
        model_bytes=footprint.model_bytes,
        sentence=_vram_sentence(footprint, vram, slots) if vram.has_dense else _sentence(footprint, slots, why),
        card_slots=vram.card_slots,
    )
    return replace(plan, tiers=_tiers(machine, footprint, plan, vram))


def vram_rooms(machine: Machine) -> list[int]:
    """Bytes of each usable card that a model may take, the roomiest first."""
    return [int((gpu.vram_free or 0) * (1 - _VRAM_RESERVE_SHARE)) for gpu in _cards(machine)]


def allows_cards(limit: str | None) -> bool:
    """Whether any graphics memory may be taken. Raises `EngineError` for a limit that cannot be read."""
    return not limit or parse_bytes(limit, whole=TB) > 0


def least_vram(footprint: Footprint, context: int, chunk: int) -> int:
    """Bytes of one card without which none is used: layers are not split."""
    fixed = footprint.dense_bytes + footprint.kv_bytes(context, chunk) + footprint.workspace_bytes(chunk, context)
    return fixed + LEAST_CARD_SLOTS * footprint.slot_bytes


def _cards(machine: Machine) -> list[Gpu]:
    return sorted((gpu for gpu in machine.gpus if gpu.is_usable), key=lambda gpu: gpu.vram_free or 0, reverse=True)


def _vram_use(machine: Machine, footprint: Footprint, limit: str | None, context: int, chunk: int) -> _Vram:
    """The roomiest card is filled first, since layers run there."""
    rooms, least = vram_rooms(machine), least_vram(footprint, context, chunk)
    allowed = parse_bytes(limit, whole=sum(rooms)) if limit else sum(rooms)
    if not rooms or rooms[0] < least or not allowed:
        return _Vram()
    if allowed < least:
        raise EngineError(
            "plan.vram_limit",
            f"{limit} of graphics memory is too little: the dense weights, the context and {LEAST_CARD_SLOTS} experts "
            f"take {format_bytes(least)}.",
            f"Set the graphics memory to {-(-least // MB)}MB or more, or to 0 to leave the graphics card unused, "
            "or ask for a shorter context.",
        )
    fixed, missing = least - LEAST_CARD_SLOTS * footprint.slot_bytes, footprint.experts_total
    card_slots, left = list[int](), allowed
    for place, room in enumerate(rooms):
        taken = 0 if place else fixed
        slots = min(missing, (min(room, left) - taken) // footprint.slot_bytes)
        if 0 < missing - slots < LEAST_CARD_SLOTS < slots and place < len(rooms) - 1:
            slots -= LEAST_CARD_SLOTS - (missing - slots)  # so that the next card has enough to be used
        if slots < LEAST_CARD_SLOTS:
            break
        card_slots.append(slots)
        missing -= slots
        left -= taken + slots * footprint.slot_bytes
    kept = slots_kept(card_slots, footprint.top_k, footprint.experts_total)
    names = [gpu.name for gpu, _ in zip(_cards(machine), card_slots, strict=False)]
    return _Vram(" + ".join(names), min(allowed, sum(rooms)), tuple(card_slots), kept)


def _tiers(machine: Machine, footprint: Footprint, plan: Plan, vram: _Vram) -> tuple[Tier, ...]:
    """From the fastest to the slowest, with what each holds."""
    slots, room = sum(plan.slots_per_layer), machine.ram_available - reserve_bytes(machine)
    dense, kv, workspace = plan.dense_bytes, plan.kv_bytes, plan.workspace_bytes
    held = sum(vram.card_slots)
    on_card = Tier(Link.VRAM, vram.name, vram.room, dense, kv, workspace, held * footprint.slot_bytes, vram.kept)
    kept = (0, 0, 0) if vram.has_dense else (dense, kv, workspace)
    in_ram = Tier(Link.RAM, "RAM", room, *kept, plan.expert_ram_bytes, slots)
    drive = machine.drives[0] if machine.drives else None
    free = (drive.free_bytes if drive else None) or 0
    on_drive = Tier(Link.DISK, drive.device if drive else "", free, model=footprint.model_bytes)
    return (on_card, in_ram, on_drive) if vram.has_dense else (in_ram, on_drive)


def _without_table(
    machine: Machine, footprint: Footprint, wishes: Wishes, default_expert_ram: str | None, context: int, chunk: int
) -> Footprint:
    """An embedding table that is only looked up stays on disk where some experts would have to: a token reads one row of it."""
    everything = footprint.experts_total * footprint.slot_bytes
    is_small = footprint.looked_up_bytes < _LEAST_TABLE_BYTES
    if is_small or wishes.expert_ram or default_expert_ram or _room(machine, footprint, context, chunk) >= everything:
        return footprint
    cached = CACHED_ROWS * (footprint.looked_up_bytes // footprint.vocab_size)
    return replace(footprint, dense_bytes=footprint.dense_bytes - footprint.looked_up_bytes + cached)


def reserve_bytes(machine: Machine) -> int:
    """What stays free."""
    return int((_CAPPED_RESERVE_SHARE if machine.is_capped else _RESERVE_SHARE) * machine.ram_available)


def _room(machine: Machine, footprint: Footprint, context: int, chunk: int, *, has_cache: bool = True) -> int:
    """Bytes left for experts; `has_cache` where the KV cache and the workspace are in RAM too."""
    fixed = footprint.dense_bytes
    if has_cache:
        fixed += footprint.kv_bytes(context, chunk) + footprint.workspace_bytes(chunk, context)
    return machine.ram_available - fixed - _RUNTIME_BYTES - reserve_bytes(machine)


def _fitting_context(machine: Machine, footprint: Footprint, wanted: int, chunk: int) -> int | None:
    """The wanted context or the first of its halves that leaves room for the experts' floor; None if none does."""
    context = wanted
    while _room(machine, footprint, context, chunk) < footprint.floor_bytes:
        context //= 2
        if context < SHORTEST_CONTEXT:
            return None
    return context


def _context(footprint: Footprint, wishes: Wishes) -> int:
    if wishes.context is None:
        return min(DEFAULT_CONTEXT, footprint.max_context)
    shortest = min(16, footprint.max_context)
    if not shortest <= wishes.context <= footprint.max_context:
        raise EngineError(
            "plan.context",
            f"A context of {wishes.context} tokens is not possible: "
            f"{footprint.name} takes {shortest} to {footprint.max_context}.",
            f"Ask for a context of {min(max(shortest, wishes.context), footprint.max_context)}.",
        )
    return wishes.context


def _chunk(wishes: Wishes) -> int:
    if wishes.prefill_chunk is None:
        return PREFILL_CHUNK
    if not LEAST_CHUNK <= wishes.prefill_chunk <= MOST_CHUNK:
        raise EngineError(
            "plan.prefill_chunk",
            f"{wishes.prefill_chunk} tokens of a prompt cannot be read at once: it takes {LEAST_CHUNK} to {MOST_CHUNK}.",
            f"Ask for {min(max(LEAST_CHUNK, wishes.prefill_chunk), MOST_CHUNK)}.",
        )
    return wishes.prefill_chunk


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


def _too_little(machine: Machine, footprint: Footprint, room: int, kv_bytes: int, fitting: int | None) -> EngineError:
    limit = "this container allows" if machine.is_capped else "is available"
    needed = machine.ram_available - room + footprint.floor_bytes
    parts = {"dense weights": footprint.dense_bytes, "experts": footprint.floor_bytes, "context": kv_bytes}
    words = ", ".join(f"{format_bytes(nbytes)} {part}" for part, nbytes in parts.items() if nbytes)
    return EngineError(
        "plan.too_little_memory",
        f"{footprint.name} needs {format_bytes(needed)} of memory at least "
        f"({words}, the rest to run), and {format_bytes(machine.ram_available)} {limit}.",
        f"Ask for a context of {fitting}." if fitting else "Close other programs, or take a smaller model.",
    )


def _vram_sentence(footprint: Footprint, vram: _Vram, ram_slots: int) -> str:
    total = footprint.experts_total
    if vram.kept == total:
        return f"Everything fits into the memory of {vram.name}."
    where = f"{vram.kept} of {total} experts in VRAM beside the dense weights"
    if ram_slots == total:
        return f"{where}, all of them in RAM."
    rest = total - experts_resident(vram.card_slots, ram_slots, footprint.top_k, total)
    return f"{where}, {ram_slots} in RAM" + (f"; {rest} are read from disk when a token needs them." if rest else ".")


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
