"""What the kernel templates need of a quantized type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Block:
    """A type with blocks of 32 weights or superblocks of 256.

    Its functions are inlined into the kernels; p is the address of a block in the file.
    """

    nbytes: int  # of a block in the file
    bits: int  # of a weight in a panel; 8: signed
    sub_blocks: int  # groups of 32 weights in a block
    step: int  # blocks that the matrix-vector kernel takes at once
    x_bytes: int  # of the activation record per step
    zero_min: Any  # () -> m: the start of the offsets' sum, f32x8 or f32x16
    unpack: Any  # (p) -> u: the scales and weights of one step
    unpack_tail: Any  # (p, n) -> u: of its first n blocks, the others weigh nothing; None where step is 1
    fold: Any  # (u, x, a, m) -> (a, m): add the products with the record at x
    finish: Any  # (a, m) -> the sum of the row
    weights: Any  # (p, j) -> i8x32: the j-th 32 weights of a block, in order
    panel_scales: (
        Any  # (p, o, stride): scales of a block to o, offsets to o + 64, the next 32 weights' at o + stride
    )
    dequantize: Any  # (p, out): the block as float32
    signed: bool = False  # there is no offset
    halves: bool = False  # every 16 weights have their own scale

    @property
    def step_bytes(self) -> int:
        return self.step * self.nbytes
