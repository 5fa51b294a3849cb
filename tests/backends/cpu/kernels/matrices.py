"""Random weight matrices of every type, their float twins, and the three kernels over them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from kernels.call import COUNT_TOKENS, TABLE, ControlBlock, QuantType, aligned, step

import gguf
from llmgen.backends.cpu.kernels.layout import (
    ACTIVATION_FORMATS,
    COLUMN_SUMS,
    FIELDS,
    FLOAT_COLUMNS,
    MAX_COLUMNS,
    PANEL_ROWS,
    TILE_BLOCK,
    TILE_TOKENS,
    float_panel_scratch,
    panel_scratch,
)
from llmgen.gguf import GGMLType
from llmgen.gguf.dequantize import dequantize

# Where the half-precision scales stand in a block.
SCALES = {
    "q1_0": (0,),
    "q2_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "tq1_0": (52,),
    "tq2_0": (64,),
    **{f"iq{kind}": (0,) for kind in ("1_s", "2_xxs", "2_xs", "2_s", "3_xxs", "3_s", "4_nl", "4_xs")},
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
}
# Where the scale of IQ1_M, and those that are smaller floats, stand.
OTHER_SCALES = {"iq1_m": (49, 51, 53, 55), "mxfp4": (0,), "nvfp4": (0, 1, 2, 3)}
FLOATS = tuple(key for key, kernels in TABLE.items() if kernels.activations == "float32")
QUANTIZED = tuple(key for key in TABLE if key not in FLOATS)
SLACK = 256  # bytes behind a matrix that kernels may read


def sizes(key: str) -> tuple[int, ...]:
    """Row lengths worth testing: around the steps of every kernel."""
    if key in FLOATS:
        return (1, 7, 15, 16, 33, 64, 100, 576)
    block = TABLE[key].block
    if block == 32:
        return (32, 64, 96, 128, 160, 576, 1568)
    return (256, 512, 768) if block == 256 else (block, 2 * block, 3 * block, 256, 7 * block)


def scale_bytes(key: str) -> tuple[int, ...]:
    """The bytes of a block that hold its scales."""
    return OTHER_SCALES.get(key) or tuple(at + i for at in SCALES[key] for i in (0, 1))


def put_scales(key: str, blocks: np.ndarray, scales: np.ndarray, which: int = 0) -> None:
    """Write half-precision numbers [...] into blocks uint8 [..., bytes]."""
    bits = np.asarray(scales, "<f2").view("<u2")
    if key == "iq1_m":  # a nibble of it in every second byte
        for i, at in enumerate(OTHER_SCALES[key]):
            blocks[..., at] = blocks[..., at] & 15 | (bits >> 4 * i & 15) << 4
        return
    at = SCALES[key][which]
    blocks[..., at : at + 2] = bits[..., None].view(np.uint8)


def ggml_type(key: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[key.upper()]


def row_bytes(key: str, n_cols: int) -> int:
    return GGMLType[key.upper()].bytes_for(n_cols)


@dataclass
class Matrix:
    """A matrix as bytes uint8 [n_rows, row_bytes], with slack of the worst kind behind the last row."""

    key: str
    data: np.ndarray
    n_cols: int
    copied_row: int = -1
    copy_address: int = 0
    address: int = 0

    @property
    def kernels(self) -> QuantType:
        return TABLE[self.key]

    @property
    def n_rows(self) -> int:
        return len(self.data)

    def floats(self) -> np.ndarray:
        """The weights [n_rows, n_cols], float32."""
        with np.errstate(invalid="ignore", over="ignore"):
            return dequantize(self.data, GGMLType[self.key.upper()])

    def common(self) -> dict[str, Any]:
        return {
            "weights": self.address or self.data,
            "row_bytes": self.data.shape[1],
            "copied_row": self.copied_row,
            "copy_address": self.copy_address,
        }


def placed(key: str, data: np.ndarray, n_cols: int) -> Matrix:
    """A matrix over its own memory; what lies behind it reads as NaN in every type."""
    room = np.full(data.size + SLACK, 0xFF, dtype=np.uint8)
    view = room[: data.size].reshape(data.shape)
    view[:] = data
    return Matrix(key, view, n_cols)


def random_matrix(key: str, n_rows: int, n_cols: int, rng: np.random.Generator, size: float = 1.0) -> Matrix:
    """Every bit random, except that scales are sane: half-precision numbers of both signs below 0.1 ``size``."""
    if key in FLOATS:
        values = rng.normal(0, 0.1, (n_rows, n_cols))
        if key == "f64":
            return placed(key, values.view(np.uint8), n_cols)
        data = gguf.quants.quantize(values.astype(np.float32), ggml_type(key))
        return placed(key, data.view(np.uint8).reshape(n_rows, -1), n_cols)
    nbytes = row_bytes(key, n_cols)
    data = rng.integers(0, 256, (n_rows, nbytes), dtype=np.uint8)
    blocks = data.reshape(n_rows, n_cols // TABLE[key].block, -1)
    for which in range(len(SCALES.get(key, "d"))):
        if key == "mxfp4":
            blocks[:, :, 0] = rng.integers(118, 126, blocks.shape[:2]) + round(math.log2(size))
        elif key != "nvfp4":  # of which all scales are sane
            put_scales(key, blocks, (rng.uniform(-0.1, 0.1, blocks.shape[:2]) * size).astype("<f2"), which)
    return placed(key, data, n_cols)


def quantized_matrix(key: str, n_rows: int, n_cols: int, rng: np.random.Generator) -> Matrix:
    """Normal values, quantized by the gguf package."""
    values = rng.normal(0, 0.1, (n_rows, n_cols)).astype(np.float32)
    return placed(
        key, gguf.quants.quantize(values, ggml_type(key)).view(np.uint8).reshape(n_rows, -1), n_cols
    )


def activations(n: int, n_cols: int, rng: np.random.Generator) -> np.ndarray:
    """float32 [n, n_cols] of very different sizes."""
    sizes = 10.0 ** rng.uniform(-3, 1, (n, -(-n_cols // 32)))
    return (rng.normal(0, 1, (n, n_cols)) * np.repeat(sizes, 32, axis=1)[:, :n_cols]).astype(np.float32)


def quantized(x: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """x [..., n] in integers of at most ``largest`` [..., n / 32, 32], and their scales float32 [..., n / 32]."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    peak = np.abs(blocks).max(axis=-1)
    inverse = np.divide(np.float32(largest), peak, out=np.zeros_like(peak), where=peak > 0)
    return np.rint(blocks * inverse[..., None]).astype(np.int32), peak / np.float32(largest)


