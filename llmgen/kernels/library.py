"""Compiled kernels: where their object code is kept, and how it becomes callable.

Nothing here imports numba.  Missing kernels are compiled by child processes (see
``compile``); the object code is stored one file per kernel, and a later process
just maps it into memory, which takes milliseconds.

A file can never be stale: the folder's name is a hash over the kernel sources, the
versions of numba, llvmlite and Python, and the exact instruction set; a file that
was cut short or altered fails its checksum and is compiled again.  Object code is
code: the folder is private to the user (0700), also the fallback in the temporary
folder that is used, with one warning, where the usual place cannot be written.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmgen.errors import KernelError
from llmgen.kernels.cpu import target
from llmgen.kernels.threads import usable_cores

_MAGIC = b"llmgen-object-1\n"

Progress = Callable[[int, int], None]
"""Called with (kernels done, kernels in all) while kernels are compiled."""


@lru_cache(maxsize=1)
def _sources_hash() -> str:
    """Hash of every kernel source, of the compiler's versions, and of nothing else."""
    from importlib.metadata import version

    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    versions = [version("numba"), version("llvmlite"), sys.version, sys.platform]
    digest.update("\n".join(versions).encode())
    return digest.hexdigest()


def _cache_root() -> Path:
    """$LLMGEN_CACHE, else the platform's per-user cache folder."""
    if path := os.environ.get("LLMGEN_CACHE"):
        return Path(path)
    import platformdirs

    return Path(platformdirs.user_cache_dir("llmgen", appauthor=False))


def _private_folder(path: Path) -> bool:
    """Create ``path`` for this user alone; False where it cannot be written or belongs to someone else."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if hasattr(os, "getuid"):
            status = path.stat()
            if status.st_uid != os.getuid():
                return False
            if status.st_mode & 0o077:
                path.chmod(0o700)
        handle, probe = tempfile.mkstemp(dir=path)
        os.close(handle)
        os.unlink(probe)
    except OSError:
        return False
    return True


class ObjectStore:
    """Object code on disk, one file per kernel and level."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    @lru_cache(maxsize=1)
    def default(cls) -> ObjectStore:
        """The user's store; where that cannot be written, one in the temporary folder, with a warning."""
        root = _cache_root()
        if _private_folder(root / "kernels"):
            return cls(root / "kernels")
        user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
        fallback = Path(tempfile.gettempdir()) / f"llmgen-kernels-{user}"
        if not _private_folder(fallback):
            fallback = Path(tempfile.mkdtemp(prefix="llmgen-kernels-"))
        if "LLMGEN_STORE_WARNED" not in os.environ:
            os.environ["LLMGEN_STORE_WARNED"] = "1"  # child processes need not repeat it
            warnings.warn(
                f"cannot write compiled kernels to {root}; keeping them in {fallback}", stacklevel=2
            )
        return cls(fallback)

    def path(self, name: str, level: str) -> Path:
        chosen = target(level)
        key = hashlib.sha256(
            f"{_sources_hash()}\n{chosen.level}\n{chosen.cpu}\n{chosen.features}".encode()
        ).hexdigest()
        return self.folder / key[:24] / (name.replace(":", ".") + ".o")

    def load(self, name: str, level: str) -> bytes | None:
        """Object code, or None where there is none that can be trusted."""
        try:
            data = self.path(name, level).read_bytes()
        except OSError:
            return None
        head = len(_MAGIC) + 32
        if not data.startswith(_MAGIC) or hashlib.sha256(data[head:]).digest() != data[len(_MAGIC) : head]:
            return None
        return data[head:]

    def save(self, name: str, level: str, code: bytes) -> None:
        """Store object code; another process sees all of it or nothing."""
        path = self.path(name, level)
        try:
            for folder in (
                self.folder,
                path.parent,
            ):  # each by itself: parents=True would make it for all to read
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(code).digest() + code)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise KernelError(f"cannot store compiled kernels in {path.parent}: {error.strerror}") from error


def target_machine() -> Any:
    """LLVM's target machine for the level of this process."""
    import llvmlite.binding as llvm

    chosen = target()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=chosen.cpu, features=chosen.features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


