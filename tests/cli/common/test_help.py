"""What ``--help`` shows: panels, the values of every choice, whole words, examples."""

from __future__ import annotations

import re

import pytest

from llmgen.cli.app import ALIASES, COMMANDS
from llmgen.sampling.checks import SAMPLER_NAMES
from llmgen.sampling.params import option_table
from program import llmgen

PANELS = ("Model", "Prompt", "Sampling", "Output", "Advanced")


def shown(*arguments: str, columns: int = 80) -> str:
    done = llmgen(*arguments, "--help", COLUMNS=str(columns))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def panels(text: str) -> dict[str, str]:
    """Title -> what is under it."""
    parts = re.split(r"^(\w+):$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("command", ["run", "chat", "batch"])
def test_options_stand_in_panels(command: str) -> None:
    found = panels(shown(command))
    assert [title for title in found if title in PANELS] == list(PANELS)
    assert "--ctx" in found["Model"]
    assert "--system" in found["Prompt"]
    assert "--temp" in found["Sampling"]
    assert "--json" in found["Output"] or command == "batch"
    assert "--mirostat" in found["Advanced"]
    everything = "".join(found[title] for title in PANELS)
    for option in option_table():
        assert re.search(rf"^  (-n, )?{option.flag}\b", everything, re.MULTILINE), option.flag


def test_values_of_choices() -> None:
    text = " ".join(shown("run").split())
    for choice in (
        "--kv-type KIND",
        "(f32, f16, bf16, q8_0, q4_0, nf4)",
        "--context-full stop|shift",
        "--logprobs-mode raw|processed",
        "--mirostat 0|1|2",
    ):
        assert choice in text
    assert f"[default: {'; '.join(SAMPLER_NAMES)}]" in text
    assert "--think show|fold|hide|off" in " ".join(shown("chat").split())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [60, 80])
def test_no_word_is_broken_and_lines_fit(command: str, columns: int) -> None:
    wide = set(shown(command, columns=400).split())
    text = panels(shown(command, columns=columns))
    examples = text.pop("Examples")
    assert f"llmgen {command} " in examples or command in ("list",)
    for body in text.values():
        assert set(body.split()) <= wide
        assert max(map(len, body.splitlines())) <= columns


def test_what_people_type() -> None:
    for alias, command in ALIASES.items():
        usage, *alike = shown(alias).split("\n", 1)
        assert usage.startswith(f"Usage: llmgen {alias} ")
        assert alike == shown(command).split("\n", 1)[1:]
