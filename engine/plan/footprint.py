"""Bytes of each part of a model, from its headers and geometry alone. Pure arithmetic; no files, no devices."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import KvType

_FLOAT = 4  # activations and scratch are fp32
MARKS = 4  # places that a timeline is kept to go back to, beside where it ends: a state is some 60 MB in Qwen3.6-35B-A3B
_LOGITS = 12 << 20  # numbers: `engine.kernels.reference` makes a twelfth of them at once, with copies; others hardly any
USUAL_KV = KvType.BF16  # tests.perf.kv_types: answers differ by less than the rounding of 16-bit weights
_LEAST_GUESTS = 8  # 4 to 8 are alike for the hit rate; 64 lose 2 points at 10 % of Qwen3-30B-A3B's experts


def guest_slots(top_k: int) -> int:
    """Slots to read into: all misses of a token in a layer at once, and as many that are read ahead for the next layer."""
    return max(_LEAST_GUESTS, 2 * top_k)


def slots_kept(card_slots: Sequence[int], top_k: int, experts_total: int) -> int:
    """Experts that cards with so many slots keep: all, or as many as there are slots beside those that others pass through."""
    if sum(card_slots) >= experts_total:
        return experts_total
    return sum(slots - card_guests(slots, top_k) for slots in card_slots)


def card_guests(slots: int, top_k: int) -> int:
    """Of a card's slots, those that experts pass through."""
    return min(guest_slots(top_k), max(1, slots // 2)) if slots else 0


def experts_resident(card_slots: Sequence[int], ram_slots: int, top_k: int, experts_total: int) -> int:
    """Experts in any memory while a token is computed: the slots, less those that are being read into."""
    kept = slots_kept(card_slots, top_k, experts_total)
    if experts_total in (ram_slots, kept):
        return experts_total
    return min(experts_total, kept + ram_slots - min(guest_slots(top_k), ram_slots) // 2)


def attention_macs(tokens: int, length: int, heads: int, head_dim: int) -> float:
    """Multiply-adds of the last `tokens` of `length` positions, each over itself and all before: scores and weighted sum."""
    return 2.0 * tokens * (length - tokens / 2) * heads * head_dim


def rows_kept(window: int, context: int, chunk: int) -> int:
    """Rows of a layer that sees only a window: that and a chunk, and then some windows to go back to, or all."""
    rows = window + chunk
    return rows if rows + MARKS * window < context else context


@dataclass(frozen=True, slots=True, order=True)
class Compressed:
    """What a layer keeps of every `ratio` tokens for good, beside the rows of single tokens: vectors of `widths` numbers.

    Of the first a token reads no more than `top`, chosen by the others, which are all read then; 0 for all of the first.
    """

    ratio: int
    widths: tuple[int, ...]
    top: int = 0

    def nbytes(self, context: int, kv_type: KvType) -> int:
        return context // self.ratio * sum(map(kv_type.row_bytes, self.widths))

    def read_bytes(self, context: int, kv_type: KvType) -> int:
        """By one token after so many."""
        first, *others = map(kv_type.row_bytes, self.widths)
        seen, searched = self._counts(context)
        return seen * first + searched * sum(others)

    def macs(self, context: int, heads: int) -> int:
        """Multiply-adds of one token after so many: scores and weighted sum of what is seen, scores of what is searched."""
        first, *others = self.widths
        seen, searched = self._counts(context)
        return heads * (2 * seen * first + searched * sum(others))

    def _counts(self, context: int) -> tuple[int, int]:
        """Of the first vector those that a token reads, of the others those that it looks for them in."""
        count = context // self.ratio
        return (self.top, count) if 0 < self.top < count else (count, 0)


@dataclass(frozen=True, slots=True)
class Choice:
    """Of layers that read `most` rows of `row_dim` numbers for a token, once an index has scored all tokens.

    `index_layers` of them have an index of their own, with `index_heads` heads over a key of `index_dim` numbers.
    """

    most: int
    row_dim: int
    index_layers: int
    index_heads: int
    index_dim: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model needs wherever it runs. `slot_bytes` is an expert plus the alignment that direct reads need."""

    name: str
    architecture: str
    weight_format: str
    model_bytes: int
    dense_bytes: int
    dense_read_bytes: int  # per pass: all but an embedding table that is only looked up
    expert_bytes: int
    slot_bytes: int
    num_moe_layers: int
    num_experts: int
    top_k: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    expert_size: int
    vocab_size: int
    max_context: int
    looked_up_bytes: int = 0  # of an embedding table that the head does not share
    head_bytes: int = 0  # of the matrix from the last layer to the logits, which a prompt needs once
    num_heads: int = 0  # of queries; 0 where nobody tells
    kv_layers: int = 0  # that keep keys and values; 0 for all
    windows: tuple[tuple[int, int], ...] = ()  # (tokens, layers): those among them that see only so many
    choice: Choice | None = None  # of layers that do not read all that they keep
    compressed: tuple[tuple[Compressed, int], ...] = ()  # with the layers that keep it
    state_bytes: int = 0  # of recurrent layers, with what is kept to go back to
    kv_type: KvType = USUAL_KV  # as a plan has it

    @property
    def heads(self) -> int:
        """Of queries, by the usual proportion where nobody tells."""
        return self.num_heads or max(self.num_kv_heads, self.hidden_size // self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Of the layers' dense weights."""
        return self.dense_read_bytes - self.head_bytes

    def kv_bytes(self, context: int, chunk: int) -> int:
        """Memory for what is kept of so many tokens that come in such chunks."""
        rows = self.whole_layers * context
        for window, layers in self.windows:
            own = rows_kept(window, context, chunk)
            rows += layers * (own if own == context else own + MARKS * window)
        further = sum(layers * kept.nbytes(context, self.kv_type) for kept, layers in self.compressed)
        return rows * self._row_bytes + further

    def kv_read_bytes(self, context: int) -> int:
        """Of keys and values that one token after so many reads."""
        if (choice := self.choice) is not None:
            chosen = min(context, choice.most) * self.whole_layers * self.kv_type.row_bytes(choice.row_dim)
            return chosen + context * choice.index_layers * self.kv_type.row_bytes(choice.index_dim)
        seen = self.whole_layers * context + sum(layers * min(context, window) for window, layers in self.windows)
        further = sum(layers * kept.read_bytes(context, self.kv_type) for kept, layers in self.compressed)
        return seen * self._row_bytes + further

    @property
    def whole_layers(self) -> int:
        """Those that see every token."""
        return (self.kv_layers or self.num_layers) - sum(layers for _, layers in self.windows)

    @property
    def _row_bytes(self) -> int:
        """Of a token in a layer."""
        return 2 * self.num_kv_heads * self.kv_type.row_bytes(self.head_dim)

    @property
    def experts_total(self) -> int:
        return self.num_moe_layers * self.num_experts

    @property
    def floor_slots(self) -> int:
        """The least that runs, every expert passing through: a layer's misses, and the next layer's."""
        return min(self.experts_total, 2 * self.top_k)

    @property
    def floor_bytes(self) -> int:
        """The least expert memory that can run a token."""
        return self.floor_slots * self.slot_bytes

    def workspace_bytes(self, chunk: int, context: int) -> int:
        """Activations of one prefill chunk, attention with a head's keys and values as numbers, logits, recurrent states, the
        kernels' scratch."""
        activations = chunk * (self.hidden_size * (8 + self.top_k) + 3 * self.expert_size) * _FLOAT
        attention = (min(12 * self.heads * chunk * context, _LOGITS) + 4 * context * self.head_dim) * _FLOAT
        return self.state_bytes + activations + attention + 4 * self.vocab_size * _FLOAT + (8 << 20)
