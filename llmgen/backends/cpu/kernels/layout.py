"""The layouts that compiled code and Python agree on; plain numbers, no imports.

All sizes are in bytes unless a name says otherwise.
"""

from __future__ import annotations

STEP_BYTES = 256
"""One step in a thread's table: the kernel's address, the barrier flag, 29 arguments, what to prefetch."""
STEP_BARRIER = 8
"""Where the barrier flag stands, after the kernel's address."""
STEP_HEADER = 16
"""Bytes before the arguments."""
STEP_ARGS = 29
STEP_NEXT = STEP_BYTES - 8
"""Where a step has the address of the weights that its thread reads next, or 0."""
ARG_NEXT = STEP_ARGS
"""The same as an argument's index: it follows the arguments."""

FIELDS = {
    name: i
    for i, name in enumerate(
        ("n_tokens", "ids", "positions", "sequences", "n_outputs", "output_rows", "run_ends")
    )
}
"""The control block of a run, int64 each: how many tokens; addresses of their ids, positions and
sequences' memories (int64 [n_tokens] each); how many rows of logits, and for which tokens (int64 [n_outputs]);
the position of the last token that the run has of each token's sequence (int64 [n_tokens])."""

TILE_TOKENS = 8
"""Prompt tokens are laid out in tiles of eight."""
PANEL_ROWS = 16
"""Weight rows that the panel kernel takes at once."""
PANEL_BLOCK = 8 * 64
"""Bytes of 32 weights in a panel: 8 groups of four weights for 16 rows, or at level i8mm 4 groups of eight."""
PANEL_SCALES = 2 * 64
"""Bytes of the scale and the offset of each row (f32), which follow for every 32 weights, or every 16."""
PANEL_PRODUCTS = 5 * 64
"""The same where 32 weights have one scale of floats and two small integers: f32 d [16 rows] | f32 offset of the
first half [16] | small scale of the first half, twice an int16 [16] | offset of the other half | its small scale.
The small scales are there only if they are not multiplied into the weights, see quants/products.py."""
SHORT_SUMS = {2: 8, 3: 8, 4: 8, 5: 4, 6: 2}
"""By the bits of an unsigned weight: how many sums of two products with 8-bit activations fit into 16 bits."""
MAX_COLUMNS = 8
"""The most tokens of a run in the generated role: columns of the matrix-vector kernels."""
KEY_BLOCK = 64
"""Keys that attention handles at once; blocks start at multiples of this position."""
SCORE_ROWS = 8
"""Rows of scores, KEY_BLOCK floats each, that attention's scratch holds."""
ROW_STATE = 64
"""Bytes of a row's state in attention (maximum, sum, position) before its weighted values."""
COLUMN_SUMS = 128
"""Bytes of the running sums of one column in the matrix-vector kernels."""
LATENT_HEADS = 16
"""Heads for which a block of a latent cache is decoded at once."""
LATENT_TURNED = 8 * 16
"""Floats that may be written behind the keys of such a block, which are turned eight dimensions at a time."""
KEY_GROUP = 16
"""Keys are stored in groups of 16: [head_dim][16 keys]."""


def value_width(head_dim: int) -> int:
    """Values of one position and head as they are stored, padded to whole vectors."""
    return (head_dim + 15) // 16 * 16


def row_state_bytes(head_dim: int) -> int:
    """Bytes of a row's state in attention: maximum, sum, position, then the weighted values."""
    return ROW_STATE + (head_dim + 15) // 16 * 64


def latent_scratch(position_dim: int, content_dim: int, prompt: int) -> int:
    """Bytes that a thread of latent attention needs, see latent.py; prompt: 1 for prompt tokens, 0 for generated."""
    width, key_dim = value_width(content_dim), content_dim + position_dim
    rows = LATENT_HEADS * (TILE_TOKENS if prompt else 1)
    floats = 2 * SCORE_ROWS * KEY_BLOCK + KEY_BLOCK * (key_dim + width) + LATENT_TURNED + rows * key_dim
    return 4 * floats + (rows * row_state_bytes(content_dim) if prompt else 0) + 64


def chosen_scratch(position_dim: int, content_dim: int) -> int:
    """The same for attention to chosen keys: besides, one decoded block, and contents turned to keys."""
    width = value_width(content_dim)
    floats = KEY_BLOCK * (width + position_dim + content_dim) + LATENT_TURNED
    rows = LATENT_HEADS * row_state_bytes(content_dim)
    return latent_scratch(position_dim, content_dim, 0) + 4 * floats + rows


