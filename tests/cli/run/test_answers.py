"""``llmgen run`` with several answers, prompt cache files, a log; errors in the middle."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import smollm2
from program import environment, llmgen, refused

pytestmark = pytest.mark.usefixtures("compiled")
STORY = ["Once upon a time", "--raw", "-n", "8", "-c", "512"]


def run(*arguments: str, **kw: Any) -> subprocess.CompletedProcess[str]:
    return llmgen("run", str(smollm2()), *arguments, **kw)


def run_json(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_samples_are_the_answers_of_consecutive_seeds() -> None:
    told = run_json(*STORY, "--seed", "5", "--samples", "3")
    assert [sample["seed"] for sample in told["samples"]] == [5, 6, 7]
    assert told["text"] == told["samples"][0]["text"]
    alone = run_json(*STORY, "--seed", "6")
    assert told["samples"][1]["token_ids"] == alone["token_ids"]
    text = run(*STORY, "--seed", "5", "--samples", "3")
    assert text.stdout == "---\n".join(sample["text"] + "\n" for sample in told["samples"])
    assert text.stderr == "3 of 3 answers were cut at the limit of tokens (-n; -1 sets none)\n"


def test_beams() -> None:
    told = run_json(*STORY, "--beams", "3", "--logprobs", "2")
    scores = [beam["score"] for beam in told["beams"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    best = told["beams"][0]
    assert told["token_ids"] == best["token_ids"]
    assert best["score"] == pytest.approx(best["logprob"] / 8)
    assert sum(token["logprob"] for token in best["logprobs"]) == pytest.approx(best["logprob"], abs=1e-4)
    # not compared with greedy's: a search may drop the hypothesis that would have been better in the end
    greedy = run_json(*STORY, "--temp", "0")
    one = run(*STORY, "--beams", "1")
    assert one.stdout == greedy["text"] + "\n"


def test_stats_are_those_of_all_samples_and_of_the_best_beam() -> None:
    samples = run(*STORY, "--samples", "3", "--stats").stderr
    assert re.search(r"^3 answers, 24 tokens in .* tokens/s$", samples, re.MULTILINE)
    assert "ended: 3 length (max_tokens)" in samples
    beams = run(*STORY, "--beams", "2", "--stats").stderr
    assert re.search(r"^answer: 8 tokens in .* tokens/s$", beams, re.MULTILINE)
    assert "ended: length (max_tokens)" in beams


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    for arguments, named in (
        (["--beams", "2", "--samples", "2"], "--samples"),
        (["--length-penalty", "2"], "--length-penalty"),
        (["--early-stopping"], "--early-stopping"),
        (["--samples", "2", "--prompt-cache", str(tmp_path / "x")], "--prompt-cache"),
        (["--beams", "2", "--context-full", "shift"], "--context-full"),
    ):
        assert named in refused(run(*STORY, *arguments), 2)


def test_prompt_cache_files(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    plain = run_json(*STORY, "--temp", "0")
    with_file = [*STORY, "--temp", "0", "--prompt-cache", str(cache)]
    first, second = run_json(*with_file), run_json(*with_file)
    assert first["token_ids"] == second["token_ids"] == plain["token_ids"]
    assert first["timings"]["cached_tokens"] == 0
    assert second["timings"]["cached_tokens"] == first["prompt_tokens"] - 1
    longer = ["Once upon a time there was", *with_file[1:]]
    assert run_json(*longer)["timings"]["cached_tokens"] == first["prompt_tokens"]
    other = run(*with_file, "--kv-type", "f32")  # whose kernels may have to be compiled, which is told
    assert other.returncode == 1
    assert "KV type" in other.stderr.splitlines()[-1]
    cache.write_bytes(cache.read_bytes()[:-1])
    assert "damaged" in refused(run(*with_file))
    cache.write_text("my notes")
    assert "not a prompt cache" in refused(run(*with_file))
    assert cache.read_text() == "my notes"
    # a place that cannot be written is refused before anything is computed
    places = [tmp_path / "no" / "folder", tmp_path / ("x" * 300)]
    if os.name != "nt":
        for name, leads_to in (("dangling", "no/folder"), ("loop", "loop")):
            (tmp_path / name).symlink_to(tmp_path / leads_to)
            places.append(tmp_path / name)
    for place in places:
        assert "cannot write" in refused(run(*STORY, "--temp", "0", "--prompt-cache", str(place)))


def test_an_empty_file_is_as_good_as_no_prompt_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.touch()
    runs = [run_json(*STORY, "--temp", "0", "--prompt-cache", str(cache)) for _ in range(2)]
    assert [found["timings"]["cached_tokens"] > 0 for found in runs] == [False, True]


@pytest.mark.skipif(
    os.name == "nt" or os.geteuid() == 0, reason="needs a folder that this user may not write"
)
def test_a_prompt_cache_that_may_only_be_read_serves_its_own_prompt(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    arguments = [*STORY, "--temp", "0", "--prompt-cache", str(cache)]
    run_json(*arguments)
    tmp_path.chmod(0o555)
    try:
        assert run_json(*arguments)["timings"]["cached_tokens"] > 0
        assert "cannot be written" in refused(run("Another one", *arguments[1:]))
    finally:
        tmp_path.chmod(0o755)


def test_verbose_and_options_in_effect(tmp_path: Path) -> None:
    done = run(*STORY, "--temp", "0", "--verbose")
    assert done.stdout == run(*STORY, "--temp", "0").stdout
    assert " s  loaded " in done.stderr
    assert "answer of 8 tokens ended" in done.stderr
    config = tmp_path / "options.toml"
    config.write_text('temp = 0\nprompt = "Once upon a time"\n[run]\nraw = true\n')
    told = run("-n", "8", "-c", "512", "--config", str(config))
    assert told.stdout == done.stdout
    shown = run("--config", str(config), "--print-config")
    assert str(config) in shown.stdout
    config.write_text("tmep = 0\n")
    assert "did you mean temp" in refused(run("x", "--config", str(config)), 2)


BREAKS = """
import sys
from llmgen.backends.cpu.model import Model
forward, calls = Model.forward, []
def failing(self, parts, role, *args):
    calls.extend([role] * (role == "generated"))
    if len(calls) == 4:
        raise {error}
    return forward(self, parts, role, *args)
