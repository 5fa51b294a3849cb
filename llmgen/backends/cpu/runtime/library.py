"""Compiled kernels: from a name to a function that can be called.

Nothing here imports numba.  Stored kernels (see ``store``) are loaded in milliseconds.
Missing ones are compiled by child processes (see ``compile``), which return the object
code; programs that miss the same kernels at the same time share the work, each kernel is
compiled by one of them.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from llmgen.backends.cpu.runtime.compile import native_symbol
from llmgen.backends.cpu.runtime.cpu import target
from llmgen.backends.cpu.runtime.store import ObjectStore, readable_stores, warn_not_kept, writable_store
from llmgen.backends.cpu.runtime.threads import usable_cores
from llmgen.errors import KernelError
from llmgen.files import try_folder_lock

Progress = Callable[[int, int], None]
"""Called with (kernels done, kernels in all) while kernels are compiled."""

Keep = Callable[[str, bytes], None]
"""Called with a kernel's name and its object code."""

Claim = Callable[[str], AbstractContextManager[str]]
"""Called with a kernel's name before it is compiled, see :func:`_claim`."""

_COMPLAINT_LINES = 50
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 180.0
"""How long a kernel that another process has claimed is waited for: that one may be stopped (Ctrl-Z)."""


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
            missing = self._not_loaded(names)
            if missing:
                self._build(missing, progress or _no_progress)

    def _not_loaded(self, names: Iterable[str]) -> list[str]:
        """Load the kernels that are stored; returns the others."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._addresses]
        stores = readable_stores() if wanted else []
        return [name for name in wanted if not any(self._load(store, name) for store in stores)]

    def _build(self, names: list[str], progress: Progress) -> None:
        """Compile kernels, but for those that another process is compiling: these are waited for."""
        store = writable_store()
        keeper = _Keeper(store, self.level)
        _compile_in_children(names, self.level, progress, keeper.keep, partial(_claim, store, self.level))
        keeper.finish()
        for name, code in keeper.codes.items():
            self._link(name, code)
        if missing := self._not_loaded(names):  # the store was emptied after they were found there
            self._build(missing, progress)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, where its holder may not exist."""
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
        if code is not None:
            self._link(name, code)
        return code is not None

    def _link(self, name: str, code: bytes) -> None:
        import llvmlite.binding as llvm

        if self._engine is None:
            self._engine = _new_engine()
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self._addresses[name] = self._engine.get_function_address(native_symbol(name))


_libraries: dict[str, KernelLibrary] = {}


def _library(level: str) -> KernelLibrary:
    return _libraries.setdefault(level, KernelLibrary(level))


def _renew_locks() -> None:
    """In a forked child, where a thread that was loading kernels does not exist but its lock does."""
    for library in _libraries.values():
        library.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def _new_engine() -> Any:
    """An execution engine that can hold object files."""
    import llvmlite.binding as llvm

    from llmgen.backends.cpu.runtime.threads import register_system_calls

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    register_system_calls(llvm.add_symbol)
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


class _Keeper:
    """Collects object code from the compilers: in memory, and in the store if that is possible."""

    def __init__(self, store: ObjectStore | None, level: str) -> None:
        self.codes: dict[str, bytes] = {}
        self._store, self._level = store, level
        self._problem: tuple[Path, str] | None = None

    def keep(self, name: str, code: bytes) -> None:
        """Take a kernel; a full disk does not stop the compilation."""
        self.codes[name] = code
        if self._store is None or self._problem is not None:
            return
        try:
            self._store.save(name, self._level, code)
        except OSError as error:
            self._problem = self._store.folder, error.strerror or str(error)

    def finish(self) -> None:
        """Tell the user what could not be stored."""
        if self._problem is not None:
            folder, why = self._problem
            warn_not_kept(f"{folder} ({why})")


@contextmanager
def _claim(store: ObjectStore | None, level: str, name: str) -> Iterator[str]:
    """Reserve a kernel for the length of the block.

    Yields "free" (it is to be compiled here), "taken" (another process is compiling it) or "stored".
    """
    with ExitStack() as stack:
        state = "unsupported"
        if store is not None:
            with suppress(OSError):  # without locks several processes may compile the same kernel
                path = store.prepared(name, level)
                state = stack.enter_context(try_folder_lock(path.with_suffix(".lock")))
        if state == "taken":
            yield state
        else:
            yield "stored" if store is not None and store.load(name, level) is not None else "free"


@contextmanager
def _unclaimed(name: str) -> Iterator[str]:
    yield "free"


def _no_progress(done: int, total: int) -> None:
    pass


