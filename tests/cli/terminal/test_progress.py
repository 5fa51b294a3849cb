"""The line that tells how far the work is: on the terminal, and nowhere else."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from llmgen.cli.common.loading import compiling
from llmgen.cli.terminal import progress
from llmgen.cli.terminal.output import note
from program import Seen, in_terminal, llmgen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX terminal")
GREEDY = ["--raw", "--temp", "0", "--ignore-eos", "-n", "40"]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with its kernels compiled, so that no bar of theirs is seen."""
    model = str(tiny.write(tmp_path_factory.mktemp("model") / "tiny.gguf"))
    assert llmgen("warmup", model).returncode == 0
    return model


class TestBatch:
    """Answers go to stdout whole and exact, whatever the bar does."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        path = tmp_path / "in.jsonl"
        path.write_text('"abab"\n{bad\n"bab"\n')
        return str(path)

    @pytest.fixture
    def expected(self, warm: str, source: str) -> list[list[int] | None]:
        done = llmgen("batch", warm, source, *GREEDY)
        return self.tokens(done.stdout)

    def tokens(self, text: str) -> list[list[int] | None]:
        return [json.loads(line).get("token_ids") for line in text.splitlines()]

    def check(self, seen: Seen) -> None:
        assert seen.code == 1  # a line is bad
        assert "answers ━" in seen.terminal
        assert not [line for line in seen.screen if "━" in line]
        assert any(line.startswith("3 answers (1 failed)") for line in seen.screen)

    def test_stdout_is_a_pipe(self, warm: str, source: str, expected: object) -> None:
        seen = in_terminal("batch", warm, source, *GREEDY, stdout=subprocess.PIPE)
        self.check(seen)
        assert self.tokens(seen.piped) == expected

    def test_stdout_is_a_file(self, warm: str, source: str, expected: object, tmp_path: Path) -> None:
        with open(tmp_path / "out.jsonl", "wb") as out:
            self.check(in_terminal("batch", warm, source, *GREEDY, stdout=out.fileno()))
        assert self.tokens((tmp_path / "out.jsonl").read_text()) == expected

    def test_stdout_is_the_terminal(self, warm: str, source: str, expected: object) -> None:
        seen = in_terminal("batch", warm, source, *GREEDY)
        self.check(seen)
        lines = [line for line in seen.screen if line.startswith("{")]
        assert max(map(len, lines)) > 80  # the terminal breaks lines, not the program
        assert self.tokens("\n".join(lines)) == expected


def test_every_other_command_gives_what_it_gives_without_a_bar(warm: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abab" * 100)
    arguments = ["perplexity", warm, str(text), "-c", "16"]
    seen = in_terminal(*arguments, stdout=subprocess.PIPE)
    assert (seen.code, seen.piped) == (0, llmgen(*arguments).stdout)
    assert "text ─" in seen.terminal
    assert seen.screen == [""]


def test_a_terminal_without_cursor_movement_gets_no_bar(warm: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abab" * 100)
    seen = in_terminal("perplexity", warm, str(text), "-c", "16", stdout=subprocess.PIPE, TERM="dumb")
    assert seen.terminal == ""


class _Terminal(io.TextIOWrapper):
    """Stands for stderr."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="\n", write_through=True)

    @property
    def written(self) -> str:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()

    def isatty(self) -> bool:
        return True


def replaced_stderr(patch: pytest.MonkeyPatch) -> _Terminal:
    terminal = _Terminal()
    patch.setenv("TERM", "xterm")
    patch.setattr(sys, "stderr", terminal)
    return terminal


def test_the_compilation_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = replaced_stderr(monkeypatch)
    with compiling() as report:
        report(3, 3)
        assert terminal.written == ""
        report(0, 3)
        report(3, 3)
    assert "compiling kernels for this CPU (first use) ─" in terminal.written
    assert "3/3" in terminal.written
    assert Seen(0, terminal.written).screen == [""]


def test_what_else_is_written_takes_the_line_off_first(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = replaced_stderr(monkeypatch)
    with progress.Bar("reading", 8, "tokens") as bar:
        bar.update(0)
        note("by the way")
        bar.update(8, "fast")
    seen = Seen(0, terminal.written.replace("\n", "\r\n"))
    assert seen.screen == ["by the way", ""]
    assert terminal.written.count("reading ") == 2
    assert "8/8 tokens  fast" in terminal.written


def test_a_report_is_drawn_ten_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = replaced_stderr(monkeypatch), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    report = progress.PromptBar()
    for i in range(5):
        now[0] = i * 0.06
        report(512 * i, 2048)
    drawn = [part.split()[2] for part in terminal.written.split("\r") if part.strip()]
    assert drawn == ["0/2,048", "1,024/2,048"]
    assert "0 s left" in terminal.written
    assert Seen(0, terminal.written).screen == [""]


def test_a_short_prompt_gets_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = replaced_stderr(monkeypatch)
    report = progress.PromptBar()
    report(1000, 1100)
    report(1100, 1100)
    assert terminal.written == ""


def test_a_narrow_terminal_gets_a_line_that_fits(warm: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abab" * 100)
    seen = in_terminal("perplexity", warm, str(text), "-c", "16", stdout=subprocess.PIPE, columns=20)
    assert 0 < max(len(part) for part in seen.terminal.split("\r")) < 20


class TestPrompt:
    """A long prompt shows how much of it is computed, and nothing of that is left on the screen."""

    LONG = "ab" * 1200
    OPTIONS = ("-c", "2048", "--temp", "0", "-n", "4", "--ignore-eos")

    @pytest.fixture
    def text(self, tmp_path: Path) -> str:
        path = tmp_path / "text.txt"
        path.write_text(self.LONG)
        return str(path)

    def check(self, seen: Seen, *shown: str) -> None:
        assert seen.code == 0
        for words in shown:
            assert words in seen.terminal
        assert not [line for line in seen.screen if "━" in line or "─" in line]

    @pytest.mark.parametrize("further", [[], ["--json"], ["--samples", "2"], ["--beams", "2"]])
    def test_run(self, warm: str, further: list[str]) -> None:
        arguments = ["run", warm, "--raw", *self.OPTIONS, "--seed", "1", *further]
        seen = in_terminal(*arguments, input=self.LONG.encode(), stdout=subprocess.PIPE)
        self.check(seen, "prompt ─", "0/1,20")
        assert seen.piped

    def test_chat(self, warm: str) -> None:
        arguments = ["chat", warm, *self.OPTIONS, "--no-save", "--template", "plain"]
        seen = in_terminal(*arguments, input=f"{self.LONG}\n".encode(), stdout=subprocess.PIPE)
        self.check(seen, "prompt ─", "0/1,2")
        assert seen.piped

    def test_batch(self, warm: str, tmp_path: Path) -> None:
        source = tmp_path / "in.jsonl"
        source.write_text(json.dumps(self.LONG))
        seen = in_terminal("batch", warm, str(source), "--raw", *self.OPTIONS, stdout=subprocess.PIPE)
        self.check(seen, "line 1: 0/1,20")
        assert len(seen.piped.splitlines()) == 1

    def test_perplexity(self, warm: str, text: str) -> None:
        seen = in_terminal("perplexity", warm, text, "-c", "1200", stdout=subprocess.PIPE)
        self.check(seen, "text ─", "0/1,199 tokens", "1,199/1,199 tokens  perplexity ")
