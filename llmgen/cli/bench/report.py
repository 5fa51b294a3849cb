"""How the results of ``llmgen bench`` are written: a table for people, or a format for programs.

CSV, SQL, JSON lines and Markdown are written a row at a time, as soon as it is measured;
a table, whose columns are as wide as their cells, and a JSON object come at the end.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from llmgen.cli.common.guessing import guessing_figures
from llmgen.cli.terminal.output import count, print_json, size, table
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen.cli.bench.guessing import Guessed
    from llmgen.cli.bench.measure import Plan, Row, Run


class Format(StrEnum):
    """The formats of the output."""

    TABLE = "table"
    MD = "md"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    SQL = "sql"


class Report:
    """Base of the formats: called with each row as it is measured, and once at the end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def row(self, run: Run, row: Row) -> None:
        """Called when a test is done."""

    def end(self, runs: list[Run], complete: bool) -> None:
        """Called when no more rows will come, with at least one; ``complete``: nothing was cut short."""


def report_for(form: Format, plan: Plan) -> Report:
    """The report for a format."""
    return _FORMS[form](plan)


def values(run: Run, row: Row) -> dict[str, Any]:
    """One row as plain values, the same in all formats for programs; None where there is no figure."""
    from llmgen import __version__

    rate, read = row.weight_rate, run.read_rate
    return {
        "version": __version__,
        **_machine(),
        **_model(run),
        "threads": run.threads,
        "kv_type": run.kv_type,
        "kv_cache": run.kv_cache,
        "rope_scaling": run.rope_scaling,
        "decode_plan": run.decode_plan,
        "test": row.test.name,
        "n_prompt": row.test.n_prompt,
        "n_generate": row.test.n_generate,
        "depth": row.test.depth,
        "repetitions": len(row.rates),
        "tokens_per_s": row.mean,
        "spread": row.spread,
        "weight_gb_per_s": rate and rate / 1e9,
        "read_gb_per_s": read and read / 1e9,
        "share_of_read": rate / read if rate and read else None,
        "kv_store_share": row.cache and row.cache.store,
        "kv_read_share": row.cache and row.cache.read,
    }


def label(run: Run, row: Row) -> str:
    """A test's name for people: ``tg128 @ d4096``."""
    name = row.test.name + ("" if run.kv_cache or not row.test.n_generate else " no cache")
    return f"{name} @ d{row.test.depth}" if row.test.depth else name


def _machine() -> dict[str, str]:
    from llmgen.cli.common.machine import cpu_name, kernel_level

    return {"cpu": cpu_name(), "kernel_level": kernel_level()}


def _model(run: Run) -> dict[str, Any]:
    return {
        "model": run.model,
        "size": run.size,
        "parameters": run.parameters,
        "quantization": run.quantization,
    }


# ---- for people ---------------------------------------------------------------------


def _columns(plan: Plan) -> tuple[str, ...]:
    speeds = ("tokens/s", "±") if plan.repetitions > 1 else ("tokens/s",)
    reading = ("GB/s", "of read", "KV store", "KV read") if plan.generates else ()
    return ("model", "size", "params", "quantization", "threads", "test", *speeds, *reading)


def _cells(run: Run, row: Row) -> dict[str, str]:
    """One row by the names of the columns."""
    rate, read = row.weight_rate, run.read_rate
    return {
        "model": run.model,
        "size": size(run.size),
        "params": count(run.parameters),
        "quantization": run.quantization,
        "threads": str(run.threads),
        "test": label(run, row),
        "tokens/s": f"{row.mean:.1f}",
        "±": "" if row.spread is None else f"{row.spread:.1f}",
        "GB/s": "" if rate is None else f"{rate / 1e9:.1f}",
        "of read": f"{rate / read:.0%}" if rate and read else "",
        "KV store": "" if row.cache is None else f"{row.cache.store:.1%}",
        "KV read": "" if row.cache is None else f"{row.cache.read:.1%}",
    }


_RIGHT = ("size", "params", "threads", "tokens/s", "±", "GB/s", "of read", "KV store", "KV read")


class _Table(Report):
    def end(self, runs: list[Run], complete: bool) -> None:
        columns = _columns(self.plan)
        rows = [_cells(run, row) for run in runs for row in run.rows]
        machine = _machine()
        table(
            columns,
            [[row[column] for column in columns] for row in rows],
            title=f"{visible(machine['cpu'])} ({machine['kernel_level']})",
            right=[i for i, column in enumerate(columns) if column in _RIGHT],
        )
        for run in runs:
            for line in _remarks(run, several=len({run.model for run in runs}) > 1):
                print(line)


class _Markdown(Report):
    _begun = False

    def row(self, run: Run, row: Row) -> None:
        columns = _columns(self.plan)
        if not self._begun:
            self._begun = True
            print(_bar(columns))
            print(_bar("---:" if column in _RIGHT else "---" for column in columns))
        cells = _cells(run, row)
        print(_bar(cells[column] for column in columns), flush=True)

    def end(self, runs: list[Run], complete: bool) -> None:
        machine = _machine()
        print(f"\n{_escaped(machine['cpu'])} ({machine['kernel_level']})")
        for run in runs:
            for line in _remarks(run, several=len({run.model for run in runs}) > 1):
                print(f"\n{_escaped(line.strip())}")