Model.forward = failing
from llmgen.cli import main
main()
"""


ERRORS = ["MemoryError", "OSError(28, 'No space left on device')"]


def breaking(error: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``llmgen run`` whose fourth step raises that."""
    return subprocess.run(
        [sys.executable, "-c", BREAKS.format(error=error), "run", str(smollm2()), *STORY, *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )


def broken(error: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same with an error, which is told in one line."""
    done = breaking(error, *arguments)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "memory" in line or "No space left" in line
    return done


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_in_the_middle_keeps_what_there_is(error: str) -> None:
    whole = run(*STORY, "--temp", "0").stdout
    for arguments in ([], ["--json"]):
        done = broken(error, "--temp", "0", *arguments)
        text = json.loads(done.stdout)["text"] + "\n" if arguments else done.stdout
        assert 1 < len(text) < len(whole)
        assert whole.startswith(text.rstrip("\n"))


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("several", ["--samples", "--beams"])
def test_an_error_in_the_middle_keeps_several_answers(error: str, several: str) -> None:
    done = broken(error, several, "2", "--seed", "1", "--json")
    answers = json.loads(done.stdout)[several.removeprefix("--")]
    assert [len(answer["token_ids"]) for answer in answers] == [4, 4]
    assert {answer["finish_detail"] for answer in answers} == {"error"}


@pytest.mark.parametrize("several", ["--samples", "--beams"])
def test_ctrl_c_keeps_several_answers(several: str) -> None:
    done = breaking("KeyboardInterrupt", several, "2", "--seed", "1", "--json")
    assert (done.returncode, done.stderr) == (130, "")
    answers = json.loads(done.stdout)[several.removeprefix("--")]
    assert [len(answer["token_ids"]) for answer in answers] == [4, 4]
    assert {answer["finish_detail"] for answer in answers} == {"keyboard"}
    assert breaking("KeyboardInterrupt", several, "2", "--seed", "1").stdout.endswith("\n")
