"""``llmgen tokenize``."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from models import gemma3, smollm2
from program import HANGS_S, PROGRAM, environment, llmgen, refused

TEXT = "Hello  world\n<|im_end|> ünï 🎉"


def test_ids_and_back() -> None:
    model = str(smollm2())
    ids = llmgen("tokenize", model, TEXT, "--ids").stdout
    assert ids.split()[:3] == ["19556", "216", "905"]
    assert llmgen("tokenize", model, ids, "--decode").stdout == TEXT + "\n"
    assert llmgen("tokenize", model, "--decode", input=ids).stdout == TEXT + "\n"


def test_json_holds_what_the_table_shows() -> None:
    told = json.loads(llmgen("tokenize", str(smollm2()), "--json", input=TEXT).stdout)
    assert told["count"] == len(told["ids"]) == len(told["pieces"])
    assert told["pieces"][:3] == ["Hello", " ", " world"]
    back = llmgen("tokenize", str(smollm2()), json.dumps(told["ids"]), "--decode", "--json")
    assert json.loads(back.stdout)["text"] == TEXT


def test_a_table_with_control_characters_made_visible() -> None:
    done = llmgen("tokenize", str(smollm2()), "a\x1b[31m\n")
    assert "\x1b" not in done.stdout
    assert "\\x1b" in done.stdout
    assert done.stdout.splitlines()[0].split() == ["id", "piece"]
    assert done.stderr.endswith(" tokens\n")
    assert llmgen("tokenize", str(smollm2()), "a").stderr == "1 token\n"


def test_special_tokens_only_on_request() -> None:
    def count(*options: str) -> int:
        return int(llmgen("tokenize", str(smollm2()), "<|im_end|>", "--count", *options).stdout)

    assert count() > 1
    assert count("--parse-special") == count("--special") == 1


def test_beginning_of_text() -> None:
    model = str(gemma3())
    assert llmgen("tokenize", model, "Hi", "--ids").stdout.split()[0] == "2"
    assert llmgen("tokenize", model, "Hi", "--ids", "--no-bos").stdout.split()[0] != "2"


def test_chat() -> None:
    ids = llmgen("tokenize", str(smollm2()), "Hi", "--chat", "--ids").stdout
    assert llmgen("tokenize", str(smollm2()), ids, "--decode").stdout.endswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n"
    )
    assert "this model has none" in refused(llmgen("tokenize", str(gemma3()), "Hi", "--chat"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["Hi", "--ids", "--json"], "exclude each other"),
        (["1", "--decode", "--special"], "--decode has no use for --parse-special"),
        (["Hi", "--chat", "--no-bos"], "--chat leaves no room"),
        (["Hi", "--template", "plain"], "--template belongs to --chat"),
        (["1 two 3", "--decode"], "'two' is not a token id"),
        (["49152", "--decode"], "ids go from 0 to 49151"),
        (["-5", "--decode"], "no such option: -5"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str) -> None:
    assert says in refused(llmgen("tokenize", str(smollm2()), *arguments), code=2)


def test_bytes_that_are_no_text() -> None:
    assert "not UTF-8" in refused(llmgen("tokenize", str(smollm2()), input=b"caf\xe9"), code=2)


def test_a_stdout_that_cannot_say_it() -> None:
    ascii = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    ids = llmgen("tokenize", str(smollm2()), "n\u00ef \N{PARTY POPPER}", "--ids").stdout
    assert llmgen("tokenize", str(smollm2()), ids, "--decode", **ascii).stdout == "n? ?\n"
    told = llmgen("tokenize", str(smollm2()), ids, "--decode", "--json", **ascii).stdout
    assert json.loads(told)["text"] == "n\u00ef \N{PARTY POPPER}"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX terminal")
class TestTerminal:
    """In a real terminal."""

    def show(self, *arguments: str, **changes: str) -> str:
        import pexpect

        program: Any = pexpect.spawn(
            PROGRAM[0],
            [*PROGRAM[1:], "tokenize", str(smollm2()), *arguments],
            env=environment(**({"TERM": "xterm-256color", "NO_COLOR": None} | changes)),  # type: ignore[arg-type]
            encoding="utf-8",
            dimensions=(24, 100),
            timeout=HANGS_S,
        )
        return str(program.read())

    def test_colours_change_at_the_borders(self) -> None:
        shown = self.show("Hello [bold]world\n\x1b]0;title\x07")
        head = shown[: shown.index("piece")]
        assert re.search(r"\x1b\[[0-9;]*mHello\x1b\[0m\x1b\[[0-9;]*m \[\x1b\[0m", head)
        assert "\u21b5" in head
        assert "\x1b]" not in shown
        assert "bold" in head

    def test_special_tokens_stand_out(self) -> None:
        shown = self.show("<|im_end|>", "--chat")
        head = shown[: shown.index("piece")]
        assert head.count("<|im_end|>") == 2  # each in one piece; the user's own is in several
        plain = self.show("<|im_end|>", "--chat", NO_COLOR="1")
        assert plain.startswith("<|im_start|>system\r\n")
        assert "48;5" not in plain

    def test_decoded_text_cannot_steer_it(self) -> None:
        ids = llmgen("tokenize", str(smollm2()), "\x1b[31mred", "--ids").stdout
        assert self.show(ids, "--decode") == "\u241b[31mred\r\n"
