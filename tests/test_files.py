"""Files that are written whole or not at all: what is left after a kill, and what several writers do to one another."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import pytest

from llmgen import files
from llmgen.files import folder_lock, naming, replacing, try_lock

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX locks, modes and signals")

HALF = """
import sys, time
from pathlib import Path
from llmgen.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("half", flush=True)
    time.sleep(3600)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        with pytest.raises(OSError) as raised, naming(tmp_path / "out"):
            file.write(b"x")
    assert raised.value.filename == str(tmp_path / "out")
    with pytest.raises(FileNotFoundError) as missing, naming(tmp_path / "out"):
        (tmp_path / "other").open()
    assert missing.value.filename == str(tmp_path / "other")


def test_a_file_appears_whole_and_an_error_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as file:
        file.write(b"one")
        assert not path.exists()
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("no bytes")  # type: ignore[call-overload]
    assert path.read_bytes() == b"one"
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no" / "file"):
        pass
    assert names(tmp_path) == ["file"]


@posix
def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path, reason in ((pipe, "a pipe or a device"), (folder, "a folder")):
        with pytest.raises(OSError, match=reason), replacing(path):
            pytest.fail("it was opened")
    assert pipe.is_fifo()
    assert names(tmp_path) == ["folder", "pipe"]


@posix
def test_modes_and_the_longest_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = tmp_path / ("x" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:  # two threads that set it and set it back leave the wrong one
            patch.setattr(os, "umask", lambda mask: pytest.fail("the umask of all threads was changed"))
            for path, mode in ((longest, 0o600), (tmp_path / "open", 0o666)):
                with replacing(path, mode):
                    pass
                assert stat.S_IMODE(path.stat().st_mode) == mode & ~0o027
    finally:
        os.umask(before)


@posix
def test_what_a_killed_program_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", HALF, str(tmp_path / "file")], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"half\n"
        assert len(names(tmp_path)) == 2
        writers[0].kill()
        writers[0].wait()
        with replacing(tmp_path / "other"):
            pass
        left = names(tmp_path)
        assert len(left) == 2
        assert left[1] == "other"
        assert left[0].startswith(".")
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    with replacing(tmp_path / "other"):
        pass
    assert names(tmp_path) == ["other"]


@posix
def test_only_plain_files_of_that_name_are_leftovers(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".llmgen-pipe.tmp")
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / ".llmgen-link.tmp").symlink_to(tmp_path / "mine")
    (tmp_path / ".llmgen-folder.tmp").mkdir()
    (tmp_path / ".llmgen-old.tmp").write_bytes(b"half")
    with replacing(tmp_path / "file"):
        pass
    kept = [".llmgen-folder.tmp", ".llmgen-link.tmp", ".llmgen-pipe.tmp", "file", "mine"]
    assert names(tmp_path) == kept


@posix
def test_a_name_that_belongs_to_a_new_file_by_now_is_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = tmp_path / ".llmgen-old.tmp"
    leftover.write_bytes(b"left")

    def lock_late(file: IO[bytes]) -> str:
        if os.path.samestat(
            os.fstat(file.fileno()), inode
        ):  # another program removes it and its name is used anew
            leftover.unlink()
            leftover.write_bytes(b"new")
        return try_lock(file)

    inode = leftover.stat()
    monkeypatch.setattr(files, "try_lock", lock_late)
    with replacing(tmp_path / "file"):
        pass
    assert leftover.read_bytes() == b"new"


def test_many_writers_leave_one_whole_file(tmp_path: Path) -> None:
    path, problems = tmp_path / "file", []

    def write(letter: bytes) -> None:
        try:
            for _ in range(20):
                with replacing(path) as file:
                    file.write(letter * 5000)
                assert len(set(path.read_bytes())) == 1
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert names(tmp_path) == ["file"]


@posix
def test_a_lock_is_held_once(tmp_path: Path) -> None:
    with open(tmp_path / "lock", "wb") as one, open(tmp_path / "lock", "wb") as two:
        assert [try_lock(one), try_lock(two)] == ["held", "taken"]


def test_a_thread_does_not_wait_for_a_lock_of_its_own(tmp_path: Path) -> None:
    """As when the garbage collector closes an object in the middle of the work of another one."""
    path = tmp_path / "lock"
    with (
        folder_lock(path, lambda: None) as first,
        folder_lock(path, lambda: pytest.fail("it waits")) as second,
    ):
        assert not second
        assert path.exists()
    with folder_lock(path, lambda: None) as again:
        assert again == first
    assert names(tmp_path) == []
