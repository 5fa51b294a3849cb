"""The store of compiled kernels: never stale, never half a file, private, and usable without a home."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from kernels.compilations import KERNEL, LEVEL, OTHER, objects, posix, stored

from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.backends.cpu.runtime import library, sources
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.backends.cpu.runtime.store import ObjectStore, readable_stores, writable_store


def count_compilations(monkeypatch: pytest.MonkeyPatch, code: bytes) -> list[str]:
    """Replace the compiler by one that has the result ready; the names it was asked for."""
    asked: list[str] = []

    def compiled(names: list[str], level: str, progress: object, keep: library.Keep, claim: object) -> None:
        for name in names:
            asked.append(name)
            keep(name, code)

    monkeypatch.setattr(library, "_compile_in_children", compiled)
    return asked


# --- where it is ---


def put(code: bytes) -> ObjectStore:
    """KERNEL in the user's store."""
    written = writable_store()
    assert written is not None
    written.save(KERNEL, LEVEL, code)
    return written


@posix
def test_a_private_folder_where_the_environment_says(root: Path, code: bytes) -> None:
    written = put(code)
    (only,) = objects(root)
    assert only == written.path(KERNEL, LEVEL)
    for folder in (root / "kernels", only.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@posix
def test_an_open_folder_is_closed_and_what_was_in_it_is_gone(root: Path, code: bytes) -> None:
    put(code)
    (root / "kernels" / "link").symlink_to(root)
    (root / "kernels").chmod(0o777)
    assert readable_stores() == []
    written = writable_store()
    assert written is not None
    assert written.folder == root / "kernels"
    assert stat.S_IMODE((root / "kernels").stat().st_mode) == 0o700
    assert list((root / "kernels").iterdir()) == []
    assert root.exists()


@posix
@pytest.mark.filterwarnings("error")
def test_an_open_folder_is_emptied_by_two_processes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, unlink = root / "kernels", Path.unlink
    folder.mkdir(parents=True)
    (folder / "strange").touch()
    folder.chmod(0o777)

    def unlink_late(path: Path, missing_ok: bool = False) -> None:
        unlink(path)  # the other one was faster
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_late)
    written = writable_store()
    assert written is not None
    assert written.folder == folder
    assert list(folder.iterdir()) == []


@posix
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_have_changed_inside_is_not_read(what: str, root: Path, code: bytes) -> None:
    """In a folder that all may read, as in a container; it is closed when something is stored there again."""
    path = put(code).path(KERNEL, LEVEL)
    (root / "kernels").chmod(0o755)
    (path.parent if what == "folder" else path).chmod(0o777)
    assert stored().load(KERNEL, LEVEL) is None
    put(code)
    assert stored().load(KERNEL, LEVEL) == code


def test_a_home_folder_is_found_and_an_unknown_one_not_made(
    tmp_path: Path, root: Path, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a variable is set by something other than a shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.setenv("LLMGEN_CACHE", "~/cache")
    assert put(code).folder == tmp_path / "home" / "cache" / "kernels"
    monkeypatch.setenv("LLMGEN_CACHE", "~nobody-here/cache")
    with pytest.warns(UserWarning, match="no home folder is known"):
        put(code)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "tmp"]


@posix
def test_a_folder_that_others_may_only_read_is_read(root: Path, code: bytes) -> None:
    put(code)
    (root / "kernels").chmod(0o755)
    assert stored().load(KERNEL, LEVEL) == code