def _bar(cells: Any) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    return visible(text).replace("|", "\\|")


def _remarks(run: Run, several: bool) -> list[str]:
    """The figures beside the tests, as far as they were requested."""
    lines = []
    who = f"{visible(run.model)}, " if several else ""
    threads = f"{who}{run.threads} thread{'s' if run.threads > 1 else ''}"
    if run.read_rate is not None:
        lines.append(f"{threads}: plain read {run.read_rate / 1e9:.1f} GB/s")
    if details := run.details:
        lines += [
            f"{threads}: loaded in {run.load_s:.2f} s; first token of a {details['prompt_tokens']:.0f}-token"
            f" prompt after {details['first_token_s']:.3f} s; sampler {details['sampler_share']:.1%} of a step",
            f"  KV cache {size(run.kv_bytes_per_token)} per token; at 256 tokens a step is"
            f" {details['speedup']:.1f} times faster with it than recomputing"
            f" ({details['cached_step_s'] * 1e3:.1f} ms, {details['recomputed_step_s'] * 1e3:.1f} ms)",
        ]
    lines += [f"{threads}: {_guessed(one)}" for one in run.guessed]
    return lines


def _guessed(one: Guessed) -> str:
    return (
        f"{one.text} with guesses {one.guessed:.1f} tokens/s, without {one.plain:.1f}: {one.speedup:.2f} times as fast;"
        f" guesses: {guessing_figures(one.stats)}"
    )


# ---- for programs -------------------------------------------------------------------


class _JSON(Report):
    def end(self, runs: list[Run], complete: bool) -> None:
        from llmgen import __version__

        print_json(
            {
                "version": __version__,
                **_machine(),
                "complete": complete,
                "runs": [_as_dict(run) for run in runs],
            }
        )


def _as_dict(run: Run) -> dict[str, Any]:
    """A run with its tests, which do not repeat the run's own fields."""
    above = {*_model(run), *_machine(), "version", "threads", "kv_type", "kv_cache", "read_gb_per_s"}
    above |= {"rope_scaling", "decode_plan"}
    return {
        **_model(run),
        "threads": run.threads,
        "kv_type": run.kv_type,
        "kv_cache": run.kv_cache,
        "kv_bytes_per_token": run.kv_bytes_per_token,
        "rope_scaling": run.rope_scaling,
        "decode_plan": run.decode_plan,
        **run.local_window,
        "load_s": run.load_s,
        "read_gb_per_s": run.read_rate and run.read_rate / 1e9,
        "tests": [
            {
                **{key: value for key, value in values(run, row).items() if key not in above},
                "samples": list(row.rates),
            }
            for row in run.rows
        ],
        **run.details,
        **({"guessed": [one.as_dict() for one in run.guessed]} if run.guessed else {}),
    }


class _Lines(Report):
    def row(self, run: Run, row: Row) -> None:
        print_json({**values(run, row), **run.local_window, "samples": list(row.rates)})
        sys.stdout.flush()


class _CSV(Report):
    _writer: csv.DictWriter[str] | None = None

    def row(self, run: Run, row: Row) -> None:
        found = values(run, row)
        if self._writer is None:
            self._writer = csv.DictWriter(sys.stdout, list(found), lineterminator="\n")
            self._writer.writeheader()
        self._writer.writerow({key: _text(value) for key, value in found.items()})
        sys.stdout.flush()


def _text(value: Any) -> Any:
    """A CSV value: four significant digits, true and false as in JSON, empty for None."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else value


_TABLE_NAME = "llmgen_bench"
_SQL_TYPES = {bool: "INTEGER", int: "INTEGER", float: "REAL", str: "TEXT"}


class _SQL(Report):
    """A table, unless it exists, and an INSERT for each row, in SQL that SQLite and others accept."""

    _begun = False

    def row(self, run: Run, row: Row) -> None:
        found = values(run, row)
        if not self._begun:
            self._begun = True
            columns = ",\n".join(f"  {name} {_sql_type(value)}" for name, value in found.items())
            print(f"CREATE TABLE IF NOT EXISTS {_TABLE_NAME} (\n{columns}\n);")
        written = ", ".join(map(_sql_value, found.values()))
        print(f"INSERT INTO {_TABLE_NAME} ({', '.join(found)}) VALUES ({written});", flush=True)


def _sql_type(value: Any) -> str:
    return _SQL_TYPES.get(
        type(value), "REAL"
    )  # a figure that is missing here is a measured number in other rows


def _sql_value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + visible(value).replace("'", "''") + "'"
    return repr(int(value) if isinstance(value, bool) else value)


_FORMS: dict[Format, Callable[[Plan], Report]] = {
    Format.TABLE: _Table,
    Format.MD: _Markdown,
    Format.CSV: _CSV,
    Format.JSON: _JSON,
    Format.JSONL: _Lines,
    Format.SQL: _SQL,
}
