"""``llmgen run`` as a user sees it: streams, options, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from models import gemma3, smollm2
from program import HANGS_S, PROGRAM, environment, llmgen, refused

pytestmark = pytest.mark.usefixtures("compiled")
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals, pipes and terminals")
GREEDY = ["--temp", "0", "-n", "12"]
CUT = "the answer was cut at the limit of tokens (-n; -1 sets none)\n"
FRANCE = ["The capital of France is", "--raw", *GREEDY]


@cache
def run_json(*arguments: str, input: str | None = None) -> dict[str, Any]:
    """The JSON object of a run that succeeds."""
    done = llmgen("run", str(smollm2()), "--json", *arguments, input=input)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_text_and_json_tell_the_same() -> None:
    told = run_json(*FRANCE)
    assert told["finish_reason"] == "length"
    assert told["completion_tokens"] == len(told["token_ids"]) == 12
    assert told["prompt_tokens"] == 5
    assert isinstance(told["seed"], int)
    assert told["timings"]["decode_tokens_per_s"] > 0
    done = llmgen("run", str(smollm2()), *FRANCE)
    assert done.returncode == 0
    assert done.stdout == told["text"] + "\n"
    assert done.stderr == CUT
    assert "Paris" in told["text"]


def test_the_chat_template_applies() -> None:
    answered = run_json("Say hello.", *GREEDY)
    assert answered["prompt_tokens"] > run_json("Say hello.", "--raw", *GREEDY)["prompt_tokens"] + 10
    briefed = run_json("Say hello.", "--system", "You are a pirate who says only: arr.", *GREEDY)
    assert briefed["text"] != answered["text"]


def test_stats_and_seed_go_to_stderr(tmp_path: Path) -> None:
    arguments = [str(smollm2()), "Once upon a time", "--raw", "-n", "5"]
    plain = llmgen("run", *arguments, "--seed", "7")
    # another folder for state: in the usual one longer answers of other tests may have found other streams
    told = llmgen("run", *arguments, "--seed", "7", "--stats", LLMGEN_STATE=str(tmp_path))
    assert told.stdout == plain.stdout
    assert plain.stderr == CUT
    assert "tokens/s" in told.stderr
    assert "ended: length (max_tokens); seed 7" in told.stderr
    assert "KV cache: f16, 23,040 bytes a token, 1.5 MB for 9, read in 4 streams" in told.stderr
    random = llmgen("run", *arguments)
    seed = random.stderr.removeprefix(f"{CUT}seed ").strip()
    assert llmgen("run", *arguments, "--seed", seed).stdout == random.stdout


def test_thread_count_does_not_change_the_text() -> None:
    one, two = (run_json("Tell me a story.", "--seed", "3", "-n", "24", "-t", n) for n in ("1", "2"))
    assert one["token_ids"] == two["token_ids"]


def test_stop_and_limits() -> None:
    whole = run_json("Count: 1, 2, 3,", "--raw", *GREEDY)["text"]
    assert " 5" in whole
    stopped = run_json("Count: 1, 2, 3,", "--raw", "--stop", " 5", *GREEDY)
    assert stopped["text"] == whole[: whole.index(" 5")]
    assert stopped["finish_reason"] == "stop"
    nothing = llmgen("run", str(smollm2()), "Hi", "-n", "0", "--temp", "0")
    assert (nothing.stdout, nothing.stderr) == ("\n", "")


def test_an_answer_goes_on_until_the_model_ends_it_or_the_context_is_full() -> None:
    ended = llmgen("run", str(smollm2()), "Say hello.", "--temp", "0")
    assert (ended.returncode, ended.stderr) == (0, "")
    arguments = ["Once upon a time", "--raw", "-c", "700", "--temp", "0", "--ignore-eos"]
    full = "the answer was cut where the context of 700 tokens was full"
    for options in ([], ["-n", "-1"], ["--beams", "1"]):
        done = llmgen("run", str(smollm2()), *arguments, *options, "--json")
        told = json.loads(done.stdout)
        assert (told["finish_detail"], told["completion_tokens"] > 512) == ("context_full", True)
        assert done.stderr.startswith(full)
        assert len(done.stderr.splitlines()) == 1
    out_of_time = llmgen("run", str(smollm2()), *arguments, "--timeout", "0.000001")
    assert out_of_time.stderr == "the answer was cut when the time was up (--timeout)\n"
    assert out_of_time.returncode == 124


class TestStdin:
    """Text that is piped in."""

    def test_is_the_prompt(self) -> None:
        assert (
            run_json("--raw", *GREEDY, input="Once upon a time")["token_ids"]
            == run_json("Once upon a time", "--raw", *GREEDY)["token_ids"]
        )

    def test_is_appended_to_the_prompt(self) -> None:
        def ids(*arguments: str, input: str | None = None) -> list[int]:
            return list(run_json(*arguments, *GREEDY, input=input)["token_ids"])

        assert ids("Once upon", "--raw", input=" a time") == ids("Once upon a time", "--raw")
        assert ids("Translate:", input="Bonjour\n") == ids("Translate:\nBonjour")

    def test_nothing_at_all(self) -> None:
        assert "no prompt" in refused(llmgen("run", str(smollm2())), code=2)
        assert "no prompt" in refused(llmgen("run", str(smollm2()), "--no-stdin", input="Hi"), code=2)

    def test_bytes_that_are_no_text(self) -> None:
        assert "not UTF-8 text (byte 0xff at offset 2)" in refused(
            llmgen("run", str(smollm2()), input=b"ok\xff"), code=2
        )

    @posix
    def test_a_silent_pipe_is_announced_and_no_stdin_does_not_wait(self) -> None:
        read, write = os.pipe()
        command = [*PROGRAM, "run", str(smollm2()), "Once upon", "--raw", *GREEDY]
        options: dict[str, Any] = {"stdin": read, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        waiting = subprocess.Popen(command, text=True, env=environment(), **options)
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "waiting for text on stdin (--no-stdin does not wait)\n"
        free = subprocess.run(
            [*command, "--no-stdin"], text=True, env=environment(), timeout=HANGS_S, **options
        )
        assert free.returncode == 0
        assert free.stderr == CUT
        os.write(write, b" a time")
        os.close(write)
        os.close(read)
        out, _ = waiting.communicate(timeout=HANGS_S)
        assert out == run_json("Once upon a time", "--raw", *GREEDY)["text"] + "\n"
        assert free.stdout != out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--system", "x", "--raw"], "--system needs the chat template that --raw leaves out"),
        (["--logprobs", "2"], "--logprobs can only be shown by --json"),
        (["--temp", "-1"], "temp"),
        (["--top-k", "many"], "--top-k"),
        (["-c", "0"], "-c"),
        (["-t", "0"], "-t"),
        (["--frobnicate"], "no such option"),
        (["a", "second", "prompt"], "unexpected extra argument"),
    ],
)
def test_options_that_cannot_be_honoured(arguments: list[str], says: str) -> None:
    assert says in refused(llmgen("run", str(smollm2()), "Hi", *arguments), code=2)


def test_no_template() -> None:
    assert "this model has none" in refused(llmgen("run", str(gemma3()), "Hi", "--system", "x"), code=2)
    done = llmgen("run", str(gemma3()), "The capital of France is", *GREEDY)
    assert done.returncode == 0
    assert len(done.stdout.split()) > 5


def test_the_blank_after_a_label_is_left_out() -> None:
    arguments = [
        str(gemma3()),
        "What is the capital of France?",
        "--template",
        "plain",
        "--temp",
        "0",
        "-n",
        "3",
    ]
    text = json.loads(llmgen("run", *arguments, "--json").stdout)["text"]
    assert text == " The capital of"
    assert llmgen("run", *arguments).stdout == "The capital of\n"
    assert llmgen("run", *arguments, "--samples", "2").stdout == "The capital of\n---\nThe capital of\n"


def test_a_prompt_that_does_not_fit() -> None:
    sentence = refused(llmgen("run", str(smollm2()), "one two three four five six", "--raw", "-c", "4"))
    assert "6 tokens" in sentence
    assert "holds 4" in sentence
    assert "--ctx" in sentence


def test_logprobs_in_json() -> None:
    told = run_json("The capital of France is", "--raw", "--logprobs", "2", *GREEDY)
    assert len(told["logprobs"]) == 12
    assert all(len(entry["top"]) == 2 and entry["logprob"] <= 0 for entry in told["logprobs"])


def test_timeout() -> None:
    arguments = [str(smollm2()), "Tell a long story.", "--ignore-eos", "-n", "5000", "--timeout", "0.5"]
    done = llmgen("run", *arguments, "--temp", "0")
    assert done.returncode == 124
    text = done.stdout.removesuffix("\n")  # as far as it came
    whole = run_json("Tell a long story.", "--ignore-eos", "-n", "100", "--temp", "0")["text"]
    assert text.startswith(whole[: len(text)])
    done = llmgen("run", *arguments, "--json")
    assert done.returncode == 124
    assert json.loads(done.stdout)["finish_reason"] == "timeout"


ENDLESS = ["Tell a long story.", "--ignore-eos", "-n", "1000000000", "--context-full", "shift", "--seed", "1"]


@posix
class TestSignals:
    """Ctrl-C and closed pipes."""

    def start(self, *options: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*PROGRAM, "run", str(smollm2()), *ENDLESS, *options],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=environment(),
        )

    @pytest.mark.parametrize("guesser", ["", "--lookup", "--draft"])
    def test_ctrl_c_keeps_the_text_so_far(self, guesser: str) -> None:
        options = {"": [], "--lookup": ["--lookup"], "--draft": ["--draft", str(smollm2())]}[guesser]
        program = self.start(*options)
        assert program.stdout is not None
        first = program.stdout.read(20)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=HANGS_S)
        assert program.returncode == 130
        assert err == b""
        text = (first + out).decode()
        assert text.endswith("\n")
        whole = run_json("Tell a long story.", "--ignore-eos", "-n", "300", "--seed", "1")["text"]
        assert whole.startswith(text.removesuffix("\n")[:200])

    def test_ctrl_c_under_json(self) -> None:
        program = self.start("--json", "--verbose")
        assert program.stderr is not None
        while b"computed" not in (line := program.stderr.readline()):
            assert line, "it ended before the prompt was computed"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=HANGS_S)
        assert program.returncode == 130, err
        assert b"Traceback" not in err
        assert json.loads(out)["finish_reason"] == "interrupted"

    def test_ctrl_c_while_it_starts(self) -> None:
        for delay in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6):
            program = self.start()
            time.sleep(delay)
            program.send_signal(signal.SIGINT)
            _, err = program.communicate(timeout=HANGS_S)
            if b"KeyboardInterrupt" in err and (b"<frozen " in err or b"site" in err):
                continue  # so early that Python itself was still starting
            assert program.returncode in (130, -signal.SIGINT)
            assert err == b""

    def test_a_reader_that_leaves(self) -> None:
        read, write = os.pipe()
        program = self.start(stdout=write)
        os.close(write)
        assert os.read(read, 5)
        os.close(read)
        _, err = program.communicate(timeout=HANGS_S)
        assert program.returncode == 0
        assert err == b""


class TestFiles:
    """Documents before the question, and prompts from files."""

    def ids(self, *arguments: str, input: str | None = None) -> list[int]:
        return list(run_json(*arguments, *GREEDY, input=input)["token_ids"])

    def count(self, *arguments: str) -> int:
        done = llmgen("run", str(smollm2()), *arguments, "-n", "0", "--json")
        return int(json.loads(done.stdout)["prompt_tokens"])

    def test_a_file_is_the_prompt_or_stands_before_the_question(self, tmp_path: Path) -> None:
        document = tmp_path / "note.txt"
        document.write_bytes(b"The password is swordfish.\r\nKeep it.\r\n")
        text, file = "The password is swordfish.\nKeep it.", ("-f", str(document))
        assert self.count(*file) == self.count(text)
        block = f"note.txt:\n```\n{text}\n```\n\n"
        question = "What is the password?"
        assert self.ids(*file, question) == self.ids(block + question)
        assert self.ids(*file, input=question) == self.ids(block + question)
        assert self.ids(*file, "Really:", "--raw") == self.ids(
            document.read_bytes().decode() + "Really:", "--raw"
        )

    def test_the_system_message(self, tmp_path: Path) -> None:
        briefing = tmp_path / "system.txt"
        briefing.write_text("You are a pirate.\n")
        assert self.ids("Hi", "--system-file", str(briefing)) == self.ids(
            "Hi", "--system", "You are a pirate."
        )
        both = llmgen("run", str(smollm2()), "Hi", "--system", "x", "--system-file", str(briefing))
        assert "--system-file" in refused(both, 2)

    def test_files_that_are_none(self, tmp_path: Path) -> None:
        assert "No such file" in refused(llmgen("run", str(smollm2()), "-f", str(tmp_path / "no"), "Hi"))
        (tmp_path / "latin").write_bytes(b"caf\xe9")
        assert "not UTF-8 text (byte 0xe9 at offset 3)" in refused(
            llmgen("run", str(smollm2()), "-f", str(tmp_path / "latin"), "Hi"), 2
        )


def test_quiet_leaves_errors_only() -> None:
    noisy = ["Once upon a time", "--raw", "-c", "9000", "-n", "2"]
    assert len(llmgen("run", str(smollm2()), *noisy).stderr.splitlines()) == 3
    assert llmgen("run", str(smollm2()), *noisy, "--quiet").stderr == ""
    refused(llmgen("run", str(smollm2()), "Hi", "-q", "-c", "0"), 2)
    assert "--quiet" in refused(llmgen("run", str(smollm2()), "Hi", "-q", "--verbose"), 2)


@posix
class TestTerminal:
    """In a real terminal."""

    def spawn(self, *arguments: str) -> Any:
        import pexpect

        return pexpect.spawn(
            PROGRAM[0],
            [*PROGRAM[1:], "run", str(smollm2()), *arguments],
            env=environment(TERM="xterm-256color"),  # type: ignore[arg-type]
            encoding="utf-8",
            dimensions=(24, 40),
            timeout=HANGS_S,
        )

    def test_the_terminal_is_not_read_and_lines_break_between_words(self) -> None:
        program = self.spawn(*FRANCE)
        text = program.read()
        program.wait()
        assert program.exitstatus == 0
        assert text.split() == f"{run_json(*FRANCE)['text']}\n{CUT}".split()
        program = self.spawn("--raw")
        assert "error: there is no prompt" in program.read()
        program.wait()
        assert program.exitstatus == 2

    def test_without_a_prompt_the_chat_begins(self) -> None:
        program = self.spawn("--system", "You are a pirate.")
        program.expect("/help lists the commands")
        program.expect(r"\x1b\[\?2004h")  # the prompt is there
        program.send("/exit\r")
        program.read()
        program.wait()
        assert program.exitstatus == 0

    def test_ctrl_c(self) -> None:
        program = self.spawn(*ENDLESS)
        program.expect(r"\w+ \w+ \w+")
        program.sendintr()
        rest = program.read()
        program.wait()
        assert program.exitstatus == 130
        assert "Traceback" not in rest
        assert rest.endswith("\n")