def test_what_is_there_is_read_and_nothing_is_written(
    root: Path, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be written, as one that was baked into a container."""
    put(code)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    for name in ("mkstemp", "mkdtemp", "TemporaryFile"):
        monkeypatch.setattr(tempfile, name, refuse)
    asked = count_compilations(monkeypatch, code)
    KernelLibrary().require([KERNEL])
    assert asked == []


def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that not even root could make: below a file; returns the fallback's path."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLMGEN_CACHE", str(tmp_path / "file" / "cache"))
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return tmp_path / "tmp" / f"llmgen-kernels-{user}"


def test_falls_back_with_one_warning(
    root: Path, code: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback = blocked(tmp_path, monkeypatch)
    asked = count_compilations(monkeypatch, code)
    with pytest.warns(UserWarning, match="cannot keep compiled kernels in .*file.* in .*llmgen-kernels-"):
        KernelLibrary().require([KERNEL])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelLibrary().require([KERNEL])
        KernelLibrary().require([OTHER])
    assert asked == [KERNEL, OTHER]
    assert stored().folder == fallback
    if os.name == "posix":
        assert stat.S_IMODE(fallback.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("what", ["a link", "a file"])
def test_a_planted_fallback_is_neither_written_nor_read(
    what: str, root: Path, code: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = put(code).folder
    before = objects(elsewhere)
    fallback = blocked(tmp_path, monkeypatch)
    if what == "a link":
        fallback.symlink_to(elsewhere)
    else:
        fallback.write_text("")
    assert readable_stores() == []
    asked = count_compilations(monkeypatch, code)
    compiled = KernelLibrary()
    with pytest.warns(UserWarning, match="llmgen-kernels-.*compiled again at the next start"):
        compiled.require([KERNEL, OTHER])
    assert asked == [KERNEL, OTHER]
    assert compiled.address(KERNEL)
    assert objects(elsewhere) == before


def test_a_disk_that_fills_up_is_told_and_survived(
    root: Path, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    count_compilations(monkeypatch, code)
    monkeypatch.setattr(ObjectStore, "save", full)
    compiled = KernelLibrary()
    with pytest.warns(UserWarning, match="No space left on device.*free some space") as caught:
        compiled.require([KERNEL, OTHER])
    assert len(caught) == 1
    assert compiled.address(KERNEL)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
def test_a_folder_of_someone_else_is_not_trusted(
    root: Path, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(code)
    os.chown(root / "kernels", 12345, -1)
    assert readable_stores() == []
    with pytest.warns(UserWarning, match="belongs to another user"):
        written = writable_store()
    assert written is not None
    assert written.folder != root / "kernels"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can be another user")
def test_the_administrators_folder_is_read(root: Path, code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    put(code)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert stored().load(KERNEL, LEVEL) == code


# --- what is in it ---


def test_a_second_library_compiles_nothing(root: Path, code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_compilations(monkeypatch, code)
    first = KernelLibrary()
    first.require([KERNEL, KERNEL])
    assert asked == [KERNEL]
    first.require([KERNEL])
    second = KernelLibrary()
    second.require([KERNEL, KERNEL])
    assert asked == [KERNEL]
    assert second.address(KERNEL)


def test_a_cache_that_is_emptied_meanwhile_does_no_harm(
    root: Path, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_compilations(monkeypatch, code)
    compiled = library._compile_in_children

    def emptied(*arguments: Any) -> None:
        compiled(*arguments)
        shutil.rmtree(root)

    monkeypatch.setattr(library, "_compile_in_children", emptied)
    first = KernelLibrary()
    first.require([KERNEL])
    assert first.address(KERNEL)
    monkeypatch.setattr(library, "_compile_in_children", compiled)
    KernelLibrary().require([KERNEL])
    assert asked == [KERNEL, KERNEL]
    if os.name == "posix":
        assert stat.S_IMODE((root / "kernels").stat().st_mode) == 0o700


def damage() -> dict[str, object]:
    return {
        "empty": lambda d: b"",
        "magic only": lambda d: d[:16],
        "cut in the checksum": lambda d: d[:30],
        "cut in half": lambda d: d[: len(d) // 2],
        "one byte short": lambda d: d[:-1],
        "one byte more": lambda d: d + b"\0",
        "one bit": lambda d: d[:200] + bytes([d[200] ^ 4]) + d[201:],
        "checksum": lambda d: d[:20] + bytes([d[20] ^ 1]) + d[21:],
        "another version": lambda d: d.replace(b"llmgen-object-1", b"llmgen-object-0", 1),
        "HTML": lambda d: b"<html>" + d,
    }


@pytest.mark.parametrize("kind", damage())
def test_a_damaged_file_is_compiled_again(
    kind: str, root: Path, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_compilations(monkeypatch, code)
    store = put(code)
    path = store.path(KERNEL, LEVEL)
    path.write_bytes(damage()[kind](path.read_bytes()))  # type: ignore[operator]
    assert store.load(KERNEL, LEVEL) is None
    KernelLibrary().require([KERNEL])
    assert asked == [KERNEL]
    assert store.load(KERNEL, LEVEL) == code


def test_the_name_follows_a_kernels_own_sources(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names() -> dict[str, Path]:
        sources.forget()
        kernels = ("norms:rms_norm", "quants.panel:q4_0", "team:work")
        return {name.split(":")[0]: ObjectStore(root).path(name, LEVEL) for name in kernels}

    copies = {"_KERNELS": tmp_path / "kernels", "_RUNTIME": tmp_path / "runtime"}
    for name, copy in copies.items():
        shutil.copytree(getattr(sources, name), copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(sources._BLOCK_SIZES, tmp_path / "types.py")
    original = names()
    monkeypatch.setattr(sources, "_KERNELS", copies["_KERNELS"])
    monkeypatch.setattr(sources, "_BLOCK_SIZES", tmp_path / "types.py")
    monkeypatch.setattr(sources, "_COMPILER", (tmp_path / "runtime/compile.py", tmp_path / "runtime/cpu.py"))
    try:
        assert names() == original
        for changed, whose in (
            ("kernels/norms.py", {"norms"}),
            ("kernels/quants/legacy.py", {"quants.panel"}),
            ("kernels/quants/kquants.py", set()),  # the functions of other types
            ("types.py", {"quants.panel"}),
            ("kernels/simd.py", {"norms", "quants.panel", "team"}),
            ("kernels/attention.py", set()),
            ("runtime/team.py", set()),  # the pool in Python is no source of a kernel
            ("runtime/compile.py", {"norms", "quants.panel", "team"}),
        ):
            path = tmp_path / changed
            before = path.read_text(encoding="utf-8")
            path.write_text(before + "\n# a comment\n", encoding="utf-8")
            now = names()
            assert {name for name in now if now[name] != original[name]} == whose
            path.write_text(before, encoding="utf-8")
        assert names() == original
        monkeypatch.setattr("importlib.metadata.version", lambda name: f"0.0-{name}")
        assert all(now != then for now, then in zip(names().values(), original.values(), strict=True))
    finally:
        monkeypatch.undo()
        sources.forget()
    levels = {ObjectStore(root).path(KERNEL, level).parent for level in (LEVEL, "generic")}
    assert len(levels) == (1 if LEVEL == "generic" else 2)


def test_every_import_of_a_kernel_is_a_source() -> None:
    """What a kernel's module really loads of the package, numba's own process asked."""
    kernels = ("norms:rms_norm", "attention:combine", "choice:choose", "team:work", "cache:keys_f16")
    quants = [TABLE[key] for key in ("bf16", "q8_0", "q6_k", "q3_k")]
    types = [name for quant in quants for name in (quant.matvec, quant.panel, quant.embed)]
    code = """
import importlib, sys
package = "llmgen.backends.cpu.kernels"
module, name = sys.argv[1].split(":")
getattr(importlib.import_module(f"{package}.{module}"), name)
print(*(sys.modules[name].__file__ for name in list(sys.modules) if name.startswith(package + ".")))
"""
    for kernel in (*kernels, *types):
        loaded = subprocess.run(
            [sys.executable, "-c", code, kernel], capture_output=True, text=True, check=True
        )
        assert set(map(Path, loaded.stdout.split())) <= set(sources.sources_of(*sources.modules_of(kernel)))
