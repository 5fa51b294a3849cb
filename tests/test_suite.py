"""What is compiled before the tests, and in which order they run, wherever their files are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from suite import TESTS, comes_late, takes_most

FILES = sorted(str(path.relative_to(TESTS.parent)) for path in TESTS.rglob("test_*.py"))


def test_kernels_are_compiled_first_for_most_of_the_suite_only() -> None:
    assert takes_most(f"{name}::test_{n}" for name in FILES for n in range(3))
    assert takes_most(f"{name}::test" for name in FILES[: len(FILES) // 2 + 1])
    assert not takes_most(f"{name}::test" for name in FILES[: len(FILES) // 2])
    assert not takes_most(f"{FILES[0]}::test_{n}" for n in range(5000))
    assert not takes_most([])


def test_short_folders_come_late() -> None:
    assert comes_late(TESTS / "gguf" / "test_reader.py")
    assert not comes_late(TESTS / "engine" / "test_batch.py")
    assert not comes_late(TESTS / "test_suite.py")
    assert not comes_late(TESTS.parent / "gguf" / "test_reader.py")


def test_a_file_elsewhere_runs_beside_ours(tmp_path: Path) -> None:
    elsewhere = tmp_path / "test_elsewhere.py"
    elsewhere.write_text("def test_elsewhere():\n    pass\n")
    ours = f"{TESTS / 'test_suite.py'}::{test_short_folders_come_late.__name__}"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "1", str(elsewhere), ours],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout
    assert "compiled" not in ran.stdout