class KernelLibrary:
    """The kernels of one level in this process, by name."""

    def __init__(self, level: str | None = None) -> None:
        self.level = target(level).level
        self._addresses: dict[str, int] = {}
        self._engine: Any = None
        self._lock = threading.Lock()

    @classmethod
    def for_level(cls, level: str | None = None) -> KernelLibrary:
        """The library of this process for a level, by default the best one."""
        return _library(target(level).level)

    def require(self, names: Iterable[str], progress: Progress | None = None) -> None:
        """Make kernels callable: load what is stored, compile the rest."""
        with self._lock:
            store = ObjectStore.default()
            missing = []
            for name in dict.fromkeys(names):
                if name not in self._addresses and not self._load(store, name):
                    missing.append(name)
            for _ in range(2):  # somebody may empty the cache in the meantime
                if missing:
                    _compile_in_children(missing, self.level, progress)
                missing = [name for name in missing if not self._load(store, name)]
            if missing:
                raise KernelError(
                    f"the kernel {missing[0]} was compiled but cannot be read back from {store.folder}; "
                    "is something removing files there? LLMGEN_CACHE names another folder"
                )

    def renew_lock(self) -> None:
        """In a forked child, whose parent may have held it."""
        self._lock = threading.Lock()

    def address(self, name: str) -> int:
        return self._addresses[name]

    def function(self, name: str, n_args: int, returns: bool = True) -> Any:
        """A kernel as a Python callable over int64 arguments; the GIL is released while it runs."""
        self.require([name])
        kind = ctypes.CFUNCTYPE(ctypes.c_int64 if returns else None, *[ctypes.c_int64] * n_args)
        return kind(self._addresses[name])

    def _load(self, store: ObjectStore, name: str) -> bool:
        code = store.load(name, self.level)
        if code is None:
            return False
        import llvmlite.binding as llvm

        from llmgen.kernels.compile import native_symbol

        if self._engine is None:
            self._engine = _new_engine()
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._addresses[name] = self._engine.get_function_address(native_symbol(name))
        return True


_libraries: dict[str, KernelLibrary] = {}


def _library(level: str) -> KernelLibrary:
    return _libraries.setdefault(level, KernelLibrary(level))


def _renew_locks() -> None:
    """In a forked child: a thread that was loading kernels did not come along, its lock did."""
    for library in _libraries.values():
        library.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def _new_engine() -> Any:
    """An execution engine that can hold object files."""
    import llvmlite.binding as llvm

    from llmgen.kernels.threads import register_system_calls

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    register_system_calls(llvm.add_symbol)
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _compile_in_children(names: list[str], level: str, progress: Progress | None) -> None:
    """Compile kernels in as many processes as there are cores, slowest first; any failure is a KernelError."""
    workers = max(1, min(usable_cores(), len(names), 8))
    queue = sorted(names, key=_expected_cost, reverse=True)
    lock = threading.Lock()
    done: list[str] = []
    failures: list[str] = []
    children: list[subprocess.Popen[str]] = []

    def feed(child: subprocess.Popen[str]) -> None:
        assert child.stdin
        assert child.stdout
        while True:
            with lock:
                if failures or not queue:
                    break
                name = queue.pop(0)
            try:
                child.stdin.write(name + "\n")
                child.stdin.flush()
                answer = child.stdout.readline().strip()
            except (OSError, ValueError):
                answer = ""
            with lock:
                if answer != name:
                    failures.append(name)
                else:
                    done.append(name)
        try:
            child.stdin.close()
        except OSError:
            pass

    try:
        for _ in range(workers):
            children.append(_start_child(level))
        feeders = [threading.Thread(target=feed, args=(child,), daemon=True) for child in children]
        for thread in feeders:
            thread.start()
        reported = -1
        while any(thread.is_alive() for thread in feeders):
            if progress and reported != len(done):
                reported = len(done)
                progress(reported, len(names))
            for thread in feeders:
                thread.join(0.05)
        if failures:
            raise KernelError(_failure(failures[0], children))
        if progress:
            progress(len(names), len(names))
    finally:
        for child in children:
            child.kill()
            child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe:
                    pipe.close()


def _expected_cost(name: str) -> int:
    """Rough order of compile times."""
    weights = {"attention": 9, "choice": 8, "panel": 6, "matvec": 4}
    return max((cost for word, cost in weights.items() if word in name), default=1)


def _start_child(level: str) -> subprocess.Popen[str]:
    import llmgen

    # what the user told Numba for his own programs is not meant for kernels that are kept
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    package_root = str(Path(llmgen.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package_root, environment.get("PYTHONPATH", "")])
    )
    # the child must not be hit by the terminal's Ctrl-C: its parent kills it
    options: dict[str, Any] = (
        {"start_new_session": True} if os.name == "posix" else {"creationflags": 0x00000200}
    )
    # a file, since a pipe that nobody empties would stop a child with much to complain about
    complaints = tempfile.TemporaryFile("w+", errors="replace")
    # -P: a numba.py in the user's current folder is not numba
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "llmgen.kernels.compile", level, str(ObjectStore.default().folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        env=environment,
        **options,
    )
    child.stderr = complaints
    return child


def _failure(name: str, children: list[subprocess.Popen[str]]) -> str:
    last = ""
    for child in children:
        try:
            child.wait(5)  # one that has just closed its output is about to exit
        except subprocess.TimeoutExpired:
            continue
        if child.returncode and child.stderr:
            child.stderr.seek(0)
            lines = child.stderr.read().strip().splitlines()
            last = lines[-1] if lines else f"exit status {child.returncode}"
    return f"compiling the kernel {name} failed ({last or 'the compiler process ended'}); llmgen needs a working numba"
