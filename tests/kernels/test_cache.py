"""The store of compiled kernels: never stale, never half a file, private, and usable without a home."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgen.errors import KernelError
from llmgen.kernels import library
from llmgen.kernels.cpu import target
from llmgen.kernels.library import KernelLibrary, ObjectStore

KERNEL = "team:dismiss"  # a small one
OTHER = "team:post"
LEVEL = target().level
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX permissions and signals")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of this test's own."""
    monkeypatch.setenv("LLMGEN_CACHE", str(tmp_path / "cache"))
    ObjectStore.default.cache_clear()
    yield tmp_path / "cache"
    ObjectStore.default.cache_clear()


@pytest.fixture(scope="module")
def code() -> bytes:
    """Object code of KERNEL, from the user's store."""
    KernelLibrary().require([KERNEL])
    found = ObjectStore.default().load(KERNEL, LEVEL)
    assert found
    return found


def count_compilations(monkeypatch: pytest.MonkeyPatch, code: bytes) -> list[str]:
    """Replace the compiler by one that has the result ready; the names it was asked for."""
    asked: list[str] = []

    def compiled(names: list[str], level: str, progress: object) -> None:
        for name in names:
            asked.append(name)
            ObjectStore.default().save(name, level, code)

    monkeypatch.setattr(library, "_compile_in_children", compiled)
    return asked


