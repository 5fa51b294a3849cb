"""docs/architectures.md says what the code has."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from llmgen.model.archs import find, names
from shared import shared

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_architectures_doc.py"


def test_the_page_is_up_to_date() -> None:
    shared("archs/refs")
    spec = importlib.util.spec_from_file_location("make_architectures_doc", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), f"run {_SCRIPT.name}"


def test_every_architecture_has_a_row_and_says_whose_it_is() -> None:
    text = (_SCRIPT.parents[1] / "docs" / "architectures.md").read_text(encoding="utf-8")
    for name in names():
        cls = find(name)
        assert cls is not None
        assert cls.models, name
        assert f"\n| `{name}` |" in text
