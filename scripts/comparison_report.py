"""The reports of scripts/compare.py: a table for the terminal, Markdown for the docs; a row for each type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from llmgen.gguf import GGMLType

Report = dict[str, Any]


def print_table(report: Report) -> None:
    """One model's tests as a table, and under it what was compared."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    peers = _peers(report)
    title = f"{report['model']['file']}, {report['threads']} threads, tokens/s: median (lowest to highest)"
    table = Table(title=title)
    for heading in ("test", "depth", "llmgen", *peers, "ratio", "of the limit"):
        table.add_column(heading, justify="left" if heading == "test" else "right", no_wrap=True)
    for row in report["tests"]:
        table.add_row(
            f"{row['test']} {row['tokens']}",
            str(row["depth"]),
            _cell(row["llmgen"], 1),
            *(_cell(row["peers"].get(name), 1) for name in peers),
            _cell(row.get("ratio"), 2),
            f"{row['share_of_limit']:.0%}",
        )
    console.print(table)
    for line in _notes(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def as_markdown(reports: list[Report]) -> str:
    """One table for all models: medians, and the lowest and highest ratio to the best peer."""
    peers = list(dict.fromkeys(name for report in reports for name in _peers(report)))
    headings = ["model", "threads", "test", "depth", "llmgen", *peers, "ratio", "of the limit"]
    lines = [_line(headings), _line(["---"] * len(headings))]
    for report in reports:
        for row in report["tests"]:
            cells = [
                report["model"]["file"].removesuffix(".gguf"),
                str(report["threads"]),
                f"{row['test']} {row['tokens']}",
                str(row["depth"]),
                _median(row["llmgen"]),
                *(_median(row["peers"].get(name)) for name in peers),
                _ratio(row.get("ratio")),
                f"{row['share_of_limit']:.0%}",
            ]
            lines.append(_line(cells))
    return "\n".join([*lines, "", *_notes(reports[-1])])


class TypeTable:
    """A Markdown file with a row for each quantization type, in both roles; rows are appended."""

    def __init__(self, path: Path, forks: list[str], level: str) -> None:
        """forks: the names of llama-bench binaries; level: a lower kernel level of ours."""
        self._path, self._peers, self._lower = path, ["llama.cpp", *forks], f"llmgen {level}"
        role = ["llmgen", *self._peers, "ratio", level]
        self._headings = ["type", "bits", *(f"generated: {role[0]}", *role[1:]), "of a plain read"]
        self._headings += [f"prompt: {role[0]}", *role[1:]]

    def types(self) -> set[str]:
        """The types that have a row."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return {line.split("|")[1].strip() for line in lines if line.startswith("|")}

    def append(self, name: str, report: Report) -> None:
        """A type's row, under the headings if it is the first."""
        lines = [] if self.types() else [_line(self._headings), _line(["---"] * len(self._headings))]
        rows = {row["test"]: row for row in report["tests"]}
        kind = GGMLType[name]
        cells = [name, f"{8 * kind.block_bytes / kind.block_size:.2f}", *self._role(rows["decode"])]
        cells += [f"{rows['decode']['share_of_limit']:.0%}", *self._role(rows["prefill"])]
        with self._path.open("a") as file:
            file.write("\n".join([*lines, _line(cells)]) + "\n")

    def _role(self, row: Report) -> list[str]:
        """Ours, the peers', the ratio to the better one, and ours at the lower level."""
        others = [_median(row["peers"].get(name)) for name in (*self._peers, self._lower)]
        ratio = f"{row['ratio']['median']:.2f}" if "ratio" in row else ""
        return [_median(row["llmgen"]), *others[:-1], ratio, others[-1]]


def _peers(report: Report) -> list[str]:
    return [name for name in report["contenders"] if name != "llmgen"]


def _notes(report: Report) -> list[str]:
    """The machine and the versions, a line each."""
    machine = report["machine"]
    notes = [
        f"{machine['processor']}, {machine['cores']} cores; with {report['threads']} threads a plain read"
        f" gives {machine['read_gb_per_s']:.1f} GB/s and the dot product unit"
        f" {machine['dot_gmac_per_s']:.0f} GMAC/s"
    ]
    for name, facts in report["contenders"].items():
        notes.append(f"{name}: " + ", ".join(f"{key} {value}" for key, value in facts.items()))
    if "agreement" in report:
        found = report["agreement"]
        notes.append(
            f"f16 cache on all sides; KL(llama.cpp || llmgen) {found['mean_kl']:.2g}, the same best token"
            f" at {found['same_best_token']} of {found['positions']} positions"
        )
    if report["taken_by_others"] is not None:
        notes.append(f"other processes took {report['taken_by_others']:.0%} of a core")
    return notes


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _median(summary: dict[str, Any] | None) -> str:
    if summary is None:
        return ""
    return f"{summary['median']:.{0 if summary['median'] >= 100 else 1}f}"


def _ratio(summary: dict[str, Any] | None) -> str:
    return f"{summary['median']:.2f} ({summary['min']:.2f} to {summary['max']:.2f})" if summary else ""


def _cell(summary: dict[str, Any] | None, digits: int) -> str:
    if summary is None:
        return ""
    low, middle, high = (f"{summary[key]:.{digits}f}" for key in ("min", "median", "max"))
    return f"{middle} ({low} to {high})"
