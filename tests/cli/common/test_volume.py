"""``--verbose``, which every command has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny
from llmgen.cli.app import COMMANDS, _LazyCommands
from program import llmgen


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_it(name: str) -> None:
    command: Any = _LazyCommands()[name]
    for each in (command, *getattr(command, "commands", {}).values()):
        assert [p.name for p in each.params if "--verbose" in p.opts] == ["verbose"]


def test_the_log_goes_to_stderr_with_times(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "tiny.gguf")
    plain, verbose = llmgen("inspect", str(path)), llmgen("inspect", str(path), "--verbose")
    assert verbose.stdout == plain.stdout
    first, *others = verbose.stderr.splitlines()
    assert "llmgen 0." in first
    assert " s  llmgen" in first
    assert any(f"opened {path}: " in line for line in others)


def test_a_quiet_group_has_quiet_commands() -> None:
    assert llmgen("chats", "list").stderr
    assert llmgen("chats", "--quiet", "list").stderr == llmgen("chats", "list", "--quiet").stderr == ""
