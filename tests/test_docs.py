"""The examples of docs/python.md run as they stand, no public name is missing there, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import llmgen
from models import smollm2

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "python.md"
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)


def blocks() -> list[tuple[int, str]]:
    """The line of each example, and its code."""
    text = PAGE.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in _BLOCK.finditer(text)]


def test_the_examples_show_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "smollm2.gguf").symlink_to(smollm2())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for line, code in blocks():
        # blank lines in front, so that a traceback names the page's line
        exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), names)
        shown = iter(capsys.readouterr().out.splitlines())
        for expected in _SHOWN.findall(code):
            assert expected in shown, f"line {line}: {expected!r} is not shown"


def test_every_public_name_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = {name for name in llmgen.__all__ if name != "__version__"}
    for kind in (llmgen.LLM, llmgen.Session, llmgen.GenerationStream):
        names |= {name for name in vars(kind) if not name.startswith("_")}
    assert not [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize("page", ["adding_an_architecture.md", "adding_a_quant_type.md"])
def test_the_code_that_is_shown_is_the_code(page: str) -> None:
    there = {
        _bare(line) for path in ROOT.glob("llmgen/**/*.py") for line in path.read_text("utf-8").splitlines()
    }
    shown = "".join(_BLOCK.findall((ROOT / "docs" / page).read_text("utf-8")))
    assert [
        line for line in shown.splitlines() if line.strip(" ,") != "..." and _bare(line) not in there
    ] == []


def _bare(line: str) -> str:
    """A line of code without its indentation, and without a comment for the type checker."""
    return line.partition("  # type:")[0].strip()


def anchors(page: Path) -> set[str]:
    """What a link to a heading of a page may say behind its #."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s:]+)\)", page.read_text(encoding="utf-8"))
    for name, _, anchor in (link.partition("#") for link in links):
        there = page.parent / name if name else page
        assert there.exists(), f"there is no {name}"
        assert not anchor or anchor in anchors(there), f"{there.name} has no heading #{anchor}"
