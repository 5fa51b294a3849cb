"""How the key block that is read next is asked for while one is read.

A processor fetches ahead by itself only within a page, and one stream of requests leaves most of the memory's speed
unused.  So the lines of the next block, its keys and behind them its values, are cut into as many equal parts as
there are to be streams, and asked for in turn: the first line of each part, then the second of each.  For each
cache line that is read of a block, one of the next block is asked for.  No result depends on it.
"""

from __future__ import annotations

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.simd import prefetch_far

LINE_SHIFT = 6
LINE = 1 << LINE_SHIFT
"""Bytes of a cache line."""


NOTHING = (0, 0, 0, 0, 0, 0)
"""What is asked for where nothing is."""


@inline
def upcoming(keys, values, key_bytes, value_bytes, log_streams):  # type: ignore[no-untyped-def]
    """What ``ask`` has to know of the block at these addresses; log_streams: log2 of the streams."""
    key_lines, value_lines = (key_bytes + LINE - 1) >> LINE_SHIFT, (value_bytes + LINE - 1) >> LINE_SHIFT
    return keys, values, key_bytes, key_lines, (key_lines + value_lines) >> log_streams, log_streams


@inline
def ask(coming, done):  # type: ignore[no-untyped-def]
    """Ask for a line of the next block, when ``done`` bytes of this one have been read, values counted behind keys."""
    keys, values, _, key_lines, part, log_streams = coming
    moment = done >> LINE_SHIFT
    line = (moment & ((1 << log_streams) - 1)) * part + (moment >> log_streams)
    if line < key_lines:
        prefetch_far(keys + line * LINE)
    else:
        prefetch_far(values + (line - key_lines) * LINE)
