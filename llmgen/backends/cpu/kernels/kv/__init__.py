"""The kinds of numbers that a KV cache can hold: a line of facts for each, and where they lie.

A *row* is the key or the value of one head at one position.  The float kinds store it as it is.
The scaled kinds cut it into blocks of neighbouring values, each with a scale d (f16) and small codes:

    q8_0  value = d * code          code -127 .. 127, d = max|x| / 127, 32 values a block
    q4_0  value = d * (code - 8)    code 0 .. 15, d = -(the value of largest magnitude) / 8, 32 values a block
    nf4   value = d * NF4[code]     d = max|x|, 64 values a block (NF4: arXiv:2305.14314, appendix E, in 127ths)

A head whose size is no multiple of the block ends with a shorter block, which has a scale of its own: a head
of 80 with q8_0 has blocks of 32, 32 and 16.  Everything is stored per key block of KEY_BLOCK positions:

    keys    4 groups of 16 positions; a group, for a float kind:  [key_dim][16 positions]
            for a scaled kind, block by block:  codes [quads][16 positions][4], f16 d [16 positions]
    values  for a float kind:  [64 positions][value_dim, rounded up to 16]
            for a scaled kind, block by block:  codes [64 positions][bytes of a row's block], f16 d [64 positions]

A quad is four neighbouring values of a head, as the integer dot products take them (kv/products.py).  Codes of 4
bits lie in pairs in a byte, the first one below: in keys those of two neighbouring quads; in values, of each 32
the i-th and the (16 + i)-th.  A row's block of values is padded to 16 bytes, a key's to whole quads or pairs of them.

Nothing here imports numba: the planner reads the lines in every process.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgen.backends.cpu.kernels.layout import (
    KEY_BLOCK,
    KEY_GROUP,
    SCORE_ROWS,
    TILE_TOKENS,
    row_state_bytes,
    value_width,
)

VECTOR = 16
"""Values that kernels take at once."""
SCALE_BYTES = 2
SCORE_BYTES = 2 * SCORE_ROWS * KEY_BLOCK * 4
"""What attention's scratch begins with: scores, and as much room for weights times the scales of values."""


UNIT_ROWS = 192
"""Rows of attention that share the reading of a key block in a prompt, about: their states stay in the caches."""


def most_tokens(group: int) -> int:
    """Tokens of a prompt that are attended together, in whole tiles; group: query heads of a kv head."""
    return min(max(UNIT_ROWS // (group * TILE_TOKENS), 1), 8) * TILE_TOKENS


def line_bytes(n: int) -> int:
    """n bytes as whole cache lines."""
    return (n + 63) // 64 * 64


def key_group_bytes(dim: int, bits: int, block: int) -> int:
    """Bytes of KEY_GROUP keys of ``dim`` values; bits: of a value; block: values under one scale, 0: no scales."""
    if not block:
        return KEY_GROUP * dim * bits // 8
    codes = (dim * bits + 31) // 32 * 4
    return KEY_GROUP * (codes + SCALE_BYTES * ((dim + block - 1) // block))


def query_bytes(dim: int, block: int) -> int:
    """Bytes of a query of ``dim`` values as keys with so many values under one scale meet it, see kv/queries.py."""
    if not block:
        return 4 * dim
    return (dim + VECTOR - 1) // VECTOR * VECTOR * 2 + 8 * ((dim + block - 1) // block)


def value_block_bytes(dim: int, bits: int, block: int) -> int:
    """Bytes of KEY_BLOCK values of ``dim`` numbers."""
    if not block:
        return KEY_BLOCK * ((dim + VECTOR - 1) // VECTOR * VECTOR * bits // 8)
    codes = (
        (dim * bits + 127) // 128 * 16
    )  # padded_codes(dim); Numba compiles each of these functions by itself
    return KEY_BLOCK * (codes + SCALE_BYTES * ((dim + block - 1) // block))


def padded_codes(n: int, bits: int) -> int:
    """Bytes of n codes of one value, padded to whole loads of 16 bytes."""
    return (n * bits + 127) // 128 * 16


@dataclass(frozen=True)
class KVKind:
    """What the planner must know about a kind; the places above follow from it."""

    key: str  # its name; the kernels are called after it
    bits: int
    block: int = 0  # values of a row that share a scale; 0: stored as they are

    def key_bytes(self, dim: int) -> int:
        """Bytes of one head's keys in a key block."""
        return key_group_bytes(dim, self.bits, self.block) * (KEY_BLOCK // KEY_GROUP)

    def value_bytes(self, dim: int) -> int:
        """Bytes of one head's values in a key block."""
        return value_block_bytes(dim, self.bits, self.block)


TABLE = {
    line.key: line
    for line in (
        KVKind("f32", 32),
        KVKind("f16", 16),
        KVKind("bf16", 16),
        KVKind("q8_0", 8, block=32),
        KVKind("q4_0", 4, block=32),
        KVKind("nf4", 4, block=64),
    )
}
"""By name."""


def most_query_bytes(dim: int) -> int:
    """Room for a query of ``dim`` values, whatever the kind of the keys."""
    return max(query_bytes(dim, line.block) for line in TABLE.values())


def prompt_scratch(group: int, key_dim: int, value_dim: int) -> int:
    """Bytes that a thread needs for the attention of a prompt: scores, a block as float32, queries and states."""
    block = 4 * KEY_BLOCK * (key_dim + value_width(value_dim))
    rows = most_tokens(group) * group
    return SCORE_BYTES + block + line_bytes(rows * 4 * key_dim) + rows * row_state_bytes(value_dim) + 64


def spans_scratch(group: int, key_dim: int, value_dim: int) -> int:
    """The same for attention to chosen blocks: scores, and the states and queries of the rows of a kv head."""
    return SCORE_BYTES + group * (row_state_bytes(value_dim) + most_query_bytes(key_dim))


def attention_kernel(role: str, keys: str, values: str, module: str = "attention") -> str:
    """The step of a role ("blocks" or "tiles") over keys and values of these kinds; module: or "latent"."""
    return f"{module}:{role}_{keys}_{values}"


def store_kernel(keys: str | None, values: str | None) -> str:
    """The step that stores keys and values of these kinds; None: there are none of them."""
    if keys is None or values is None:
        return f"cache:values_{values}" if keys is None else f"cache:keys_{keys}"
    return f"cache:rows_{keys}_{values}"


def kinds_of(kernel: str) -> tuple[str, KVKind, KVKind]:
    """Role and kinds of a step over both, such as blocks_q8_0_f16 or rows_q8_0_f16; AttributeError for another name."""
    role, _, pair = kernel.partition("_")
    for keys, line in TABLE.items():
        values = pair.removeprefix(f"{keys}_")
        if values != pair and values in TABLE:
            return role, line, TABLE[values]
    raise AttributeError(kernel)