def largest_activation(m: Matrix, prompt: bool = False) -> int:
    """What the activations of a kernel are rounded to; only the format "int16" has 16 bits."""
    return 32767 if m.kernels.activations == "int16" and not prompt else 127


def expected(
    m: Matrix, x: np.ndarray, relative: float = 3e-7, prompt: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """x [n, n_cols] times the matrix: the exact product float64 [n, n_rows], and how far off a kernel may be.

    Quantized types meet rounded activations.  A kernel adds d q and the offset
    separately, so errors are measured against the largest weight of each block.
    """
    w, rounded = m.floats().astype(np.float64), x.astype(np.float64)
    if m.key not in FLOATS:
        q, d = quantized(x, largest_activation(m, prompt))
        rounded = (q * d[..., None].astype(np.float64)).reshape(x.shape)
    padded = np.zeros((m.n_rows, -(-m.n_cols // 32) * 32))
    padded[:, : m.n_cols] = np.abs(w)
    largest = np.repeat(padded.reshape(m.n_rows, -1, 32).max(axis=2), 32, axis=1)[:, : m.n_cols]
    return rounded @ w.T, relative * np.abs(rounded) @ largest.T + 1e-30


def _padded(x: np.ndarray, rows: int, fill: float) -> np.ndarray:
    """x as a program's buffer: rows of whole vectors, more rows behind, the room filled with ``fill``."""
    out = aligned((rows, -(-x.shape[1] // 16) * 16), fill=fill)
    out[: x.shape[0], : x.shape[1]] = x
    return out


def encoded(kind: str, x: np.ndarray, level: str | None = None) -> np.ndarray:
    """x [n, n_cols] in an activation format, uint8 [n, bytes]; every byte written by the step."""
    n, n_cols = x.shape
    form, unit = ACTIVATION_FORMATS[kind], 1 if kind == "float32" else 32
    out = aligned((n, form.size(n_cols)), np.uint8, 0xAA)
    buffer = _padded(x, n, np.nan)
    step(
        f"activations:{kind}",
        level=level,
        x=buffer,
        x_stride=buffer.strides[0],
        out=out,
        out_stride=out.strides[0],
        first=0,
        last=-(-n_cols // form.values) * form.values // unit,
        real=n_cols // unit,
        control=ControlBlock(n),
        count=COUNT_TOKENS,
    )
    return out


def ranges(n: int, n_threads: int, unit: int = 1) -> list[tuple[int, int]]:
    """n items cut into ranges of whole units, one for each thread."""
    units = -(-n // unit)
    cuts = [min(units * t // n_threads * unit, n) for t in range(n_threads + 1)]
    return list(zip(cuts, cuts[1:], strict=False))


def matvec(m: Matrix, x: np.ndarray, n_threads: int = 1, level: str | None = None) -> np.ndarray:
    """x [n, n_cols] -> float32 [n, n_rows]; nothing else may be written."""
    n = len(x)
    quants = encoded(m.kernels.activations, x, level)
    out = aligned((n, m.n_rows + 16), fill=-7.5)
    steps, tail = divmod(m.n_cols, m.kernels.step)
    for thread, (first, last) in enumerate(ranges(m.n_rows, n_threads)):
        step(
            m.kernels.matvec,
            thread,
            n_threads,
            level,
            **m.common(),
            first=first,
            last=last,
            x=quants,
            x_stride=quants.strides[0],
            steps=steps,
            tail=tail // m.kernels.block,
            out=out,
            out_stride=out.strides[0],
            control=ControlBlock(n),
            count=COUNT_TOKENS,
            scratch=aligned(MAX_COLUMNS * COLUMN_SUMS, np.uint8, 0xFF),
        )
        assert np.all(out[:, last:] == -7.5)
    return out[:, : m.n_rows]


def panel(
    m: Matrix,
    x: np.ndarray,
    n_threads: int = 1,
    level: str | None = None,
    add: np.ndarray | None = None,
    chunk: int = 2,
    together: int = 3,
) -> np.ndarray:
    """x [n, n_cols] -> float32 [n, n_rows] by the kernel for prompts, plus ``add``.

    chunk: blocks that are taken at once, or of float weights times 32 of them.
    """
    n = len(x)
    tokens = -(-n // TILE_TOKENS) * TILE_TOKENS
    source = _padded(x, tokens, np.nan)  # tokens behind the last hold whatever was there
    panels = -(-m.n_rows // PANEL_ROWS)
    out = aligned((tokens + 1, panels * PANEL_ROWS + 16), fill=-7.5)
    if add is not None:
        out[:n, : m.n_rows] = add
    blocks = m.n_cols // m.kernels.block
    if m.key in FLOATS:
        tiles, chunk = source, min(32 * chunk, FLOAT_COLUMNS)
        nbytes = float_panel_scratch(chunk, together, n)
    else:
        tiles, wide = tiled(x, level), chunk * m.kernels.block // 32
        _, nbytes = panel_scratch(m.kernels.panel_bytes, wide, together, -(-blocks // chunk), n)
    for thread, (first, last) in enumerate(ranges(panels, n_threads)):
        step(
            m.kernels.panel,
            thread,
            n_threads,
            level,
            **m.common(),
            first=first,
            last=last,
            x=tiles,
            blocks=blocks,
            out=out,
            out_stride=out.strides[0],
            scratch=aligned(nbytes, np.uint8, 0xFF),
            chunk=chunk,
            together=together,
            add=int(add is not None),
            control=ControlBlock(n),
            rows=m.n_rows,
            x_stride=source.strides[0],
            groups=m.kernels.groups,
        )
        untouched = out[:, last * PANEL_ROWS :] if add is None else out[tokens:]
        assert np.all(untouched == -7.5)
    assert np.all(out[tokens:] == -7.5)
    return out[:n, : m.n_rows]


def tiled(x: np.ndarray, level: str | None = None, n_threads: int = 1) -> np.ndarray:
    """x [n, n_cols] as tiles of eight tokens, uint8 [tiles, blocks, TILE_BLOCK]; room is filled with NaN."""
    n, n_cols = x.shape
    tiles = -(-n // TILE_TOKENS)
    source = _padded(x, tiles * TILE_TOKENS, np.nan)
    out = aligned((tiles + tiles % 2, n_cols // 32, TILE_BLOCK), np.uint8, 0xAA)  # whole pairs, for level amx
    for thread in range(n_threads):
        step(
            "activations:tiles",
            thread,
            n_threads,
            level,
            x=source,
            x_stride=source.strides[0],
            out=out,
            blocks=n_cols // 32,
            control=ControlBlock(n),
        )
    return out


def embed(
    m: Matrix,
    ids: list[int],
    scale: float = 1.0,
    n_threads: int = 0,
    level: str | None = None,
    number: str = "ids",
) -> np.ndarray:
    """The rows ``ids`` as float32 [n, n_cols]; n_threads 0: one thread takes all tokens.

    number: the field of the control block that has the rows' numbers.
    """
    out = aligned((len(ids) + 1, -(-m.n_cols // 16) * 16 + 16), fill=-7.5)
    arguments = {k: v for k, v in m.common().items() if not k.startswith("cop")}
    for thread in range(max(n_threads, 1)):
        step(
            m.kernels.embed,
            thread,
            max(n_threads, 1),
            level,
            **arguments,
            number=8 * FIELDS[number],
            blocks=m.n_cols // m.kernels.block,
            block=m.kernels.block,
            out=out,
            out_stride=out.strides[0],
            n=m.n_cols,
            scale=scale,
            split_tokens=int(n_threads > 0),
            control=ControlBlock(len(ids), **{number: ids}),
        )
    assert np.all(out[len(ids) :] == -7.5)
    assert np.all(out[:, m.n_cols :] == -7.5)
    return out[: len(ids), : m.n_cols]
