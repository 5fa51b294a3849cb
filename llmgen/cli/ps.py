"""``llmgen ps``: the llmgen processes that have a model open."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from llmgen import hub
from llmgen.cli.common.options import JsonOption
from llmgen.cli.terminal.output import note, print_json, size, table
from llmgen.hub.running import Process, processes


def command(json: JsonOption = False) -> None:
    """List the running llmgen processes: what they run, their memory, and how fast they are.

    The speeds are averages over all tokens that a process has computed so far. Python programs
    that use the library are not listed.
    """
    running = processes()
    names = {model.path.absolute(): model.name for model in hub.inventory(everything=True)} if running else {}
    entries = [_described(process, names) for process in running]
    if json:
        print_json({"processes": entries})
        return
    if not entries:
        note("no llmgen process has a model open")
        return
    columns = ("pid", "command", "model", "memory", "since", "prompt", "answer")
    table(columns, [_row(entry) for entry in entries], right=(0, 3))


def _described(process: Process, names: dict[Path, str]) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "command": process.command,
        "model": names.get(Path(process.path).absolute(), process.path),
        "path": process.path,
        "started": process.started,
        "memory": process.memory,
        "prompt_tokens": process.prompt_tokens,
        "prompt_tokens_per_s": _rate(process.prompt_tokens, process.prompt_s),
        "generated_tokens": process.generated_tokens,
        "generated_tokens_per_s": _rate(process.generated_tokens, process.generated_s),
    }


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if seconds > 0 else None


def _row(entry: dict[str, Any]) -> tuple[object, ...]:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["started"]))
    memory = "?" if entry["memory"] is None else size(entry["memory"])
    speeds = [_speed(entry[f"{kind}_tokens_per_s"]) for kind in ("prompt", "generated")]
    return entry["pid"], entry["command"], entry["model"], memory, since, *speeds


def _speed(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f} tokens/s"
