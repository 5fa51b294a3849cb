"""Limits of control groups, wherever in the tree this process is."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgen.backends.cpu.memory import available_bytes
from llmgen.backends.cpu.runtime import cgroup, threads
from llmgen.backends.cpu.runtime.threads import MAX_THREADS, default_threads, usable_cores
from llmgen.errors import UsageError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of control groups of this test's own."""
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "own")
    return tmp_path


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text + "\n")


@pytest.mark.parametrize(
    ("own", "limits", "quota"),
    [
        ("0::/a/b", {"a/b": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b": "max 100000", "a": "300000 100000"}, 3.0),
        ("0::/a/b", {"a/b": "400000 100000", "a": "200000 100000", "": "max 100000"}, 2.0),
        ("0::/a/b", {"": "100000 100000"}, 1.0),  # a container that sees its own group as the root
        ("0::/", {"": "250000 100000", "a": "100000 100000"}, 2.5),
        ("0::/../x", {"": "max 100000", "../x": "100000 100000"}, None),
        ("0::/a", {"a": "max 100000"}, None),
        ("0::/a", {"a": "100000 0"}, None),
        ("0::/a", {"a": "what is this"}, None),
        ("", {}, None),
    ],
)
def test_quota_of_version_2(tree: Path, own: str, limits: dict[str, str], quota: float | None) -> None:
    (tree / "own").write_text(own + "\n")
    for folder, text in limits.items():
        put(tree / folder, cpu_max=text)
    assert cgroup.cpu_quota() == quota


@pytest.mark.parametrize("base", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize("group", ["docker/x", ""])
def test_quota_of_version_1(tree: Path, base: str, group: str) -> None:
    """Docker's path is the host's, and its folder the container's: there the root has the limit."""
    (tree / "own").write_text("3:memory:/else\n2:cpu,cpuacct:/docker/x\n0::/\n")
    put(tree / base / group, cpu_cfs_quota_us="120000", cpu_cfs_period_us="100000")
    put(tree / "memory" / "else", cpu_cfs_quota_us="10000", cpu_cfs_period_us="100000")
    assert cgroup.cpu_quota() == 1.2


def test_no_group_at_all(tree: Path) -> None:
    assert cgroup.cpu_quota() is None
    assert cgroup.memory_left() is None


def test_threads_follow_the_quota(tree: Path) -> None:
    (tree / "own").write_text("0::/system.slice/run.scope\n")
    put(tree / "system.slice" / "run.scope", cpu_max="50000 100000")
    assert usable_cores() == 1


def test_a_very_large_machine_gives_as_many_threads_as_a_model_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMGEN_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 384)
    assert default_threads() == MAX_THREADS


@pytest.mark.parametrize(
    ("folder", "files"),
    [
        (
            "a",
            {
                "memory_max": "3000",
                "memory_current": "2500",
                "memory_stat": "x 1\ninactive_file 60\nactive_file 40",
            },
        ),
        (
            "memory/a",
            {
                "memory_limit_in_bytes": "3000",
                "memory_usage_in_bytes": "2500",
                "memory_stat": "inactive_file 7\ntotal_inactive_file 60\ntotal_active_file 40",
            },
        ),
    ],
)
def test_memory_of_a_nested_group(tree: Path, folder: str, files: dict[str, str]) -> None:
    (tree / "own").write_text("5:memory:/a/b\n0::/a/b\n")
    put(tree, memory_max="max", memory_current="5", memory_stat="")
    put(tree / folder, **files)
    assert cgroup.memory_left() == 600
    assert available_bytes() == 600


@pytest.mark.parametrize("wrong", ["all", "0", "-1", "1.5", "9" * 5000])
def test_threads_that_are_no_number_of_threads(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("LLMGEN_THREADS", wrong)
    with pytest.raises(
        UsageError, match=r"^LLMGEN_THREADS is .{,200}, expected a whole number of at least 1$"
    ):
        default_threads()
