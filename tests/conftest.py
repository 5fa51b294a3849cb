"""What every test can rely on: the same settings on every machine, however slow or busy it is."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from suite import comes_late, takes_most

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# A busy machine is no failure, and a run today tries what a run tomorrow tries.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")


def _leave_out_the_users_settings() -> None:
    """What a user has set for himself must not decide about tests; their kernels are welcome."""
    for name in ("LLMGEN_THREADS", "LLMGEN_DEBUG", "LLMGEN_STORE_WARNED", "FORCE_COLOR", "COLUMNS", "LINES"):
        os.environ.pop(name, None)
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "OLLAMA_MODELS"):
        os.environ.pop(name, None)
    os.environ["LLMGEN_CONFIG"] = ""
    # what is remembered of models, and the hub's cache, are the run's own
    for name in ("LLMGEN_STATE", "HF_HOME"):
        os.environ[name] = tempfile.mkdtemp(prefix=f"llmgen-tests-{name.lower()}-")
        atexit.register(shutil.rmtree, os.environ[name], ignore_errors=True)
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH"):
        os.environ.pop(name, None)


def _need_a_cache() -> None:
    """Where the home cannot be written, compile once into a folder of this run, not with a warning each time."""
    if "LLMGEN_CACHE" in os.environ:
        return
    import platformdirs

    try:
        folder = Path(platformdirs.user_cache_dir("llmgen", appauthor=False)) / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):
        os.environ["LLMGEN_CACHE"] = tempfile.mkdtemp(prefix="llmgen-tests-")


def _remember_bytecode() -> None:
    """Where Python writes no bytecode, hundreds of children would compile the same sources: they share a folder."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) and "PYTHONPYCACHEPREFIX" not in os.environ:
        os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="llmgen-tests-bytecode-")
        atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)


def _hear_signals() -> None:
    """A shell's background job ignores Ctrl-C, one of nohup SIGHUP, and so would every program that it starts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGTERM", "SIGTSTP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # still ignored here, and heard by programs


_leave_out_the_users_settings()
_need_a_cache()
_remember_bytecode()
_hear_signals()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folders that take long first, and with them the tests of kernels."""
    items.sort(key=lambda item: comes_late(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: WorkerController, ids: list[str]) -> None:
    """When most of the suite is about to run in several processes, compile what most of its files need.

    No test starts before this returns, since the process that calls it is the one that hands them out.
    """
    if takes_most(ids):
        _compile_common_kernels(node.config.pluginmanager.get_plugin("terminalreporter"))


@cache
def _compile_common_kernels(reporter: pytest.TerminalReporter | None) -> None:
    """Once: a compiler that is started for a file alone translates again what all kernels share."""
    from kernels.call import kernels_of_the_suite, require

    from llmgen.errors import KernelError

    if reporter is not None:
        reporter.write_line(
            "first: the kernels that most test files call are compiled, unless they are there"
        )
    with contextlib.suppress(KernelError):  # the tests of that kernel will tell
        require(kernels_of_the_suite())


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that sees a busy machine takes fewer threads; a test that counts them must not depend on that."""
    monkeypatch.setattr("llmgen.backends.cpu.runtime.thread_policy._other_running_threads", lambda own: 0)
