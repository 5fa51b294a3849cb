"""``--draft`` and ``--lookup`` on the command line."""

from __future__ import annotations

import json

import pytest

from models import gemma3, smollm2
from program import llmgen, refused

pytestmark = pytest.mark.usefixtures("compiled")
SAY_AGAIN = ["one two three four five six seven one two three four five", "--raw", "--temp", "0", "-n", "24"]


def test_the_text_is_the_same_and_the_figures_are_told() -> None:
    plain = llmgen("run", str(smollm2()), *SAY_AGAIN)
    guessed = llmgen("run", str(smollm2()), *SAY_AGAIN, "--lookup", "--stats")
    assert guessed.stdout == plain.stdout
    assert "guesses: " in guessed.stderr
    assert " tokens a step" in guessed.stderr
    assert "guesses" not in plain.stderr
    short = llmgen("run", str(smollm2()), *SAY_AGAIN[:-1], "3", "--lookup", "--stats")
    assert "guesses: none (the first steps show what a step takes without guesses)" in short.stderr
    done = llmgen("run", str(smollm2()), *SAY_AGAIN, "--draft", str(smollm2()), "--json")
    told = json.loads(done.stdout)
    assert told["text"] + "\n" == plain.stdout
    # a draft as large as the model cannot pay, and may never be asked; what it guesses is right
    assert told["speculation"]["acceptance_rate"] in (None, 1)


def test_batch_and_chat(tmp_path) -> None:  # type: ignore[no-untyped-def]
    lines = "".join(json.dumps({"prompt": f"{n} two three {n} two", "seed": n}) + "\n" for n in range(3))
    arguments = ["--raw", "-n", "12"]
    plain = llmgen("batch", str(smollm2()), "-", *arguments, input=lines)
    guessed = llmgen("batch", str(smollm2()), "-", *arguments, "--lookup", input=lines)
    answers = [[json.loads(line) for line in done.stdout.splitlines()] for done in (plain, guessed)]
    assert [a["token_ids"] for a in answers[0]] == [a["token_ids"] for a in answers[1]]
    assert all("speculation" in answer for answer in answers[1])
    talk = ["chat", str(smollm2()), "--temp", "0", "-n", "20", "--no-save"]
    said = "Say: one two one two\n/stats\n"
    plain, guessed = llmgen(*talk, input=said), llmgen(*talk, "--lookup", input=said)
    assert guessed.stdout == plain.stdout
    assert "guesses: " in guessed.stderr


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--draft-max", "3"], "--draft-max belongs to guessing"),
        (["--draft-method", "reject"], "--draft-method belongs to guessing"),
        (["--lookup", "--draft-max", "9"], "k_max (--draft-max) must be a whole number from 1 to 8"),
        (["--lookup", "--draft-max", "0"], "k_max (--draft-max) must be a whole number from 1 to 8, not 0"),
        (["--lookup", "--draft-min-acceptance", "2"], "min_acceptance (--draft-min-acceptance) must be"),
        (["--lookup", "--draft-method", "x"], "method (--draft-method) must be coupled or reject, not 'x'"),
        (["--draft", ""], "the model's name is empty"),
        (["--lookup", "--beams", "2"], "--draft and --lookup do not go with a beam search"),
    ],
)
def test_what_is_of_no_use_is_wrong_usage(arguments: list[str], found: str) -> None:
    assert found in refused(llmgen("run", str(smollm2()), "hi", *arguments), 2)


def test_another_vocabulary_is_refused_with_the_first_difference() -> None:
    error = refused(llmgen("run", str(smollm2()), "hi", "--draft", str(gemma3())), 2)
    assert "another vocabulary: its tokenizer is 'llama', the model's 'gpt2'" in error
    assert "nowhere.gguf" in refused(llmgen("run", str(smollm2()), "hi", "--draft", "nowhere.gguf"))
