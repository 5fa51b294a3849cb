"""``llmgen batch`` as a user sees it: order, bad lines, interruptions, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import smollm2
from program import HANGS_S, PROGRAM, environment, llmgen, refused, signalled

pytestmark = pytest.mark.usefixtures("compiled")
GREEDY = ["--raw", "--temp", "0", "-n", "8", "-c", "512"]


def write(path: Path, *items: Any) -> Path:
    path.write_text("".join(item if isinstance(item, str) else json.dumps(item) + "\n" for item in items))
    return path


def batch(source: Path, *arguments: str, **kw: Any) -> subprocess.CompletedProcess[str]:
    return llmgen("batch", str(smollm2()), str(source), *GREEDY, *arguments, **kw)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_out_for_each_line_in_and_bad_ones_have_an_error(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in.jsonl",
        '"The capital of France is"\n',
        "\n",
        {"prompt": [504, 3575, 282, 4649, 314], "id": "ids", "max_tokens": 3},
        "{not json}\n",
        {"prompt": "Hello", "tmp": 1},
        {"prompt": "x " * 1000, "id": 5},
        {"messages": [{"role": "user", "content": "Hi"}], "min-p": 0.1},
        {"id": 1},
        '{"prompt": "Hello", "temp": "hot"}\n',
        '{"prompt": "Hello", "prompt": "Bye"}\n',
        {"prompt": "Hello", "min_p": 0.1, "min-p": 0.2},
        '{"prompt": "Hello", "id": ' + "[" * 500 + "]" * 500 + "}\n",
        {"messages": []},
        {"messages": [{"role": "user", "content": 5}]},
        {"prompt": [10**9]},
        '{"prompt": [' + "9" * 5000 + "]}\n",
        {"prompt": ""},
        {"prompt": "Hello", "temprature": 1},
        '{"prompt": "Hello", "id": [1e999]}\n',
        '{"prompt": "Hello", "temp": NaN}\n',
    )
    done = batch(source)
    assert done.returncode == 1
    found = lines(done.stdout)
    assert [line["line"] for line in found] == [1, 3, 4, 5, 6, 7, 8, 9, *range(10, 21)]
    alone = llmgen("run", str(smollm2()), "The capital of France is", *GREEDY)
    assert found[0]["text"] + "\n" == alone.stdout
    assert (found[1]["id"], found[1]["completion_tokens"]) == ("ids", 3)
    assert found[1]["token_ids"] == found[0]["token_ids"][:3]
    errors = {line["line"]: line["error"] for line in found if "error" in line}
    assert set(errors) == {4, 5, 6, 8, 9, *range(10, 21)}
    assert "did you mean temp" in errors[5]
    assert "did you mean" in errors[18]
    assert all("twice" in errors[number] for number in (10, 11))
    assert "nested too deeply" in errors[12]
    assert "tokens go from 0 to" in errors[15]
    assert "context" in errors[6]
    assert "cannot hold" in errors[19]
    assert found[4]["id"] == 5
    told = done.stderr.splitlines()
    assert len(told) == len(errors) + 2
    assert "3 of 3 answers were cut at the limit" in told[-2]
    assert "19 answers (16 failed)" in told[-1]


def test_stats_add_up_the_answers_of_this_run(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in.jsonl", {"prompt": "Hello"}, {"prompt": "Good night", "max_tokens": 3}, "{bad}\n"
    )
    told = batch(source, "--stats").stderr.splitlines()
    assert told[-5].startswith("3 answers (1 failed), 11 tokens in ")
    assert re.fullmatch(r"prompts: 3 tokens, 0 of them cached, 3 new", told[-4])
    assert re.fullmatch(r"median of the answers: [\d.]+ tokens/s, first token after [\d.]+ s", told[-3])
    assert told[-2:] == ["KV cache: f16, 23,040 bytes a token", "ended: 2 length (max_tokens)"]
    assert "median" not in batch(source).stderr


@pytest.mark.parametrize("template", [[], ["--raw"]])
def test_a_timeout_has_its_exit_code_with_a_template_and_without(tmp_path: Path, template: list[str]) -> None:
    source = write(tmp_path / "in.jsonl", {"prompt": "Hello"})
    done = llmgen("batch", str(smollm2()), str(source), "--timeout", "0", *template)
    assert done.returncode == 124
    assert len(lines(done.stdout)) == 1


def test_numbers_of_hundreds_of_digits_are_the_trouble_of_their_line(tmp_path: Path) -> None:
    number = 10**400
    options = ("max_tokens", "seed", "temp", "timeout", "stop_token_ids", "banned_tokens")
    bad: list[dict[str, Any]] = [{"prompt": "Hi", name: number} for name in options]
    bad += [{"prompt": [number]}, {"prompt": "Hi", "logit_bias": [[number, 1]]}]
    source = write(tmp_path / "in.jsonl", {"prompt": "Hello", "id": number}, *bad, {"prompt": "Bye"})
    done = batch(source)
    assert done.returncode == 1
    found = lines(done.stdout)
    assert ["error" in line for line in found] == [False, *[True] * len(bad), False]
    assert found[0]["id"] == number
    assert all(len(line["error"]) < 600 for line in found[1:-1])


def test_an_interrupted_batch_goes_on_without_loss_or_repetition(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("POSIX signals")
    prompts: list[dict[str, Any]] = [{"prompt": f"Story number {i}:"} for i in range(12)]
    source, out = write(tmp_path / "in.jsonl", *prompts), tmp_path / "out.jsonl"
    part = tmp_path / "out.jsonl.part"
    arguments = [str(source), "-o", str(out), *GREEDY, "--slots", "2", "--ignore-eos"]
    stopped = subprocess.run(
        [*signalled("llmgen.cli.batch.journal:Journal.add", 3), "batch", str(smollm2()), *arguments],
        capture_output=True,
        env=environment(),
        text=True,
    )
    assert stopped.returncode == 130
    assert "the same command goes on" in stopped.stderr
    assert not out.exists()
    kept = part.read_bytes().count(b"\n") - 1
    assert 3 <= kept < 12
    again = llmgen("batch", str(smollm2()), *arguments)
    assert again.returncode == 0, again.stderr
    assert not part.exists()
    found = lines(out.read_text())
    assert [line["line"] for line in found] == list(range(1, 13))
    whole = llmgen("batch", str(smollm2()), str(source), *GREEDY, "--ignore-eos")
    assert [line["token_ids"] for line in lines(whole.stdout)] == [line["token_ids"] for line in found]
    assert "exists" in refused(llmgen("batch", str(smollm2()), *arguments), 2)


def test_usage_and_files(tmp_path: Path) -> None:
    absent = tmp_path / "absent.jsonl"
    assert str(absent) in refused(batch(absent))
    source = write(tmp_path / "in.jsonl", '"a"\n')
    assert "--output" in refused(batch(source, "--restart"), 2)
    nowhere = tmp_path / "no" / "folder.jsonl"
    assert "folder" in refused(batch(source, "-o", str(nowhere)))
    slow = batch(source, "--timeout", "0.0001", "--ignore-eos")
    assert slow.returncode == 124
    assert lines(slow.stdout)[0]["finish_reason"] == "timeout"
    assert "is a folder" in refused(batch(source, "-o", str(tmp_path)), 2)
    assert "is the input" in refused(batch(source, "-o", str(source), "--overwrite"), 2)
    part = write(tmp_path / "in.part", '"a"\n')
    for options in ([], ["--restart"]):
        assert "is the input" in refused(batch(part, "-o", str(tmp_path / "in"), *options), 2)
    assert part.read_text() == '"a"\n'
    if os.name != "nt":
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        assert "leads nowhere" in refused(batch(source, "-o", str(tmp_path / "loop")), 2)
    assert "--raw leaves out" in refused(batch(source, "--template", "plain"), 2)


def test_stdin_pipes_and_devices(tmp_path: Path) -> None:
    text = '"One"\n"Two"\n'
    piped = llmgen("batch", str(smollm2()), "-", *GREEDY, "-o", "-", input=text)
    assert piped.returncode == 0, piped.stderr
    assert [line["line"] for line in lines(piped.stdout)] == [1, 2]
    source = write(tmp_path / "in.jsonl", text)
    into = batch(source, "-o", os.devnull)
    assert (into.returncode, into.stdout) == (0, "")
    assert not Path(os.devnull).is_file()
    assert refused(batch(source, "-o", os.devnull, "--overwrite"), 2)
    nothing = llmgen("batch", str(smollm2()), "-", *GREEDY)
    assert (nothing.returncode, nothing.stdout) == (0, "")


def test_text_that_is_not_utf_8_is_a_bad_line(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(
        b'{"prompt": "\xff"}\n{"prompt": "\xed\xa0\x80"}\n' + '"a"'.encode("utf-16-le") + b"\n"
    )
    found = lines(batch(source).stdout)
    assert ["error" in line for line in found] == [True] * 3


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_is_heard_among_bad_lines(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", "{bad\n" * 300_000)
    child = subprocess.Popen(
        [*PROGRAM, "batch", str(smollm2()), str(source), "-o", str(tmp_path / "out.jsonl"), *GREEDY],
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert child.stderr is not None
    assert "not JSON" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=HANGS_S)
    assert child.returncode == 130
    assert "of 300000 answers" in errors.splitlines()[-1]


def test_a_template_of_the_users_and_a_system_message_that_it_refuses(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )
    source = write(tmp_path / "in.jsonl", '"One"\n', '"Two"\n', {"prompt": [504, 3575], "max_tokens": 1})
    options = ["--temp", "0", "-n", "4", "-c", "512", "--system", "Be brief.", "--template", str(template)]
    done = llmgen("batch", str(smollm2()), str(source), *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no system role") == 1
    told, answer = llmgen("run", str(smollm2()), "Two", *options, "--json"), lines(done.stdout)[1]
    assert "no system role" in told.stderr
    assert json.loads(told.stdout)["token_ids"] == answer["token_ids"]
    assert json.loads(told.stdout)["prompt_tokens"] == answer["prompt_tokens"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals and limits")
def test_a_full_disk_and_a_killed_program_lose_no_answer(tmp_path: Path) -> None:
    import resource

    prompts: list[dict[str, Any]] = [{"prompt": f"Story {i}:", "seed": i} for i in range(8)]
    source, out = write(tmp_path / "in.jsonl", "{bad}\n", *prompts), tmp_path / "out.jsonl"
    arguments = ["batch", str(smollm2()), str(source), "-o", str(out), "--raw", "-n", "4", "-c", "512"]

    def run(program: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        command = [*program, *arguments, "--slots", "2"]
        return subprocess.run(command, capture_output=True, env=environment(), text=True, **options)

    full = run(PROGRAM, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)))
    assert full.returncode == 1
    assert "the same command goes on from there" in full.stderr
    assert full.stderr.splitlines()[-1].startswith("error: ")
    part = tmp_path / "out.jsonl.part"
    kept = part.read_bytes().count(b"\n")
    assert 1 < kept < 10
    killed = run(signalled("llmgen.cli.batch.journal:Journal.add", 2, signal.SIGKILL))
    assert killed.returncode == -signal.SIGKILL
    assert part.read_bytes().count(b"\n") == kept + 2
    again = run(PROGRAM)
    assert again.returncode == 1, again.stderr  # the bad line counts in every run
    assert "(1 failed)" in again.stderr
    found = lines(out.read_text())
    assert [line["line"] for line in found] == list(range(1, 10))
    whole = llmgen("batch", str(smollm2()), str(source), "--raw", "-n", "4", "-c", "512")
    assert [line.get("token_ids") for line in lines(whole.stdout)] == [
        line.get("token_ids") for line in found
    ]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_shows_what_there_is(tmp_path: Path) -> None:
    """Also answers that wait for one before them, and those at work."""
    source = write(
        tmp_path / "in.jsonl",
        {"prompt": "A story without an end:", "max_tokens": 10**9, "context_full": "shift"},
        *({"prompt": f"Story {i}:", "max_tokens": 2} for i in range(3)),
    )
    child = subprocess.Popen(
        [*PROGRAM, "batch", str(smollm2()), str(source), "--raw", "-c", "4096", "--ignore-eos", "--verbose"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert child.stderr is not None
    seen = 0
    for line in child.stderr:
        seen += "answer of 2 tokens ended" in line
        if seen == 3:
            break
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate(timeout=HANGS_S)
    assert child.returncode == 130
    found = lines(out)
    assert [line["line"] for line in found] == [1, 2, 3, 4]
    assert [line["finish_reason"] for line in found] == ["interrupted", "length", "length", "length"]
    assert "interrupted after 3 of 4" in errors
