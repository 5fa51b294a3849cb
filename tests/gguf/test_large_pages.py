"""Moving a mapped file into large pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llmgen.gguf import large_pages
from llmgen.gguf.large_pages import PIECE, LargePages, supported
from llmgen.gguf.mapping import MappedFile

linux = pytest.mark.skipif(not supported(), reason="no transparent large pages here")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[MappedFile]:
    """A file of a little more than two pieces."""
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(1).bytes(2 * PIECE + (5 << 20)))
    mapped = MappedFile(path)
    yield mapped
    mapped.close()


def _access(address: int) -> str:
    """What the memory at an address allows, as proc_pid_maps(5) says it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access, *_ = line.split()
        start, end = (int(part, 16) for part in where.split("-"))
        if start <= address < end:
            return access
    raise AssertionError(f"nothing at {address:x}")


@linux
def test_a_moved_file_has_the_same_bytes_at_the_same_addresses(file: MappedFile) -> None:
    before, array = file.path.read_bytes(), file.bytes
    pages = LargePages([file])
    assert pages.left == 2 * PIECE
    pages.move_one()
    assert pages.left == PIECE
    assert array.tobytes() == before  # a piece of each kind
    pages.move_all(2)
    assert pages.left == 0
    assert array.tobytes() == before == bytes(file.buffer)
    assert file.address == array.ctypes.data


@linux
def test_moved_pieces_are_private_and_read_only(file: MappedFile) -> None:
    inside = file.address + file.size // 2
    assert _access(inside) == "r--s"
    LargePages([file]).move_all(1)
    assert _access(inside) == "r--p"


@linux
def test_a_moved_piece_outlives_what_is_done_to_the_file(file: MappedFile) -> None:
    inside, before = slice(PIECE, PIECE + 4096), file.path.read_bytes()
    LargePages([file]).move_all(1)
    os.truncate(file.path, 0)
    assert file.bytes[inside].tobytes() == before[inside]
    assert file.is_cut_short()


@linux
def test_nothing_more_is_moved_after_an_error(file: MappedFile) -> None:
    pages = LargePages([file])
    os.truncate(file.path, PIECE // 2)
    with pytest.raises(OSError, match="cut short"):
        pages.move_one()
    assert pages.left == 0


@linux
def test_reading_is_timed_where_there_are_pieces_of_both_kinds(file: MappedFile) -> None:
    pages = LargePages([file])
    assert pages.reading() == (0.0, 0.0)
    pages.move_one()
    assert min(pages.reading()) > 0.0
    pages.move_one()
    assert pages.reading() == (0.0, 0.0)


def test_where_the_system_has_none_there_is_nothing_to_move(
    file: MappedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_pages, "supported", lambda: False)
    pages = LargePages([file])
    assert pages.left == 0
    pages.move_one()
    pages.move_all(1)