class _Compiler:
    """A child process that compiles kernels by name."""

    def __init__(self, level: str) -> None:
        self._process = _start_child(level)
        # the last lines of its stderr; a pipe that nobody empties would block it
        self._complaints: deque[bytes] = deque(maxlen=_COMPLAINT_LINES)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr
        try:
            self._complaints.extend(iter(lambda: self._process.stderr.readline(10_000), b""))  # type: ignore[union-attr]
        except (OSError, ValueError):  # closed in the meantime
            pass

    def compile(self, name: str) -> bytes | None:
        """A kernel's object code, None if the process failed."""
        process = self._process
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(f"{name}\n".encode())
            process.stdin.flush()
            answered, _, size = process.stdout.readline(1000).decode().strip().partition(" ")
            code = process.stdout.read(int(size)) if answered == name else b""
        except (OSError, ValueError):
            return None
        return code if code and len(code) == int(size) else None

    def why(self) -> str:
        """Why it ended: the last line it wrote, or its exit status; empty if it succeeded or still runs."""
        try:
            self._process.wait(5)  # one that has just closed its output is about to exit
        except subprocess.TimeoutExpired:
            return ""
        self._listener.join(5)
        lines = [line for line in self._complaints if line.strip()]
        if not self._process.returncode:
            return ""
        return (
            lines[-1].decode(errors="replace").strip() if lines else f"exit status {self._process.returncode}"
        )

    def done(self) -> None:
        """No more names will come."""
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except OSError:
            pass

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._listener.join(5)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()


class _Work:
    """The kernels that are to be compiled, shared by threads that each feed a compiler."""

    def __init__(self, names: list[str], level: str, keep: Keep, claim: Claim) -> None:
        self._queue = deque(sorted(names, key=_expected_cost, reverse=True))
        self._level, self._keep, self._claim = level, keep, claim
        self._lock = threading.Lock()
        self._stopped = False
        self._waits: dict[
            str, float
        ] = {}  # since when a kernel has been found to be claimed by another process
        self.n_done = 0
        self.failures: list[str] = []
        self.error: Exception | None = None
        """What ended a thread early: a compiler that could not be started, for example."""
        self.children: list[_Compiler] = []

    def feed(self) -> None:
        """Compile kernels in a process of this thread's own, which is started for the first one."""
        try:
            self._feed()
        except Exception as error:
            self.error = error

    def _feed(self) -> None:
        child: _Compiler | None = None
        while (name := self._next()) is not None:
            with self._claim(name) as state:
                if state == "free" or (state == "taken" and self._is_overdue(name)):
                    child = child or self._new_child()
                    self._take(name, child.compile(name) if child else None)
                elif state == "stored":
                    self._count()
                else:
                    self._queue.append(name)
                    time.sleep(_POLL_SECONDS)
        if child:
            child.done()

    def stop(self) -> None:
        """End the compilers, whatever they are doing; no new ones are started."""
        with self._lock:
            self._stopped = True
        for child in self.children:
            child.kill()

    def _next(self) -> str | None:
        with self._lock:
            going = self._queue and not self.failures and not self.error and not self._stopped
            return self._queue.popleft() if going else None

    def _is_overdue(self, name: str) -> bool:
        """Whether another process has taken too long; compiling the kernel twice does no harm."""
        return time.monotonic() - self._waits.setdefault(name, time.monotonic()) >= _PATIENCE_SECONDS

    def _new_child(self) -> _Compiler | None:
        with self._lock:
            if self._stopped:
                return None
            self.children.append(_Compiler(self._level))
            return self.children[-1]

    def _count(self) -> None:
        with self._lock:
            self.n_done += 1

    def _take(self, name: str, code: bytes | None) -> None:
        with self._lock:
            if code is None:
                self.failures.append(name)
            else:
                self._keep(name, code)
                self.n_done += 1


def _compile_in_children(
    names: list[str], level: str, progress: Progress, keep: Keep, claim: Claim = _unclaimed
) -> None:
    """Compile kernels in as many processes as there are cores, slowest first; any failure is a KernelError."""
    work = _Work(names, level, keep, claim)
    feeders = [
        threading.Thread(target=work.feed, daemon=True)
        for _ in range(max(1, min(usable_cores(), len(names), 8)))
    ]
    try:
        for thread in feeders:
            thread.start()
        reported = -1
        while any(thread.is_alive() for thread in feeders):
            if reported != work.n_done:
                reported = work.n_done
                progress(reported, len(names))
            for thread in feeders:
                thread.join(0.05)
        if work.error:
            raise KernelError(f"kernels cannot be compiled: {work.error}") from work.error
        if work.failures:
            raise KernelError(_failure(work.failures[0], work.children))
        progress(len(names), len(names))
    finally:
        work.stop()


def _expected_cost(name: str) -> int:
    """Rough order of compile times."""
    weights = {"attention": 9, "choice": 8, "panel": 6, "matvec": 4}
    return max((cost for word, cost in weights.items() if word in name), default=1)


def _start_child(level: str) -> subprocess.Popen[bytes]:
    import llmgen

    # the user's settings of Numba are not meant for kernels that are stored
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    package_root = str(Path(llmgen.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package_root, environment.get("PYTHONPATH", "")])
    )
    # the terminal's Ctrl-C must not reach the child: the parent kills it
    options: dict[str, Any] = (
        {"start_new_session": True} if os.name == "posix" else {"creationflags": 0x00000200}
    )
    # -P: a numba.py in the current folder must not shadow numba
    command = [sys.executable, "-P", "-m", "llmgen.backends.cpu.runtime.compile", level]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        **options,
    )


def _failure(name: str, children: list[_Compiler]) -> str:
    last = next((why for child in reversed(children) if (why := child.why())), "")
    return f"compiling the kernel {name} failed ({last or 'the compiler process ended'}); llmgen needs a working numba"
