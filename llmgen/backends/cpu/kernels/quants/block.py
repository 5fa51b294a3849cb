"""What the kernel templates need of a type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """How one row at a time meets a generated token; its functions are inlined into the kernel.

    a and m are running sums, f32x16: of the products, and of the offsets' part.
    """

    step_bytes: int  # of weights that one step takes
    x_bytes: int  # of the activation record per step
    unpack: Any  # (p) -> u: the scales and weights of one step
    fold: Any  # (u, x, a, m) -> (a, m): add the products with the record at x
    finish: Any  # (a, m) -> the sum of the row
    unpack_tail: Any = (
        None  # (p, n) -> u: of its first n blocks, the others weigh nothing; None: rows are whole steps
    )


@dataclass(frozen=True)
class Lanes:
    """How ``lanes.ROWS`` rows at a time meet a generated token, a block of 32 weights each."""

    x_bytes: int  # of the activation record per block
    load: Any  # (p, stride) -> the block at p and those a row further each, as they are
    unpack: Any  # (loaded) -> u: their scales and weights
    dots: Any  # (u, x) -> the products with the 32 activations at x as integers, a lane for each row
    scale: Any  # (u, x, dots, sums) -> sums: add them at their scale, and the offsets


@dataclass(frozen=True)
class Block:
    """A type with blocks of 32 weights or superblocks of 256.

    Its functions are inlined into the kernels; p is the address of a block in the file.
    """

    nbytes: int  # of a block in the file
    bits: int  # of a weight in a panel; 8: signed
    sub_blocks: int  # groups of 32 weights in a block
    dot: Row | Lanes
    weights: Callable[..., Any]  # (p, j) -> i8x32: the j-th 32 weights of a block, in order
    panel_scales: Callable[
        ..., Any
    ]  # (p, o, stride): scales of a block to o, offsets to o + 64, the next 32 weights' at o + stride
    dequantize: Callable[..., Any]  # (p, out): the block as float32
    signed: bool = False  # there is no offset
    halves: bool = False  # every 16 weights have their own scale
