"""How threads share out the values of a program, and how many bytes and units n values take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmgen.backends.cpu.kernels.layout import ACTIVATION_FORMATS

TOKENS = "tokens"
"""Partition of prompt values: each thread its own tiles of tokens."""


def share(n: int, unit: int) -> tuple[Callable[[int, int], int], Callable[[int, int], int]]:
    """first(thread, n_threads) and last(...) of a thread's share of n, in whole units."""
    units = -(-n // unit)

    def first(thread: int, n_threads: int) -> int:
        return min(units * thread // n_threads * unit, n)

    def last(thread: int, n_threads: int) -> int:
        return min(units * (thread + 1) // n_threads * unit, n)

    return first, last


def rows_unit(n: int) -> int:
    """The unit in which rows are shared out, so that quantized blocks and cache lines stay whole."""
    return 32 if n % 32 == 0 else 16


@dataclass(frozen=True)
class Rows:
    """Partition: each thread its own range of a token's n values."""

    n: int


@dataclass(frozen=True)
class Heads:
    """Partition: each thread its own heads of n, all tokens."""

    n: int


def floats_bytes(n: int) -> int:
    """Bytes of n floats, padded to whole vectors."""
    return -(-n // 16) * 64


def real_units(n: int, kind: str) -> int:
    """Blocks of 32 (for the float format: values) of n values."""
    return n if kind == "float32" else n // 32


def padded_units(n: int, kind: str) -> int:
    """As :func:`real_units`, with the padding of the format ``kind``."""
    values = ACTIVATION_FORMATS[kind].values
    padded = -(-n // values) * values
    return real_units(padded, kind)
