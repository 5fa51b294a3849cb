"""Who compiles a kernel: one of several processes; what becomes of it when that one is stopped or fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from kernels.compilations import KERNEL, LEVEL, OTHER, REQUIRE, objects, posix, run, stored

from llmgen.backends.cpu.runtime import library
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.backends.cpu.runtime.store import writable_store
from llmgen.errors import KernelError
from program import HANGS_S


def test_several_processes_share_the_work(root: Path) -> None:
    """Each kernel is compiled by one of them, whether they miss the same ones or not."""
    third = "rope:rope"
    before = (
        "from llmgen.backends.cpu.runtime import library\nreal = library._Compiler.compile\n"
        "def told(self, name):\n    say(f'compiles {name}')\n    return real(self, name)\n"
        "library._Compiler.compile = told\n"
    )
    children = [run(before + REQUIRE.replace(OTHER, other)) for other in (OTHER, OTHER, third)]
    compiled = []
    for child in children:
        out, err = child.communicate(timeout=HANGS_S)
        assert child.returncode == 0, err
        assert out.splitlines()[-2:] == ["progress (2, 2)", "done"]
        compiled += [line.split()[1] for line in out.splitlines() if line.startswith("compiles")]
    assert sorted(compiled) == sorted([KERNEL, OTHER, third])
    names = [f.name.split("-")[0] for f in objects(root)]
    assert names == ["rope.rope", "team.dismiss", "team.post"]  # nothing temporary is left, no lock either
    assert all(stored().load(name, LEVEL) for name in (KERNEL, OTHER, third))


def test_a_kernel_that_another_process_compiles_is_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compiled here as soon as the other one has given up."""
    lock = writable_store().prepared(KERNEL, LEVEL).with_suffix(".lock")  # type: ignore[union-attr]
    other = run(HOLD, LOCK=str(lock))
    assert other.stdout
    assert other.stdout.readline() == "held\n"
    no_compiler(
        monkeypatch,
        "import sys; [print(line.strip(), '3\\nabc', end='', flush=True) for line in sys.stdin]",
    )
    kept: list[str] = []

    def progress(done: int, total: int) -> None:
        if done == 1:
            assert kept == [OTHER]
            other.kill()

    claim = partial(library._claim, writable_store(), LEVEL)
    library._compile_in_children([KERNEL, OTHER], LEVEL, progress, lambda name, _: kept.append(name), claim)
    other.communicate()
    assert kept == [OTHER, KERNEL]
    assert objects(root) == []


def test_a_kernel_that_another_process_keeps_too_long_is_compiled_here(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may be stopped with Ctrl-Z."""
    monkeypatch.setattr(library, "_PATIENCE_SECONDS", 0.0)
    no_compiler(
        monkeypatch,
        "import sys; [print(line.strip(), '3\\nabc', end='', flush=True) for line in sys.stdin]",
    )
    kept: list[str] = []
    claim = partial(library._claim, writable_store(), LEVEL)
    with claim(KERNEL):
        library._compile_in_children(
            [KERNEL], LEVEL, lambda done, total: None, lambda name, _: kept.append(name), claim
        )
    assert kept == [KERNEL]


HOLD = """
import os, time
from pathlib import Path
from llmgen.files import try_folder_lock
with try_folder_lock(Path(os.environ["LOCK"])) as state:
    print(state, flush=True)
    time.sleep(3600)
"""


WAITS = f"""
import time
from llmgen.backends.cpu.runtime.library import KernelLibrary
def wait(done, total):  # however fast the compilers are, it is not over before the signal
    print("begun", flush=True)
    time.sleep(3600)
KernelLibrary().require([{KERNEL!r}, "attention:tiles_f16_f16"], wait)
"""


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_compilation_leaves_nothing_bad(root: Path, number: int) -> None:
    child = run(WAITS)
    assert child.stdout
    assert child.stdout.readline() == "begun\n"
    time.sleep(0.3)
    child.send_signal(number)
    child.communicate(timeout=HANGS_S)
    assert child.returncode != 0
    for path in objects(root):
        if path.suffix == ".o":
            assert stored().load(path.stem.replace(".", ":"), LEVEL)
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
        ("import sys; [print(line, end='', flush=True) for line in sys.stdin]", "failed"),
        ("import sys; print(sys.stdin.readline().strip(), '9\\nshort', end='')", "failed"),
    ],
)
def test_a_compiler_that_dies_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    no_compiler(monkeypatch, script)
    with pytest.raises(KernelError, match=says) as caught:
        KernelLibrary().require([KERNEL, OTHER])
    assert "team:" in str(caught.value)


def test_a_compiler_that_cannot_be_started_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(library.subprocess, "Popen", popen)
    with pytest.raises(KernelError, match="Cannot allocate memory"):
        KernelLibrary().require([KERNEL, OTHER])


def test_a_compiler_that_complains_at_length_is_heard_out(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: bytes
) -> None:
    """More warnings than a pipe holds must not stop it."""
    script = (
        "import sys\nfor line in sys.stdin:\n"
        "    sys.stderr.write('oh\\n' * 90000 + 'o' * 90000); print(line.strip(), '3\\nabc', end='', flush=1)"
    )
    no_compiler(monkeypatch, script)
    kept: dict[str, bytes] = {}
    library._compile_in_children([KERNEL, OTHER], LEVEL, lambda *_: None, kept.__setitem__)
    assert kept == {KERNEL: b"abc", OTHER: b"abc"}


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
    assert stored().load(KERNEL, LEVEL)
