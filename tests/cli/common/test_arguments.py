"""Arguments and piped text: UTF-8 in any locale, or refused; nothing is altered."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import tiny
from program import llmgen, refused

LATIN = os.fsdecode(b"caf\xe9")
ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
posix = pytest.mark.skipif(
    sys.platform in ("win32", "darwin"), reason="arguments and file names of any bytes"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.write(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@posix
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["run", "MODEL", LATIN], "PROMPT"),
        (["run", "MODEL", "a", "--stop", LATIN], "--stop"),
        (["run", "MODEL", "a", "--system", LATIN], "--system"),
        (["run", "MODEL", "a", "--banned-tokens", "a", "--banned-tokens", LATIN], "--banned-tokens"),
        (["tokenize", "MODEL", LATIN], "TEXT"),
        (["chat", "MODEL", "--system", LATIN], "--system"),
        (["batch", "MODEL", os.devnull, "--system", LATIN], "--system"),
    ],
)
def test_text_that_is_not_utf8_is_refused(model: str, arguments: list[str], name: str) -> None:
    done = llmgen(*(model if item == "MODEL" else item for item in arguments))
    assert refused(done, 2) == f"{name} is not UTF-8 text (byte 0xe9 at offset 3); convert it first"


@posix
def test_the_locale_changes_neither_what_is_read_nor_what_is_written(model: str) -> None:
    usual, ascii = (
        llmgen("tokenize", model, "café", "--json", "--no-bos", **changes) for changes in ({}, ASCII_LOCALE)
    )
    assert usual.returncode == ascii.returncode == 0
    assert json.loads(usual.stdout)["text"].strip() == "café"
    assert ascii.stdout == usual.stdout
    back = [str(id) for id in json.loads(usual.stdout)["ids"]]
    decoded = llmgen("tokenize", model, "--decode", " ".join(back), **ASCII_LOCALE)
    assert decoded.stdout.strip() == "café"


@posix
def test_a_file_may_have_any_name(model: str, tmp_path: Path) -> None:
    for name, changes in ((LATIN, {}), (LATIN, ASCII_LOCALE), ("café", ASCII_LOCALE)):
        path = tmp_path / f"{name}.gguf"
        if not path.exists():
            path.symlink_to(model)
        assert llmgen("tokenize", str(path), "ab", **changes).returncode == 0


@posix
def test_an_options_file_is_utf8_in_any_locale(model: str, tmp_path: Path) -> None:
    config = tmp_path / "options.yaml"
    config.write_text("stop: é\ntemp: 0\nmax-tokens: 1\nraw: true\nprompt: ab\n", encoding="utf-8")
    assert llmgen("run", model, "--config", str(config), **ASCII_LOCALE).returncode == 0


class TestPipedText:
    """What the pipe of ``run`` becomes."""

    def prompt_tokens(self, model: str, *arguments: str, input: bytes) -> int:
        done = llmgen("run", model, *arguments, "-n", "0", "--json", input=input)
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["prompt_tokens"])

    def test_lines_of_a_message_end_as_unix_has_it(self, model: str) -> None:
        message = ("--template", "chatml")
        unix = self.prompt_tokens(model, *message, input=b"a\nb")
        assert self.prompt_tokens(model, *message, input=b"a\r\nb\r\n") == unix
        assert self.prompt_tokens(model, *message, input=b"a\nb\n") == unix
        assert self.prompt_tokens(model, *message, input=b"a\nb\n\n") == unix + 1

    def test_raw_text_stays_as_it_is(self, model: str) -> None:
        assert (
            self.prompt_tokens(model, "--raw", input=b"a\r\nb\r\n")
            == self.prompt_tokens(model, "--raw", input=b"a\nb\n") + 2
        )

    def test_a_dash_is_stdin(self, model: str) -> None:
        assert self.prompt_tokens(model, "-", "--raw", input=b"abab") == self.prompt_tokens(
            model, "--raw", input=b"abab"
        )
        assert "there is no prompt" in refused(llmgen("run", model, "-", input=b""), 2)
        assert "--no-stdin" in refused(llmgen("run", model, "-", "--no-stdin", input=b"a"), 2)
