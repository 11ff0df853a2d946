"""How the kernels of a device are launched: sizes of tiles, warps and stages, and the shared memory that they take.

Unmeasured: chosen so that every tile fits every card from sm_75 on.
"""

from dataclasses import dataclass, replace

from engine.kernels.gpu.shape import Form

SHARED_BYTES = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""That one program may have, by compute capability. Source: CUDA C++ Programming Guide, technical specifications."""

FEW_TOKENS = 4  # up to here a row of x at a time; beyond, matrices are decoded for several at once
_CODE_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "E4M3": 1}
_SUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """A program makes `tokens` x `rows` numbers, `width` columns at a time."""

    tokens: int
    rows: int
    width: int
    warps: int
    stages: int = 1

    def narrowed(self, tokens: int) -> "Launch":
        return replace(self, tokens=min(tokens, self.tokens))

    def shared_bytes(self, form: Form, operand_bytes: int) -> int:
        """The most that its tiles take: each stage has its own codes and x, the decoded weights are there once, and the sums
        pass through where threads exchange them."""
        codes = self.rows * self.width * _CODE_BYTES.get(form.format, 1) // (2 if form.is_packed else 1)
        x, sums = self.tokens * self.width * operand_bytes, self.tokens * self.rows * _SUM_BYTES
        return self.stages * (x + codes) + self.rows * self.width * max(operand_bytes, _SUM_BYTES) + sums


MATVEC = {
    "F32": Launch(1, 4, 256, 4),
    "F16": Launch(1, 8, 256, 4),
    "BF16": Launch(1, 8, 256, 4),
    "E4M3": Launch(1, 8, 512, 4),
    "E2M1": Launch(1, 8, 512, 4),
    "INT4": Launch(1, 8, 512, 4),
}
MATMUL = {
    "F32": Launch(32, 32, 32, 4, 2),
    "F16": Launch(64, 64, 64, 4, 2),
    "BF16": Launch(64, 64, 64, 4, 2),
    "E4M3": Launch(64, 64, 64, 4, 2),
    "E2M1": Launch(64, 64, 64, 4, 2),
    "INT4": Launch(64, 64, 64, 4, 2),
}
FEW_PAIRS = 16  # of one expert in a batch, on average: then a tile of as many, since tl.dot takes no fewer
COMBINE_WIDTH, COMBINE_WARPS = 1024, 4
GATHER_CHUNK, GATHER_WARPS, GATHER_PROGRAMS = 2048, 4, 64  # words of 8 bytes; programs that keep a link busy
RESOLVE_SLOTS_A_WARP, RESOLVE_MOST_WARPS = 512, 16
