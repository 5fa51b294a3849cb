"""Where the tests find their data: in the repository, and larger fixtures beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent / "data"
"""What every clone has; data/README.md describes it."""

_DEFAULT = Path(__file__).resolve().parents[2] / "shared"


def shared_folder() -> Path:
    """Where larger fixtures are, if they are anywhere: ``$LLMGEN_SHARED``, or ``shared`` beside the repository."""
    return Path(os.environ.get("LLMGEN_SHARED") or _DEFAULT)


def shared(name: str) -> Path:
    """The fixture ``name`` of the shared folder; the test is skipped where it is absent."""
    root = shared_folder()
    path = root / name
    if not path.exists():
        pytest.skip(f"needs the fixture {name} in {root} (set LLMGEN_SHARED)")
    return path
