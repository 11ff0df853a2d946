"""The Triton kernels compiled for cards that are not here, as launched for a matrix: what the interpreter does not see.

Not for a process in which the interpreter is on.
"""

from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_for

from engine.kernels.gpu.jit import combine, gather, matmul, matvec, resolve
from engine.kernels.gpu.launch import (
    COMBINE_WARPS,
    COMBINE_WIDTH,
    GATHER_CHUNK,
    GATHER_WARPS,
    MATMUL,
    MATVEC,
    RESOLVE_SLOTS_A_WARP,
    Launch,
)
from engine.kernels.gpu.shape import MatrixShape

_STEPS = ("i32", "constexpr", "i32", "constexpr", "i32", "i32")  # columns and groups lie side by side
_POINTERS = {"words": "*i64", "slots": "*i32", "order": "*i32", "outputs": "*fp32", "y": "*fp32", "weights": "*fp32"}
_FLOATS = ("alpha", "limit", "factor")
_ADDRESSES = ("data", "scales", "zeros", "bias")
_NOT_ALIGNED = ("slots", "order", "block_slots", "block_firsts", "block_ends")


def compiled(kernel: Any, capability: int, types: dict[str, str], constants: dict[str, Any], warps: int, stages: int) -> Any:
    """`types` of the pointers beyond the usual ones."""
    signature: dict[str, Any] = {}
    constexprs: dict[tuple[int, ...], Any] = {}
    hints: dict[tuple[int, ...], Any] = {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], constexprs[(place,)] = "constexpr", constants[name]
        elif name == "steps":
            signature[name] = _STEPS
            constexprs |= {(place, index): 1 for index, kind in enumerate(_STEPS) if kind == "constexpr"}
            hints |= {(place, index): [["tt.divisibility", 16]] for index in (0, 2)}
        else:
            usual = "fp32" if name in _FLOATS else "i64" if name in _ADDRESSES else "i32"
            signature[name] = (_POINTERS | types).get(name, usual)
            if name not in (*_FLOATS, *_NOT_ALIGNED):
                hints[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=hints)
    return compile_for(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": stages})


def of_matrix(shape: MatrixShape, capability: int, operands: str, activation: str = "SILU") -> dict[str, Any]:
    """Every kernel that multiplies by such a matrix, by name."""
    few, many = MATVEC[shape.form.format], MATMUL[shape.form.format]
    tile = {"F": shape.form, "ROWS": few.rows, "WIDTH": shape.width(few.width)}
    batch = {"F": shape.form, "TOKENS": many.tokens, "ROWS": many.rows, "WIDTH": shape.width(many.width)}
    lists = dict.fromkeys(("block_slots", "block_firsts", "block_ends"), "*i32")

    def make(kernel: Any, types: dict[str, str], constants: dict[str, Any], launch: Launch) -> Any:
        return compiled(kernel, capability, types, constants, launch.warps, launch.stages)

    return {
        "matvec.linear": make(matvec.linear, {"x": "*fp32"}, tile, few),
        "matvec.gate_up": make(
            matvec.gate_up,
            {"x": "*fp32", "mixed": "*fp32"},
            tile | {"ACTIVATION": activation, "PARTED": shape.form.is_packed},
            few,
        ),
        "matvec.down": make(matvec.down, {"mixed": "*fp32"}, tile, few),
        "matmul.linear": make(matmul.linear, {"x": operands}, batch, many),
        "matmul.gate_up": make(
            matmul.gate_up,
            lists | {"x": operands, "mixed": operands},
            batch | {"ACTIVATION": activation, "PARTED": shape.form.is_packed},
            many,
        ),
        "matmul.down": make(matmul.down, lists | {"mixed": operands}, batch, many),
    }


def of_cache(capability: int, num_slots: int = 4096) -> dict[str, Any]:
    """Those that move experts, and the sum."""
    integers = dict.fromkeys(("ids", "slot_of", "expert_of", "moved_experts", "moved_slots", "num_moved"), "*i32")
    words = dict.fromkeys(("stamps", "clock", "counters", "sources", "targets", "relative", "is_inside"), "*i64")
    types = integers | words
    return {
        "resolve": compiled(
            resolve.resolve, capability, types, {"PAIRS": 8, "SLOTS": num_slots}, max(1, num_slots // RESOLVE_SLOTS_A_WARP), 1
        ),
        "gather": compiled(gather.gather, capability, types, {"CHUNK": GATHER_CHUNK, "WORDS_TILE": 64}, GATHER_WARPS, 1),
        "combine": compiled(combine.combine, capability, types, {"WIDTH": COMBINE_WIDTH}, COMBINE_WARPS, 1),
    }