def run(script: str, **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


REQUIRE = f"""
from llmgen.kernels.library import KernelLibrary
KernelLibrary().require([{KERNEL!r}, {OTHER!r}], lambda *p: print("progress", p, flush=True))
print("done", flush=True)
"""


def objects(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file())


# --- where it is ---


@posix
def test_a_private_folder_where_the_environment_says(root: Path, code: bytes) -> None:
    ObjectStore.default().save(KERNEL, LEVEL, code)
    (only,) = objects(root)
    assert only == ObjectStore.default().path(KERNEL, LEVEL)
    for folder in (root / "kernels", only.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@posix
def test_an_open_folder_is_closed(root: Path) -> None:
    (root / "kernels").mkdir(parents=True)
    (root / "kernels").chmod(0o777)
    assert ObjectStore.default().folder == root / "kernels"
    assert stat.S_IMODE((root / "kernels").stat().st_mode) == 0o700


def fall_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ObjectStore, list[str]]:
    """The store where the usual place is no folder, and the warnings given."""
    temporary = tmp_path / "tmp"
    temporary.mkdir(exist_ok=True)
    monkeypatch.setattr(library.tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("LLMGEN_STORE_WARNED", "")
    monkeypatch.delenv("LLMGEN_STORE_WARNED")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = ObjectStore.default()
        ObjectStore.default()
        ObjectStore.default.cache_clear()
        ObjectStore.default()
    return store, [str(w.message) for w in caught]


def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that not even root could make: below a file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLMGEN_CACHE", str(tmp_path / "file" / "cache"))
    ObjectStore.default.cache_clear()


def test_falls_back_with_one_warning(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked(tmp_path, monkeypatch)
    store, messages = fall_back(tmp_path, monkeypatch)
    assert store.folder.parent == tmp_path / "tmp"
    assert len(messages) == 1
    assert str(tmp_path / "file") in messages[0]
    assert str(store.folder) in messages[0]
    if os.name == "posix":
        assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_compiles_into_the_fallback(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked(tmp_path, monkeypatch)
    store, _ = fall_back(tmp_path, monkeypatch)
    KernelLibrary().require([KERNEL])
    assert store.load(KERNEL, LEVEL)


def test_compiles_where_even_the_fallback_is_taken(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked(tmp_path, monkeypatch)
    (tmp_path / "tmp").mkdir()
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    (tmp_path / "tmp" / f"llmgen-kernels-{user}").write_text("not a folder")
    fall_back(tmp_path, monkeypatch)
    KernelLibrary().require([KERNEL])


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
def test_a_folder_of_someone_else_is_not_trusted(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "kernels").mkdir(parents=True)
    os.chown(root / "kernels", 12345, -1)
    store, messages = fall_back(tmp_path, monkeypatch)
    assert store.folder != root / "kernels"
    assert len(messages) == 1


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
    store = ObjectStore.default()
    store.save(KERNEL, LEVEL, code)
    path = store.path(KERNEL, LEVEL)
    path.write_bytes(damage()[kind](path.read_bytes()))  # type: ignore[operator]
    assert store.load(KERNEL, LEVEL) is None
    KernelLibrary().require([KERNEL])
    assert asked == [KERNEL]
    assert store.load(KERNEL, LEVEL) == code


def test_the_key_follows_sources_versions_and_instructions(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key() -> str:
        library._sources_hash.cache_clear()
        return ObjectStore.default().path(KERNEL, LEVEL).parent.name

    copy = tmp_path / "copy"
    shutil.copytree(Path(library.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        original = key()
        monkeypatch.setattr(library, "__file__", str(copy / "library.py"))
        assert key() == original
        for changed in (copy / "norms.py", copy / "quants" / "legacy.py"):
            before = changed.read_text(encoding="utf-8")
            changed.write_text(before + "\n# a comment\n", encoding="utf-8")
            assert key() != original
            changed.write_text(before, encoding="utf-8")
        assert key() == original
        (copy / "new.py").write_text("")
        assert key() != original
        (copy / "new.py").unlink()
        monkeypatch.setattr("importlib.metadata.version", lambda name: f"0.0-{name}")
        assert key() != original
    finally:
        monkeypatch.undo()
        library._sources_hash.cache_clear()
    levels = {ObjectStore.default().path(KERNEL, level).parent for level in (LEVEL, "generic")}
    assert len(levels) == (1 if LEVEL == "generic" else 2)


# --- processes ---


def test_two_processes_at_once(root: Path) -> None:
    children = [run(REQUIRE) for _ in range(2)]
    for child in children:
        out, err = child.communicate(timeout=300)
        assert child.returncode == 0, err
        assert out.splitlines()[-1] == "done"
        assert "progress (2, 2)" in out
    files = objects(root)
    assert [f.name for f in files] == ["team.dismiss.o", "team.post.o"]  # nothing temporary is left
    assert all(ObjectStore.default().load(name, LEVEL) for name in (KERNEL, OTHER))


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_compilation_leaves_nothing_bad(root: Path, number: int) -> None:
    child = run(REQUIRE.replace(OTHER, "attention:tiles_f16"))  # which takes seconds
    assert child.stdout
    assert "progress" in child.stdout.readline()  # the compilers have been started
    time.sleep(0.3)
    child.send_signal(number)
    child.communicate(timeout=120)
    assert child.returncode != 0
    for path in objects(root):
        if path.suffix == ".o":
            assert ObjectStore.default().load(path.stem.replace(".", ":"), LEVEL)
    KernelLibrary().require([KERNEL])


def no_compiler(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Children that run ``script`` instead of the compiler."""
    start = subprocess.Popen

    def popen(arguments: list[str], **options: object) -> object:
        return start([sys.executable, "-c", script], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(library.subprocess, "Popen", popen)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), 9)", "exit status -9"),
        ("raise SystemExit('numba is not here')", "numba is not here"),
        ("import sys; sys.stdin.readline(); 1 / 0", "ZeroDivisionError"),
        ("import sys; print(sys.stdin.readline().upper())", "failed"),
        ("import sys; [print(line, end='', flush=True) for line in sys.stdin]", "cannot be read back"),
    ],
)
def test_a_compiler_that_dies_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    no_compiler(monkeypatch, script)
    with pytest.raises(KernelError, match=says) as caught:
        KernelLibrary().require([KERNEL, OTHER])
    assert "team:" in str(caught.value)


def test_a_compiler_that_complains_at_length_is_heard_out(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: bytes
) -> None:
    """More warnings than a pipe holds must not stop it."""
    script = (
        "import sys\nfor line in sys.stdin: sys.stderr.write('oh\\n' * 90000); print(line, end='', flush=1)"
    )
    no_compiler(monkeypatch, script)
    ObjectStore.default().save(KERNEL, LEVEL, code)
    library._compile_in_children([KERNEL], LEVEL, None)


def test_files_in_the_current_folder_are_not_imported(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numba", "numpy", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    KernelLibrary().require([KERNEL])


def test_an_unknown_kernel(root: Path) -> None:
    with pytest.raises(KernelError, match="nothing"):
        KernelLibrary().require(["team:nothing"])


def test_a_real_compilation_reports_its_progress(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    compiled = KernelLibrary()
    compiled.require([KERNEL], lambda *p: seen.append(p))
    assert seen[0] == (0, 1)
    assert seen[-1] == (1, 1)
    assert compiled.address(KERNEL)
    assert ObjectStore.default().load(KERNEL, LEVEL)
