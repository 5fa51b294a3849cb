"""The order of the tests, and whether a run takes so many of them that common kernels are compiled first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).resolve().parent
_LIGHT = ("gguf", "hub", "quantize", "sampling", "tokenizer")
"""Folders of short test files, which come last: then all processes end at about the same time."""


def comes_late(path: Path) -> bool:
    """Whether a test file is in one of the folders of short ones; one from elsewhere is not."""
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).parts[0] in _LIGHT


def takes_most(ids: Iterable[str]) -> bool:
    """Whether tests with these ids come from more than half of the suite's files."""
    files = {id.partition("::")[0] for id in ids}
    return 2 * len(files) > sum(1 for _ in TESTS.rglob("test_*.py"))
