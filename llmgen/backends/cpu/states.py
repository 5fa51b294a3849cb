"""Where the states of a sequence lie in its memory.

A sequence is one piece of address space.  A *placed state* is one layer's part of it; all
kinds have the methods of ``PlacedState``, and sequences and files use nothing else.  New keys
and values are written in place, after the old ones: addresses in a program stay valid and
nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from llmgen.backends.cpu.kernels.decode_plan import UNBOUNDED
from llmgen.backends.cpu.kernels.kv import TABLE, KVKind
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK
from llmgen.errors import UsageError
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.states import KV, Contents, Latent, Recurrent, State

Span = tuple[int, int]
"""First byte and last + 1 in a sequence's memory."""


class PlacedState(Protocol):
    """One layer's part of a sequence's memory.  ``written``: the longest length it ever had (``Sequence.written``)."""

    nbytes: int
    """Bytes reserved, whole pages."""
    bytes_per_token: float
    """Bytes that one more token takes until a window is full."""
    needs_checkpoint: bool
    """Whether an earlier length can only be restored from a copy of ``spans`` that was made at that length."""

    def bytes_for(self, n_tokens: int) -> int:
        """Bytes that n_tokens take."""

    def shortest_cut(self, written: int) -> int:
        """The smallest length besides 0 to which it can be cut back; more than ``written`` if there is none."""

    def spans(self, first: int, written: int) -> Iterator[Span]:
        """The bytes that hold, or may hold, anything of positions first .. written - 1."""

    def signature(self) -> list[int]:
        """What must be equal in a file for it to be read into this state."""

    def accepts(self, signature: list[int], written: int) -> bool:
        """Whether ``spans(0, written)`` of a state with that signature have the same layout as here."""


