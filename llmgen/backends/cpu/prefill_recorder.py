"""The vocabulary for a chunk of a prompt: panel kernels, tiles of tokens shared out among the threads."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from llmgen.backends.cpu.binding import Binding, BoundMatrix
from llmgen.backends.cpu.expert_recorder import ExpertRecorder, Part, Routing
from llmgen.backends.cpu.kernels.arguments import Binary, Panel
from llmgen.backends.cpu.kernels.kv import prompt_scratch
from llmgen.backends.cpu.kernels.layout import (
    FLOAT_COLUMNS,
    PANEL_ROWS,
    STEP_BYTES,
    TILE_BLOCK,
    TILE_TOKENS,
    float_panel_scratch,
    panel_scratch,
)
from llmgen.backends.cpu.ngram_recorder import NGramRecorder
from llmgen.backends.cpu.partitions import TOKENS, share
from llmgen.backends.cpu.plan import EVERYTHING, Access, At, Each, KernelAddress, Step, Value
from llmgen.backends.cpu.runtime.caches import panels_together
from llmgen.backends.cpu.sparse_recorder import SparseRecorder
from llmgen.backends.cpu.states import PlacedKV
from llmgen.backends.cpu.stream_recorder import StreamRecorder
from llmgen.backends.cpu.stretch_recorder import StretchRecorder
from llmgen.model.weights import Experts, Matrix, Vector

PANEL_COLUMNS = 1024
"""Columns of a matrix that the panel kernel takes at once: an unpacked panel of so many, and as many
activations of a tile, stay in the first cache."""


class PrefillRecorder(ExpertRecorder, StretchRecorder, SparseRecorder, StreamRecorder, NGramRecorder):
    """Prompt tokens, up to ``chunk`` of one sequence or several."""

    split_tokens = 1

    def __init__(self, binding: Binding, control: int, chunk: int, max_outputs: int) -> None:
        super().__init__(binding, control)
        self.max_tokens, self.max_outputs = chunk, max_outputs

    def whole_tokens(self, n: int, like: Value | None = None) -> Value:
        return self.value(n, private=False, partition=TOKENS, like=like)

    def _head_range(self, n_heads: int) -> tuple[Any, Any]:
        return 0, n_heads

    def _head_partition(self, n_heads: int) -> Hashable:
        return TOKENS

    def _product(self, x: Value, w: Matrix, bias: Vector | None) -> Value:
        out = self.value(w.n_rows, private=False, partition=("panels", w.n_rows))
        self._panel(x, self.binding.matrix(w), out)
        if bias is not None:
            y = self.binding.vector(bias)
            self.emit("pointwise:add", [(out, TOKENS, True)], x=out, y=y, y_stride=0, out=out, n=out.n)
            out.partition = TOKENS
        return out

    def _panel(self, x: Value, w: BoundMatrix, out: Value) -> None:
        tiles = x if w.kernels.is_float else self._tiles(x)
        accesses, arguments = self._panel_arguments(x, tiles, w, w.n_rows, out)
        self.emit(w.kernels.panel, accesses, **arguments)

    def _panel_arguments(
        self, x: Value, tiles: Value, w: BoundMatrix, n_rows: int, out: Value
    ) -> tuple[list[Access], dict[str, Any]]:
        """What a panel kernel touches, and its arguments; of w the first n_rows."""
        kernels = w.kernels
        blocks = w.n_cols // kernels.block
        if kernels.is_float:
            chunk, together = FLOAT_COLUMNS, 2 * panels_together()
            nbytes = float_panel_scratch(chunk, together, self.max_tokens)
        else:
            chunk, together = min(blocks, PANEL_COLUMNS // kernels.block), panels_together()
            n_chunks, wide = -(-blocks // chunk), chunk * kernels.block // 32
            _, nbytes = panel_scratch(kernels.panel_bytes, wide, together, n_chunks, self.max_tokens)
        scratch = self.scratch(nbytes)
        first, last = share(-(-n_rows // PANEL_ROWS), 1)
        accesses: list[Access] = [
            (tiles, EVERYTHING, False),
            (out, out.partition, True),
            (scratch, EVERYTHING, True),
        ]
        arguments = {
            **w.arguments,
            "first": Each(first),
            "last": Each(last),
            "x": tiles,
            "blocks": blocks,
            "out": out,
            "scratch": scratch,
            "chunk": chunk,
            "together": together,
            "add": 0,
            "rows": n_rows,
            "x_stride": x.stride,
            "groups": kernels.groups,
        }
        return accesses, arguments

    def _tiles(self, x: Value) -> Value:
        """x as int8 tiles of eight tokens."""
        if "tiles" not in x.copies:
            x.copies["tiles"] = self._tiles_of(x, x, x.n)
        return x.copies["tiles"]

    def _tiles_of(self, x: Value, here: Value | At, n: int) -> Value:
        """The n values of each token of x that begin at ``here`` as tiles."""
        pairs = -(-x.rows // (2 * TILE_TOKENS))  # what level amx takes at once
        out = Value(n, n // 32 * TILE_BLOCK, 2 * pairs, False, TOKENS, counter=x.counter)
        accesses: list[Access] = [(x, TOKENS, False), (out, TOKENS, True)]
        self.emit("activations:tiles", accesses, x=here, out=out, blocks=n // 32)
        return out

    def _head_activations(self, x: Value, w: BoundMatrix, head: int) -> tuple[Value, Value | At]:
        here = At(x, lambda thread, n_threads: 4 * w.n_cols * head)
        if w.kernels.is_float:
            return x, here
        tiles = self._tiles_of(x, here, w.n_cols)
        return tiles, tiles

    def _head_product(self, x: tuple[Value, Value | At], w: BoundMatrix, out: Value, at: int) -> None:
        value, here = x
        accesses, arguments = self._panel_arguments(value, value, w, w.n_rows, out)
        there = At(out, lambda thread, n_threads: at)
        self.emit(w.kernels.panel, accesses, **{**arguments, "x": here, "out": there})

    def add(self, x: Value, y: Value | Vector) -> Value:
        return self._by_token("add", x, y)

    def multiply(self, x: Value, y: Value | Vector) -> Value:
        return self._by_token("mul", x, y)

    def _unary(self, kind: str, x: Value, **parameter: float) -> Value:
        out = self.value(x.n, private=False, partition=TOKENS, like=x)
        accesses: list[Access] = [(x, TOKENS, False), (out, TOKENS, True)]
        self.emit(f"pointwise:{kind}", accesses, x=x, out=out, n=x.n, **parameter)
        return out

    def gated(self, gate: Value, up: Value, activation: str) -> Value:
        return self._by_token(f"{activation}_mul", gate, up)

    def _by_token(self, kind: str, x: Value, y: Value | Vector) -> Value:
        out = self.value(x.n, private=False, partition=TOKENS, like=x)
        accesses: list[Access] = [(x, TOKENS, False), (out, TOKENS, True)]
        second: dict[str, Any]
        if isinstance(y, Value):
            accesses.append((y, TOKENS, False))
            second = {"y": y}
        else:
            second = {"y": self.binding.vector(y), "y_stride": 0}
        self.emit(f"pointwise:{kind}", accesses, x=x, out=out, n=x.n, **second)
        return out

    def _attended_latent(
        self, q: tuple[Value, Value | None], state: PlacedKV, n_heads: int, scores: dict[str, Any]
    ) -> Value:
        out = self.value(n_heads * state.value_dim, private=False, partition=("attended", state.key_offset))
        self._attend_latent("tiles", q, state, n_heads, scores, out)
        return out

    def _attended(self, q: Value, state: PlacedKV, n_heads: int, scores: dict[str, Any]) -> Value:
        out = self.value(n_heads * state.value_dim, private=False, partition=("attended", state.key_offset))
        group = n_heads // state.n_heads
        scratch = self.scratch(prompt_scratch(group, state.key_dim, state.value_dim))
        self._attend("tiles", q, state, group, scores, out, scratch)
        return out

    def _expert_product(self, x: Value, w: Experts, routing: Routing) -> Value:
        bound = self.binding.matrix(w.all_rows)
        out = self.value(w.n_rows, False, ("panels", w.n_rows), like=routing.rows)
        if bound.kernels.is_float:
            rows = x if x.counter else self._gathered(x, routing)
            tiles, tile_bytes = rows, TILE_TOKENS * rows.stride
        else:
            rows, tiles = x, self._tiles(x) if x.counter else self._sorted_tiles(x, routing)
            tile_bytes = tiles.stride
        accesses, arguments = self._panel_arguments(rows, tiles, bound, w.n_rows, out)
        own = self.scratch(STEP_BYTES)
        self.emit(
            "experts:panel",
            [*accesses, (own, EVERYTHING, True)],
            **arguments,
            kernel=KernelAddress(bound.kernels.panel),
            expert_rows=w.whole_rows,
            tile_bytes=tile_bytes,
            own=own,
            routing=routing.block,
        )
        return out

    def _sorted_tiles(self, x: Value, routing: Routing) -> Value:
        """The tokens of x as tiles of the routing's rows."""
        if (routing, "tiles") not in x.copies:
            pairs = -(-routing.rows.rows // (2 * TILE_TOKENS))
            out = Value(x.n, x.n // 32 * TILE_BLOCK, 2 * pairs, False, TOKENS, counter=routing.block)
            accesses: list[Access] = [(x, EVERYTHING, False), (out, TOKENS, True)]
            self.emit(
                "experts:tiles",
                accesses,
                x=x,
                out=out,
                blocks=x.n // 32,
                routing=routing.block,
            )
            x.copies[routing, "tiles"] = out
        return x.copies[routing, "tiles"]

    def _part(self, x: Value) -> Part:
        return TOKENS, lambda t, n: 0, x.n

    def fuse_residuals(self) -> None:
        """x + linear(...): let the panel kernel add into x if x is not needed any more."""
        last_use = {v: i for i, step in enumerate(self.steps) for v, _, _ in step.accesses}
        names: dict[Value, Value] = {}  # sums that live on in the buffer of their first term
        kept: list[Step] = []
        for i, step in enumerate(self.steps):
            step.rename(names)
            total = _residual(kept[-1], step) if kept else None
            if total and last_use[total.x] <= i and last_use[total.y] <= i:
                _add_into(kept[-1], total.y, total.x)
                names[total.out] = total.x
                last_use[total.x] = last_use[total.out]
                continue
            kept.append(step)
        self.steps = kept


def _residual(panel: Step, add: Step) -> Binary | None:
    """The arguments of ``add`` if it adds the product of ``panel`` to a value that ``panel`` does not touch."""
    product, total = panel.args, add.args
    if not isinstance(product, Panel) or not isinstance(total, Binary) or add.kernel != "pointwise:add":
        return None
    fits = (
        product.add == 0  # otherwise its result is a sum already, which has its place
        and total.y is product.out
        and total.out is not total.x
        and all(v is not total.x for v, _, _ in panel.accesses)
    )
    return total if fits else None


def _add_into(panel: Step, y: Value, x: Value) -> None:
    """Let ``panel`` add to x instead of writing y."""
    panel.args = panel.args._replace(add=1)
    panel.rename({y: x})
    panel.accesses = [(v, y.partition if w and v is x else p, w) for v, p, w in panel.accesses]