class ActivationFormat:
    """One activation format of the matrix-vector kernels: ``values`` activations in ``nbytes`` bytes."""

    def __init__(self, values: int, nbytes: int) -> None:
        self.values, self.nbytes = values, nbytes

    def size(self, n: int) -> int:
        """Bytes for n activations."""
        return -(-n // self.values) * self.nbytes


ACTIVATION_FORMATS = {
    # int8 in order | f32 d, e | int32 sum of the int8 | nothing
    "int8": ActivationFormat(32, 48),
    # int16, of every sixteen the even ones, then the odd ones | f32 d | nothing
    "int16": ActivationFormat(32, 80),
    # int8 in order | f32 [d0..3 e0..3 d4..7 e4..7] | f32 d per 16 | f32 e per 16
    "int8_super": ActivationFormat(256, 448),
    # float32 in order, padded with zeros
    "float32": ActivationFormat(64, 256),
}
"""d is the scale of 32 activations, e is d times their sum (per 32, or per 16 where it says so)."""


def panel_scratch(
    panel_bytes: int, chunk: int, together: int, n_chunks: int, max_tokens: int
) -> tuple[int, int]:
    """What a thread of the panel kernel needs: bytes of one unpacked panel, and of everything.

    panel_bytes: per 32 weights; chunk: blocks of 32 weights unpacked at once; together:
    panels unpacked at once.  PANEL_SPACE bytes come first, then the panels, and behind them,
    where a row takes several chunks, the sums so far, f32 [together][max_tokens in whole
    pairs of tiles][PANEL_ROWS].
    """
    panel = chunk * panel_bytes
    tokens = -(-max_tokens // (2 * TILE_TOKENS)) * 2 * TILE_TOKENS
    sums = tokens * PANEL_ROWS * 4 if n_chunks > 1 else 0
    return panel, PANEL_SPACE + together * (panel + sums) + 64


PANEL_SPACE = 64 + 4 * 1024
"""What the panel kernel works with for itself at level amx: the configuration of the tiles, and four
results of tiles, int32 [16 tokens][16 rows] each."""


FLOAT_COLUMNS = 256
"""Columns that the panel kernel of float weights takes at once, at most."""
FLOAT_STRIDE = 4 * FLOAT_COLUMNS + 64
"""Bytes from one token's activations to the next one's where that kernel has copied them side by side."""
FLOAT_SPACE = TILE_TOKENS * FLOAT_STRIDE
"""What these copies take."""


def float_panel_scratch(chunk: int, together: int, max_tokens: int) -> int:
    """Bytes that a thread of the panel kernel of float weights needs.

    chunk: columns unpacked at once; together: panels of 16 rows unpacked at once, of which it may join two.  Behind
    FLOAT_SPACE bytes stand the panels, f32 [chunk][rows] each, then the sums so far, f32 [tokens][rows] each.
    """
    rows = -(-together // 2) * 2 * PANEL_ROWS
    tokens = -(-max_tokens // TILE_TOKENS) * TILE_TOKENS
    return FLOAT_SPACE + 4 * rows * (chunk + tokens)


TILE_BLOCK = 448
"""Eight tokens times 32 activations for the panel kernel: int8 [8 groups][8 tokens][4] | f32 d [8] |
f32 e [8] | f32 e of the first 16 [8] | of the last 16 [8] | int32 minus the sum [8] |
int32 minus the sum of the first 16 [8].
At level i8mm the int8 are [4 groups][tokens 0 1 4 5 2 3 6 7][8]: at the same places from 4 t on, there are two
pairs of tokens for t = 0 and for t = 4."""
TILE_D, TILE_E, TILE_E0, TILE_E1, TILE_NEG, TILE_NEG0 = 256, 288, 320, 352, 384, 416

PAIR_BLOCK = 2 * TILE_BLOCK
"""The same for level amx, two tiles side by side: int8 [16 tokens][32] | f32 d [16] | f32 e [16] | f32 e of the
first 16 [16] | of the last 16 [16] | int32 minus the sum [16] | int32 minus the sum of the first 16 [16].
The second tile of the last pair may be missing."""
PAIR_D, PAIR_E, PAIR_E0, PAIR_E1, PAIR_NEG, PAIR_NEG0 = 512, 576, 640, 704, 768, 832

TEAM_BARRIER, TEAM_STOP, TEAM_EXIT, TEAM_WAITS = 0, 64, 72, 192
TEAM_TABLE, TEAM_TABLE_BYTES, TEAM_STEPS, TEAM_ACTIVE, TEAM_COUNT = 128, 136, 144, 152, 160
TEAM_MAIL, TEAM_ACK, TEAM_LINE = 256, 64, 128
"""What the thread team shares: barrier counter, stop flag, exit flag, long waits of thread 0; the job; and for
each thread a mailbox (the number of the last job posted to it) and, TEAM_ACK bytes behind, the last job it finished."""


def team_bytes(n_threads: int) -> int:
    """Size of the block that a team of n_threads shares."""
    return TEAM_MAIL + TEAM_LINE * n_threads
