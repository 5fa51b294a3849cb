"""``llmgen bench --plot``: a plot of speed over depth and threads, drawn with matplotlib."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmgen.errors import LLMGenError, UsageError
from llmgen.files import replacing
from llmgen.visible import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from llmgen.cli.bench.measure import Row, Run

_SUFFIXES = (".svg", ".png", ".pdf")
_PANEL_INCHES = (6.0, 4.0)


def check(path: Path, depths: Iterable[int], threads: Iterable[object]) -> None:
    """Refuse a plot that could not be drawn or written, before anything is measured."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot must name a file that ends in {', '.join(_SUFFIXES)}, not {visible(path)}")
    if len(set(depths)) < 2 and len(set(threads)) < 2:
        raise UsageError(
            "--plot draws speeds over depth or threads, and there is one of each;"
            " give several, such as -d 0,1024,4096 or -t 1,2"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise LLMGenError("--plot draws with matplotlib, which is not installed; pip install 'llmgen[plot]'")
    folder = path.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise LLMGenError(f"cannot write the plot {visible(path)}: its folder must exist and be writable")


def draw(path: Path, runs: list[Run]) -> None:
    """Write the plot: a column of panels for each axis with several values, a row for each kind of test.

    Raises LLMGenError if it cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    points = [(run, row) for run in runs for row in run.rows]
    axes = [axis for axis in _AXES if len({axis[1](*point) for point in points}) > 1] or _AXES[:1]
    kinds = list(dict.fromkeys(_kind(row) for _, row in points))
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(axes), height * len(kinds)), layout="constrained")
    panels = figure.subplots(len(kinds), len(axes), squeeze=False)
    for kind, line in zip(kinds, panels, strict=True):
        chosen = [point for point in points if _kind(point[1]) == kind]
        for (name, value), panel in zip(axes, line, strict=True):
            _panel(panel, chosen, value)
            panel.set(title=kind, xlabel=name, ylabel="tokens/s")
    # the same figures give the same file; text stays text
    settings: Any = {"svg.hashsalt": "llmgen", "svg.fonttype": "none", "text.parse_math": False}
    form = path.suffix.lower().removeprefix(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    try:
        with matplotlib.rc_context(settings), replacing(path.resolve(), mode=0o666) as file:
            figure.savefig(file, format=form, metadata=undated.get(form))
    except OSError as error:
        raise LLMGenError(f"cannot write the plot {visible(path)}: {error.strerror or error}") from error


_Point = tuple["Run", "Row"]
_AXES: list[tuple[str, Callable[[Any, Any], int]]] = [
    ("tokens already in the context", lambda run, row: int(row.test.depth)),
    ("threads", lambda run, row: int(run.threads)),
]


def _kind(row: Row) -> str:
    """The panel for a test: the speeds of the kinds differ by an order of magnitude."""
    if not row.test.n_generate:
        return "prompt processing"
    return "prompt and generation" if row.test.n_prompt else "generation"


def _panel(panel: Axes, points: list[_Point], value: Callable[[Any, Any], int]) -> None:
    """Draw lines over one axis; the label of a line says what else differs."""
    lines: dict[str, list[_Point]] = {}
    several = len({run.model for run, _ in points}) > 1
    for run, row in points:
        fixed = [other(run, row) for _, other in _AXES if other is not value]
        unit = "thread{}" if value is _AXES[0][1] else "tokens before"
        text = f"{row.test.name}, {fixed[0]} {unit.format('' if fixed[0] == 1 else 's')}"
        lines.setdefault(f"{visible(run.model)}: {text}" if several else text, []).append((run, row))
    for name, line in lines.items():
        line.sort(key=lambda point: value(*point))
        at = [value(*point) for point in line]
        speeds = [row.mean for _, row in line]
        spreads = [row.spread or 0.0 for _, row in line]
        panel.errorbar(at, speeds, yerr=spreads, marker="o", capsize=3, label=name)
    panel.set_xticks(sorted({value(*point) for point in points}))
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")
