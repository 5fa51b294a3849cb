"""Files that are wrong in one way each: one clear sentence, at once, and little memory."""

from __future__ import annotations

import errno
import os
import pickle
import random
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import gguf_files as gf
from llmgen.errors import ModelFileError
from llmgen.gguf import GGUFFile
from llmgen.gguf import metadata as metadata_module

HUGE = 2**60


def refused(path: Path | str) -> str:
    """Open the file, which must be refused in the way that all are; returns the message."""
    tracemalloc.start()
    start = time.thread_time()
    try:
        with pytest.raises(ModelFileError) as caught:
            GGUFFile.open(path)
        seconds = time.thread_time() - start  # of the processor: others may keep it busy
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert seconds < 5
    assert peak < 2_000_000, f"{peak:,} bytes allocated for {message}"
    assert message.isprintable()
    assert len(message) < 600 + len(str(path))
    found, _, what_to_do = message.rpartition("; ")
    assert found
    assert what_to_do
    assert ". " not in message.replace(str(path), "")
    return message


def nested(depth: int) -> bytes:
    """A key whose value is one array in another, ``depth`` times."""
    return gf.pair("deep", gf.ARRAY, gf.array(gf.ARRAY, [b""]) * depth + gf.array(gf.U8, [1]))


def key(*pairs: bytes) -> gf.Spec:
    return gf.Spec().with_pair(*pairs)


def tensors(*rows: bytes) -> gf.Spec:
    return gf.Spec().with_tensors(*rows)


def aligned(kind: int, content: object) -> gf.Spec:
    return gf.Spec(pairs=[gf.pair("general.alignment", kind, content)])


def shaped(*shape: int, kind: int = 0, n_dims: int | None = None) -> gf.Spec:
    return tensors(gf.tensor("t", shape, kind, 0, n_dims))


T = gf.tensor
MUTATIONS: dict[str, tuple[gf.Spec, str]] = {
    # header
    "version 0": (gf.Spec(version=0), "GGUF version 0, expected version 2 or 3"),
    "version 1": (gf.Spec(version=1), "GGUF version 1, expected version 2 or 3; convert"),
    "version 4": (gf.Spec(version=4), "GGUF version 4, expected version 2 or 3; get a newer llmgen"),
    "version huge": (gf.Spec(version=2**32 - 1), "GGUF version 4,294,967,295"),
    "big-endian": (gf.Spec(version=3 << 24), "big-endian GGUF file, expected little-endian"),
    "2^60 tensors": (gf.Spec(n_tensors=HUGE), "claims 1,152,921,504,606,846,976 tensors, but only"),
    "2^64-1 tensors": (gf.Spec(n_tensors=2**64 - 1), "claims 18,446,744,073,709,551,615 tensors"),
    "2^60 keys": (gf.Spec(n_pairs=HUGE), "claims 1,152,921,504,606,846,976 metadata keys"),
    "one key too many": (gf.Spec(n_pairs=8), "the name of tensor 1 of 2 is 562,949,953,421,312 bytes long"),
    "one key too few": (gf.Spec(n_pairs=6), "the tensor 'a.nested' has 9 dimensions, expected 1 to 4"),
    "one tensor too many": (gf.Spec(n_tensors=3), "tensor 3 of 3"),
    # keys
    "key of 2^60 bytes": (key(gf.u64(HUGE)), "key 8 of 8 is 1,152,921,504,606,846,976 bytes long"),
    "key not UTF-8": (key(gf.pair(b"\xff\xfe", gf.U8, 1)), "which is not valid UTF-8"),
    "key twice": (key(gf.pair("a.flag", gf.BOOL, 1)), "the key 'a.flag' occurs twice"),
    "key with an escape code": (
        key(gf.pair("\x1b[31mred\n", gf.BOOL, 7)),
        r"'\x1b[31mred\n' has a truth value of 7, expected 0 or 1",
    ),
    # values
    "unknown value type": (
        key(gf.string("k") + gf.u32(13)),
        "the value of 'k' has the type 13, expected 0 to 12",
    ),
    "string of 2^60 bytes": (
        key(gf.string("k") + gf.u32(gf.STRING) + gf.u64(HUGE)),
        "claims 1,152,921,504,606,846,976 bytes in the value of 'k', but only",
    ),
    "bool of 2": (key(gf.pair("k", gf.BOOL, 2)), "'k' has a truth value of 2, expected 0 or 1"),
    "bool of 255 in an array": (
        key(gf.pair("k", gf.ARRAY, gf.array(gf.BOOL, [0, 1, 255]))),
        "'k' has a truth value of 255, expected 0 or 1",
    ),
    "array of an unknown type": (
        key(gf.pair("k", gf.ARRAY, gf.array(99, []))),
        "the type 99, expected 0 to 12",
    ),
    "array of 2^60 numbers": (
        key(gf.pair("k", gf.ARRAY, gf.array(gf.F64, [], HUGE))),
        "claims 1,152,921,504,606,846,976 elements in the value of 'k'",
    ),
    "array of 2^61 numbers": (
        key(gf.pair("k", gf.ARRAY, gf.array(gf.F64, [], 2**61))),
        "elements in the value of",
    ),
    "array of 2^60 strings": (
        key(gf.pair("k", gf.ARRAY, gf.array(gf.STRING, [], HUGE))),
        "elements in the value",
    ),
    "array of 2^60 arrays": (
        key(gf.pair("k", gf.ARRAY, gf.array(gf.ARRAY, [], HUGE))),
        "elements in the value",
    ),
    "array with a long string": (
        key(gf.pair("k", gf.ARRAY, gf.u32(gf.STRING) + gf.u64(2) + gf.string("a") + gf.u64(HUGE))),
        "the value of 'k' reaches past the end of the file",
    ),
    "array with 2^64-1 long string": (
        key(gf.pair("k", gf.ARRAY, gf.u32(gf.STRING) + gf.u64(2) + gf.u64(2**64 - 1) + gf.string("a"))),
        "the value of 'k' reaches past the end of the file",
    ),
    "nested too deep": (key(nested(4)), "deeper than 4 levels"),
    "nested as a bomb": (key(nested(100_000)), "deeper than 4 levels"),
    "architecture a number": (gf.Spec(pairs=[gf.pair("general.architecture", gf.U32, 1)]), "expected STRING"),
    # alignment
    "alignment 0": (aligned(gf.U32, 0), "'general.alignment' is 0, expected a power of two"),
    "alignment 48": (aligned(gf.U32, 48), "'general.alignment' is 48, expected a power of two"),
    "alignment 2^31": (aligned(gf.U32, 2**31), "is 2,147,483,648, expected a power of two up to"),
    "alignment a string": (aligned(gf.STRING, "32"), "of type STRING, expected UINT32"),
    "alignment past the end": (aligned(gf.U32, 1 << 20), "ends at byte 1,048,612, but the file ends at"),
    # tensors
    "tensor name not UTF-8": (tensors(T(b"\xc3", [1], 0, 0)), "which is not valid UTF-8"),
    "tensor name too long": (tensors(T("n" * 256, [1], 0, 0)), "is 256 bytes long, expected at most 255"),
    "tensor twice": (tensors(T("t", [1], 0, 0), T("t", [1], 0, 32)), "the tensor 't' occurs twice"),
    "no dimensions": (shaped(), "the tensor 't' has 0 dimensions, expected 1 to 4"),
    "five dimensions": (shaped(1, 1, 1, 1, 1), "the tensor 't' has 5 dimensions"),
    "2^32-1 dimensions": (shaped(1, n_dims=2**32 - 1), "the tensor 't' has 4,294,967,295 dimensions"),
    "dimension of 0": (shaped(4, 0), "has the shape 4 x 0, expected no dimension of 0"),
    "first dimension of 0": (shaped(0, 4), "has the shape 0 x 4, expected no dimension of 0"),
    "product of 2^64": (shaped(2**32, 2**32), "too large to be addressed"),
    "product of 2^64 in four": (shaped(2**16, 2**16, 2**16, 2**16), "too large to be addressed"),
    "dimension of 2^64-1": (shaped(2**64 - 1), "too large to be addressed"),
    "bytes of 2^63": (shaped(2**61), "too large to be addressed"),
    "bytes of 2^62": (shaped(2**60), "ends at byte 4,611,686,018,427,388,"),
    "broken block": (shaped(33, 32, kind=2), "rows of 33 values, expected a multiple of 32 for Q4_0"),
    "unknown type twice at a place": (
        tensors(T("a", [1], 1000, 0), T("b", [1], 1000, 0)),
        "the tensors 'a' and 'b' overlap",
    ),
    "unknown type out of file": (tensors(T("t", [1], 1000, 96)), "the tensor 't' ends at byte"),
    "offset misaligned": (tensors(T("t", [1], 0, 4)), "has the offset 4, expected a multiple of 32"),
    "offset out of file": (tensors(T("t", [1], 0, 96)), "the tensor 't' ends at byte"),
    "offset of 2^63": (tensors(T("t", [1], 0, 2**63)), "the tensor 't' ends at byte 9,223,372,036,854,77"),
    "one value too many": (tensors(T("t", [20], 0, 0)), "the file is cut short"),
    "overlap": (tensors(T("a", [10], 0, 0), T("b", [1], 0, 32)), "the tensors 'a' and 'b' overlap"),
    "same place": (tensors(T("a", [1], 0, 32), T("b", [1], 0, 32)), "the tensors 'a' and 'b' overlap"),
    # splits
    "2^16-1 parts": (
        key(gf.pair("split.no", gf.U16, 0), gf.pair("split.count", gf.U16, 2**16 - 1)),
        "the first of 65,535 parts, expected a name that ends in -00001-of-65535.gguf",
    ),
    "2^60 parts": (key(gf.pair("split.count", gf.U64, HUGE)), "expected 1 to 99,999"),
    "-1 parts": (key(gf.pair("split.count", gf.I16, -1)), "'split.count' is -1, expected 1 to 99,999"),
    "parts as text": (key(gf.pair("split.count", gf.STRING, "2")), "of type STRING, expected a whole number"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_one_thing_wrong(tmp_path: Path, name: str) -> None:
    spec, expected = MUTATIONS[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(spec.to_bytes())
    message = refused(path)
    assert message.startswith(f"{path}: ")
    assert expected in message


def test_what_is_changed_is_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gf.Spec().to_bytes())
    GGUFFile.open(path).close()


OTHER_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "three bytes": (b"GGU", "has only 3 bytes"),
    "magic only": (b"GGUF", "the version takes 4 bytes at byte 4, but the file ends at 4"),
    "html": (b"<!DOCTYPE html><html><body>Not found</body></html>", "looks like a web page"),
    "html after blanks": (b"\xef\xbb\xbf\n\n  <HTML>", "looks like a web page"),
    "xml": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML or HTML page"),
    "json": (b'{"error": "Repository not found"}', "looks like JSON text"),
    "text": (b"Entry not found \x09 here", "looks like text starting with 'Entry not found"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n", "a Git LFS pointer"),
    "safetensors": (
        gf.u64(40) + b'{"weight":{"dtype":"F32","shape":[1]}}  ' + bytes(4),
        "a safetensors file",
    ),
    "pickle": (pickle.dumps({"weight": [1.0]}, protocol=2), "looks like a Python pickle"),
    "gzip": (b"\x1f\x8b\x08" + bytes(20), "looks like a gzip archive"),
    "old ggml": (b"lmgg" + bytes(20), "an old GGML file"),
    "old ggjt": (b"tjgg\x03\x00\x00\x00", "an old GGJT file"),
    "turned round": (b"FUGG" + bytes(20), "a big-endian GGUF file"),
    "zeros": (bytes(4096), "nothing but zero bytes"),
    "noise": (bytes(range(200, 256)), "unknown data starting with the bytes c8 c9 ca cb cc cd ce cf"),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_something_else_in_place_of_a_model(tmp_path: Path, name: str) -> None:
    content, expected = OTHER_FILES[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert expected in refused(path)


def test_a_zip_file_in_place_of_a_model(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.gguf", "w") as archive:
        archive.writestr("data.pkl", b"x" * 100)
    assert "a zip archive" in refused(tmp_path / "model.gguf")


def test_no_such_file(tmp_path: Path) -> None:
    assert "there is no such file; check the path" in refused(tmp_path / "absent.gguf")
    assert "there is no such file; '~' is not expanded here" in refused("~/absent.gguf")
    assert "the path is empty" in refused("")


def test_a_folder(tmp_path: Path) -> None:
    assert "this is a folder, expected a .gguf file" in refused(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(tmp_path / "pipe")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gf.Spec().to_bytes())

    def forbidden(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", forbidden)
    assert "no permission to read this file" in refused(path)


def test_no_room_to_map_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a limit on address space."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content := gf.Spec().to_bytes())

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", full)
    message = refused(path)
    assert f"no room to map the {len(content):,} bytes of this file; raise the limit" in message


def test_names_the_system_refuses(tmp_path: Path) -> None:
    assert "the file cannot be read" in refused(str(tmp_path / "a\0b.gguf"))
    assert "the file cannot be read" in refused(tmp_path / ("n" * 5000))
    (tmp_path / "file").write_bytes(b"x")
    assert str(tmp_path / "file" / "model.gguf") in refused(tmp_path / "file" / "model.gguf")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_odd_names_are_shown_escaped(tmp_path: Path) -> None:
    path = tmp_path / "bad\x1b[2J\nname\udcff.gguf"
    try:
        path.write_bytes(b"")
    except OSError:
        pytest.skip("this file system refuses the name")
    assert r"bad\x1b[2J\nname\udcff.gguf: the file is empty" in refused(path)


def test_a_file_cut_at_any_byte(tmp_path: Path) -> None:
    whole = gf.Spec().to_bytes()
    path = tmp_path / "model.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError) as caught:
            GGUFFile.open(path)
        assert "download" in str(caught.value), length


def read_all(path: Path) -> None:
    """Open and read everything there is, or be refused."""
    try:
        file = GGUFFile.open(path)
    except ModelFileError:
        return
    with file:
        for content in file.metadata.values():
            list(content) if hasattr(content, "__len__") else content
        for info in file.tensors.values():
            assert len(info.data) == info.nbytes
            info.data.sum()


def flip(rng: random.Random, whole: bytes) -> bytes:
    """Some bytes of the head set to something else."""
    changed = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(whole) - 76)] = rng.choice(
            [0, 1, 2, 7, 8, 9, 127, 128, 255, rng.randrange(256)]
        )
    return bytes(changed)


def cut_and_join(rng: random.Random, whole: bytes) -> bytes:
    """A piece of the file left out or there twice."""
    start, end = sorted(rng.sample(range(len(whole)), 2))
    return whole[:end] + whole[start:] if rng.random() < 0.5 else whole[:start] + whole[end:]


@pytest.mark.parametrize("change", [flip, cut_and_join])
def test_random_damage(tmp_path: Path, change: Callable[[random.Random, bytes], bytes]) -> None:
    rng = random.Random(20)
    whole = gf.Spec().to_bytes()
    path = tmp_path / "model.gguf"
    for _ in range(600):
        path.write_bytes(change(rng, whole))
        read_all(path)


def test_many_short_things_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgen.gguf.cursor.MAX_STRINGS", 1000)
    monkeypatch.setattr("llmgen.gguf.cursor.MAX_ARRAYS", 100)
    monkeypatch.setattr("llmgen.gguf.metadata.MAX_STRING_BYTES", 500)
    monkeypatch.setattr("llmgen.gguf.part.MAX_KEYS", 50)
    monkeypatch.setattr("llmgen.gguf.part.MAX_TENSORS", 50)
    path = tmp_path / "model.gguf"
    strings = gf.pair("k", gf.ARRAY, gf.array(gf.STRING, [""] * 998))  # three more are there already
    arrays = gf.pair("k", gf.ARRAY, gf.array(gf.ARRAY, [gf.array(gf.U8, [])] * 99))
    cases = [
        (key(strings), "strings, expected fewer"),
        (key(gf.pair("k", gf.STRING, "x" * 501)), "has 501 bytes in the value of 'k', expected at most 500"),
        (key(arrays), "arrays within arrays, expected fewer"),
        (
            gf.Spec(pairs=[gf.pair(f"k{i}", gf.U8, 1) for i in range(51)]),
            "has 51 metadata keys, expected at most 50",
        ),
        (tensors(*(T(f"t{i}", [1], 0, 0) for i in range(51))), "has 51 tensors, expected at most 50"),
    ]
    for spec, expected in cases:
        path.write_bytes(spec.to_bytes())
        assert expected in refused(path)


def test_metadata_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgen.gguf.cursor.MAX_HEAD_BYTES", 400)
    path = tmp_path / "model.gguf"
    path.write_bytes(gf.Spec().to_bytes())
    assert "expected all metadata within 400 bytes" in refused(path)


def test_refused_files_are_unmapped(tmp_path: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    path = tmp_path / "model.gguf"
    path.write_bytes(gf.Spec(n_tensors=3).to_bytes())
    refused(path)
    assert str(path) not in maps.read_text()


def test_depth_limit_leaves_room_for_real_files() -> None:
    assert metadata_module.MAX_DEPTH >= 2
