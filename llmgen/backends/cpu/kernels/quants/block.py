"""The functions of a type, out of which the kernel templates make its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from llmgen.backends.cpu.kernels.quants import TABLE


@dataclass(frozen=True)
class Row:
    """How one row at a time meets a generated token; its functions are inlined into the kernel.

    a and m are running sums, f32x16: of the products, and of the offsets' part.
    """

    unpack: Any  # (p) -> u: the scales and weights of one step
    fold: Any  # (u, x, a, m) -> (a, m): add the products with the activations at x
    finish: Any  # (a, m) -> the sum of the row
    unpack_tail: Any = (
        None  # (p, n) -> u: of its first n blocks, the others weigh nothing; None: rows are whole steps
    )


@dataclass(frozen=True)
class Lanes:
    """How ``lanes.ROWS`` rows at a time meet a generated token, a block of 32 weights each."""

    load: Any  # (p, stride) -> the block at p and those a row further each, as they are
    unpack: Any  # (loaded) -> u: their scales and weights
    dots: Any  # (u, x) -> the products with the 32 activations at x as integers, a lane for each row
    scale: Any  # (u, x, dots, sums) -> sums: add them at their scale, and the offsets


@dataclass(frozen=True)
class Block:
    """A type with blocks of 32 weights or superblocks of 256.

    Its functions are inlined into the kernels; p is the address of a block in the file.
    """

    dot: Row | Lanes
    weights: Callable[..., Any]  # (p, j) -> i8x32: the j-th 32 weights of a block, in order
    panel_scales: Callable[
        ..., Any
    ]  # (p, o, stride): scales of a block to o, offsets to o + 64, the next 32 weights' at o + stride
    dequantize: Callable[..., Any]  # (p, out): the block as float32
    has_offset: bool = True
    zero: int = 0  # what the weights of a panel are too large by
    # (p, j) -> two integers, the small scales of the halves of the j-th 32 weights; for types with product_bits
    small_scales: Any = None
    # (p, i) -> i8x64: the i-th 64 weights of a block, where that is quicker than twice 32
    pairs: Any = None


@dataclass(frozen=True)
class Floats:
    """A type of unquantized weights."""

    dot: Row
    load1: Callable[..., Any]  # (p) -> the weight at p
    load8: Callable[..., Any]  # (p) -> i8x32: the eight weights at p as float32
    dequantize: Callable[..., Any]  # (p, out): the weight as float32


def functions_of(key: str) -> Any:
    """The ``Block`` (or ``Floats``) of a type.  Raises AttributeError for a name that is none."""
    if key not in TABLE:
        raise AttributeError(f"there is no tensor type {key!r} in quants.TABLE")
    return getattr(import_module(f"{__package__}.{TABLE[key].module}"), key.upper())
