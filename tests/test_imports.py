"""Modules import one another in one direction: no circles, also not within a function or for types."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "llmgen"


def imports(path: Path, modules: set[str]) -> set[str]:
    """The modules of the package that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in modules else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules


def test_no_module_imports_itself_through_others() -> None:
    files = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    del files["llmgen"]  # it only says where its public names live
    assert "llmgen.cli.app" in files
    graph = {name: imports(path, set(files)) for name, path in files.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle
