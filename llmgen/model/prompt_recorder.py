"""The vocabulary for a chunk of a prompt: panel kernels, tiles of tokens shared out among the threads."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from llmgen.kernels.layout import (
    KEY_BLOCK,
    PANEL_ROWS,
    ROW_STATE,
    SCORE_ROWS,
    TILE_BLOCK,
    TILE_TOKENS,
)
from llmgen.model.cache import CacheLayout
from llmgen.model.config import ModelConfig
from llmgen.model.program import EVERYTHING, Access, Each, Step, Value
from llmgen.model.recorder import (
    COUNT_TOKENS,
    TOKENS,
    Recorder,
    floats_bytes,
    record_args,
    share,
)
from llmgen.model.weights import Matrix, Vector


class PromptRecorder(Recorder):
    """A chunk of a prompt, up to ``chunk`` tokens of one sequence."""

    split = 1

    def __init__(
        self, config: ModelConfig, layout: CacheLayout, run: int, chunk: int, max_outputs: int
    ) -> None:
        super().__init__(config, layout, run)
        self.max_tokens, self.max_outputs = chunk, max_outputs

    def whole_tokens(self, n: int) -> Value:
        return self.value(n, private=False, partition=TOKENS)

    def _head_range(self, n_heads: int) -> tuple[Any, Any]:
        return 0, n_heads

    def _head_partition(self, n_heads: int) -> Hashable:
        return TOKENS

    def linear(self, x: Value, w: Matrix, bias: Vector | None = None) -> Value:
        out = self.value(w.n_rows, private=False, partition=("panels", w.n_rows))
        self._panel(x, w, out)
        if bias is not None:
            args = [out, out.stride, bias.address, 0, out, out.stride, w.n_rows, 1, self.run]
            self.emit("pointwise:add", args, [(out, TOKENS, True)])
            out.partition = TOKENS
        return out

    def _panel(self, x: Value, w: Matrix, out: Value) -> None:
        kernels = w.kernels
        tiles, blocks = x, w.n_cols
        if kernels.record != "float":
            tiles, blocks = self._tiles(x), w.n_cols // kernels.block
        scratch = self.scratch(-(-w.n_cols // 32) * kernels.panel_bytes + 64)
        first, last = share(-(-w.n_rows // PANEL_ROWS), 1)
        args = [w.address, w.row_bytes, Each(first), Each(last), w.tail_row, w.tail_address, tiles, blocks]
        args += [out, out.stride, scratch, 0, self.run, w.n_rows, x.stride, kernels.groups]
        accesses: list[Access] = [
            (tiles, EVERYTHING, False),
            (out, out.partition, True),
            (scratch, EVERYTHING, True),
        ]
        self.emit(kernels.panel, args, accesses)

    def _tiles(self, x: Value) -> Value:
        """x as int8 tiles of eight tokens."""
        if "tiles" not in x.forms:
            out = Value(x.n, x.n // 32 * TILE_BLOCK, -(-self.max_tokens // TILE_TOKENS), False, TOKENS)
            args = record_args(x, out, "tiles", 0, 0, 0, 1, self.run, COUNT_TOKENS)
            self.emit("activations:tiles", args, [(x, TOKENS, False), (out, TOKENS, True)])
            x.forms["tiles"] = out
        return x.forms["tiles"]

    def add(self, x: Value, y: Value) -> Value:
        return self._by_token("add", x, y)

    def gated(self, gate: Value, up: Value, activation: str) -> Value:
        return self._by_token(f"{activation}_mul", gate, up)

    def _by_token(self, kind: str, x: Value, y: Value) -> Value:
        out = self.whole_tokens(x.n)
        args = [x, x.stride, y, y.stride, out, out.stride, x.n, 1, self.run]
        accesses: list[Access] = [(x, TOKENS, False), (y, TOKENS, False), (out, TOKENS, True)]
        self.emit(f"pointwise:{kind}", args, accesses)
        return out

    def attend(self, q: Value, layer: int) -> Value:
        cache = self.layout.layers[layer]
        out = self.value(q.n, private=False, partition=("attended", layer))
        rows = TILE_TOKENS * (self.config.n_heads // cache.n_kv_heads)
        state = ROW_STATE + floats_bytes(cache.head_dim)
        nbytes = SCORE_ROWS * KEY_BLOCK * 4 + rows * (cache.head_dim * 4 + state) + 64
        scratch = self.scratch(nbytes)
        args = [*self._attention_args(q, cache, out, out.stride), 0, 0, scratch, self.run]
        accesses: list[Access] = [(q, EVERYTHING, False), (self._cache_written, EVERYTHING, False)]
        accesses += [(out, out.partition, True), (scratch, EVERYTHING, True)]
        self.emit(f"attention:tiles_{self.layout.kv_type}", args, accesses)
        return out

    def fuse_residuals(self) -> None:
        """x + linear(...): let the panel kernel add into x where x is not needed any more."""
        last_use = {v: i for i, step in enumerate(self.steps) for v, _, _ in step.accesses}
        names: dict[Value, Value] = {}  # sums that live on in the buffer of their first term
        kept: list[Step] = []
        for i, step in enumerate(self.steps):
            step.rename(names)
            if kept and _is_residual(kept[-1], step):
                x, y, out = step.args[0], step.args[2], step.args[4]
                assert isinstance(x, Value) and isinstance(y, Value) and isinstance(out, Value)  # noqa: PT018
                if last_use[x] <= i and last_use[y] <= i:
                    _add_into(kept[-1], y, x)
                    names[out] = x
                    last_use[x] = last_use[out]
                    continue
            kept.append(step)
        self.steps = kept


def _is_residual(panel: Step, add: Step) -> bool:
    """Whether ``add`` adds the product that ``panel`` has just made to something that panel does not touch."""
    if not panel.kernel.startswith("quants.panel:") or add.kernel != "pointwise:add":
        return False
    x, y, out = add.args[0], add.args[2], add.args[4]
    return (
        y is panel.args[8]
        and out is not x
        and isinstance(x, Value)
        and all(v is not x for v, _, _ in panel.accesses)
    )


def _add_into(panel: Step, y: Value, x: Value) -> None:
    """Let ``panel`` add to x instead of writing y."""
    panel.args[11] = 1
    panel.rename({y: x})
    panel.accesses = [(v, y.partition if w and v is x else p, w) for v, p, w in panel.accesses]