@dataclass(frozen=True)
class PlacedKV:
    """Keys, then values, each per kv head in blocks of KEY_BLOCK positions (see kernels/kv).

    A latent state is placed as one head, whose keys are the position parts and whose values the contents.
    Position p lives in block (p // KEY_BLOCK) % blocks.  With a sliding window the blocks
    are a ring: the window, one chunk of a prompt that is written before it is read, and
    one block because neither end falls on a block's border.
    """

    n_heads: int
    key_dim: int
    value_dim: int
    window: int  # keys that a query sees; UNBOUNDED: all of them
    chunked: bool  # the window begins at its multiples
    causal: bool  # a query sees none behind its own
    blocks: int  # key blocks kept
    keys: KVKind
    values: KVKind
    key_offset: int
    value_offset: int
    nbytes: int
    every: int = 1  # tokens that share a position
    needs_checkpoint = False

    @classmethod
    def place(cls, spec: KV, offset: int, n_ctx: int, chunk: int, kinds: KVCacheConfig) -> PlacedKV:
        """Place a state at ``offset``, for n_ctx tokens of which up to ``chunk`` are written in one run."""
        blocks = max(1, -(-(n_ctx // spec.every) // KEY_BLOCK))
        if spec.window:
            blocks = min(blocks, -(-(spec.window + chunk) // KEY_BLOCK) + 1)
        keys, values = TABLE[kinds.k], TABLE[kinds.v]
        key_bytes = page(keys.key_bytes(spec.key_dim) * blocks * spec.n_heads)
        value_bytes = page(values.value_bytes(spec.value_dim) * blocks * spec.n_heads)
        return cls(
            spec.n_heads,
            spec.key_dim,
            spec.value_dim,
            spec.window or UNBOUNDED,
            spec.chunked,
            spec.causal,
            blocks,
            keys,
            values,
            key_offset=offset,
            value_offset=offset + key_bytes,
            nbytes=key_bytes + value_bytes,
            every=spec.every,
        )

    @property
    def key_bytes(self) -> int:
        """Bytes of one head's keys per block."""
        return self.keys.key_bytes(self.key_dim)

    @property
    def value_bytes(self) -> int:
        """Bytes of one head's values per block."""
        return self.values.value_bytes(self.value_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of a key block of all heads."""
        return (self.key_bytes + self.value_bytes) * self.n_heads

    @property
    def bytes_per_token(self) -> float:
        return self.block_bytes / (KEY_BLOCK * self.every)

    def bytes_for(self, n_tokens: int) -> int:
        return self.block_bytes * min(-(-(n_tokens // self.every) // KEY_BLOCK), self.blocks)

    def shortest_cut(self, written: int) -> int:
        if not self.causal:  # what came later is in the keys and values of all layers but the first
            return written + 1
        kept = self.blocks * KEY_BLOCK
        if self.window == UNBOUNDED or written <= kept:  # nothing has been overwritten
            return 0
        # a block is lost as a whole as soon as the one that takes its place begins
        oldest = -(-written // KEY_BLOCK) * KEY_BLOCK - kept
        return oldest + self.window - 1

    def spans(self, first: int, written: int) -> Iterator[Span]:
        low, high = first // self.every // KEY_BLOCK, -(-(written // self.every) // KEY_BLOCK)
        if high > self.blocks:  # the ring is full: every block may be new
            low, high = 0, self.blocks
        for offset, size in ((self.key_offset, self.key_bytes), (self.value_offset, self.value_bytes)):
            for head in range(self.n_heads):
                start = offset + head * self.blocks * size
                yield start + low * size, start + high * size

    def signature(self) -> list[int]:
        return [self.n_heads, self.key_bytes, self.value_bytes, self.blocks]

    def accepts(self, signature: list[int], written: int) -> bool:
        own = self.signature()
        if len(signature) != len(own) or signature[:3] != own[:3]:
            return False
        # until a ring is full, its size does not change where positions lie
        filled = -(-(written // self.every) // KEY_BLOCK)
        return signature[3] == own[3] or filled <= min(signature[3], own[3])


@dataclass(frozen=True)
class PlacedContents:
    """The contents of single tokens in a ring, and behind it those of stretches, all of them as values of one head."""

    recent: PlacedKV
    summaries: PlacedKV | None
    nbytes: int
    needs_checkpoint = False

    @classmethod
    def place(
        cls, spec: Contents, offset: int, n_ctx: int, chunk: int, kinds: KVCacheConfig
    ) -> PlacedContents:
        """As ``PlacedKV.place``."""
        recent = PlacedKV.place(KV(1, 0, spec.dim, spec.window), offset, n_ctx, chunk, kinds)
        if not spec.every:
            return cls(recent, None, recent.nbytes)
        all_of = PlacedKV.place(KV(1, 0, spec.dim, every=spec.every), offset, n_ctx, chunk, kinds)
        ring = recent.blocks * recent.value_bytes
        summaries = replace(all_of, value_offset=recent.value_offset + ring)
        return cls(recent, summaries, page(ring + summaries.blocks * summaries.value_bytes))

    @property
    def parts(self) -> list[PlacedKV]:
        """The ring of the last tokens, and behind it the summaries where there are any."""
        return [self.recent, self.summaries] if self.summaries else [self.recent]

    @property
    def bytes_per_token(self) -> float:
        return sum(part.bytes_per_token for part in self.parts)

    def bytes_for(self, n_tokens: int) -> int:
        return sum(part.bytes_for(n_tokens) for part in self.parts)

    def shortest_cut(self, written: int) -> int:
        return self.recent.shortest_cut(written)

    def spans(self, first: int, written: int) -> Iterator[Span]:
        for part in self.parts:
            yield from part.spans(first, written)

    def signature(self) -> list[int]:
        return [number for part in self.parts for number in part.signature()]

    def accepts(self, signature: list[int], written: int) -> bool:
        # a longer ring moves the summaries, but ``spans`` gives both parts one after the other
        size = len(signature) // len(self.parts)
        cut = [signature[i * size : (i + 1) * size] for i in range(len(self.parts))]
        return all(part.accepts(own, written) for part, own in zip(self.parts, cut, strict=True))


@dataclass(frozen=True)
class PlacedRecurrent:
    """Float32 values at ``offset`` that every token replaces; the kernels of kernels/recurrent.py say in what order.

    Every row has room for whole vectors.
    """

    n: int  # values of a row
    rows: int
    offset: int
    nbytes: int
    needs_checkpoint = True
    bytes_per_token = 0.0

    @classmethod
    def place(cls, spec: Recurrent, offset: int) -> PlacedRecurrent:
        return cls(spec.n, spec.rows, offset, page(row_bytes(spec.n) * spec.rows))

    def bytes_for(self, n_tokens: int) -> int:
        return row_bytes(self.n) * self.rows

    def shortest_cut(self, written: int) -> int:
        return written + 1

    def spans(self, first: int, written: int) -> Iterator[Span]:
        yield self.offset, self.offset + self.bytes_for(0)

    def signature(self) -> list[int]:
        return [self.n, self.rows]

    def accepts(self, signature: list[int], written: int) -> bool:
        return signature == self.signature()


class StateLayout:
    """The states of a sequence, one after the other.

    kinds: of the numbers that keys and values are kept in.  chunk: tokens that one run may
    write.  Raises UsageError.
    """

    def __init__(self, specs: list[State], n_ctx: int, chunk: int, kinds: KVCacheConfig) -> None:
        self.n_ctx, self.kinds = n_ctx, kinds
        self._specs, self._chunk = specs, chunk
        if (kinds.c or kinds.r) and not any(isinstance(spec, Latent | Contents) for spec in specs):
            raise UsageError(
                "c= and r= are for latent attention, which this model does not have; use k= and v= (--kv-type)"
            )
        self.states: list[PlacedKV | PlacedContents | PlacedRecurrent] = []
        self.nbytes = 0
        for spec in specs:
            self.states.append(self._place(spec))
            self.nbytes += self.states[-1].nbytes

    def _place(self, spec: State) -> PlacedKV | PlacedContents | PlacedRecurrent:
        """Place a state behind those that have a place already."""
        sizes = self.nbytes, self.n_ctx, self._chunk
        if isinstance(spec, Latent):
            spec = KV(1, spec.position_dim, spec.content_dim, spec.window)
            return PlacedKV.place(spec, *sizes, self.kinds.latent)
        if isinstance(spec, Contents):
            return PlacedContents.place(spec, *sizes, self.kinds.latent)
        if isinstance(spec, KV):
            return PlacedKV.place(spec, *sizes, self.kinds)
        return PlacedRecurrent.place(spec, self.nbytes)

    @property
    def kv_type(self) -> str:
        """The kinds in one word, as --kv-type takes them."""
        return str(self.kinds)

    def of_kind(self, kinds: KVCacheConfig) -> StateLayout:
        """The same states with keys and values of other kinds."""
        return StateLayout(self._specs, self.n_ctx, self._chunk, kinds)

    @property
    def needs_checkpoint(self) -> bool:
        """Whether earlier lengths can only be restored from checkpoints (``Sequence.checkpoint``)."""
        return any(state.needs_checkpoint for state in self.states)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token takes until a window is full."""
        return int(sum(state.bytes_per_token for state in self.states))

    def bytes_for(self, n_tokens: int) -> int:
        """Bytes that a context of n_tokens takes, windows taken into account."""
        return sum(state.bytes_for(n_tokens) for state in self.states)


def row_bytes(n: int) -> int:
    """Bytes of n float32 values, rounded up to whole vectors."""
    return -(-n // 16) * 64


def page(nbytes: int) -> int:
    """n bytes, rounded up to whole pages."""
    return -(-nbytes // 4096) * 4096
