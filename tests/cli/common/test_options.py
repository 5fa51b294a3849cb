"""The sampling flags, which come from SamplingParams, and ``/set``."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from llmgen.cli.common.model_options import EngineOptions, model_options
from llmgen.cli.common.sampling_options import changed, sampling_options
from llmgen.errors import UsageError
from llmgen.model.decode_config import DecodeConfig
from llmgen.sampling.params import SamplingParams, option_table
from program import llmgen, refused

seen: list[Any] = []
app = typer.Typer(rich_markup_mode=None)


@app.command()
@model_options
@sampling_options
def command(name: str, *, engine: EngineOptions, sampling: SamplingParams) -> None:
    """A command with all shared options."""
    seen.append((name, engine, sampling))


def parse(*arguments: str) -> tuple[str, EngineOptions, SamplingParams]:
    """What the command gets."""
    result = CliRunner().invoke(app, ["x", *arguments])
    if isinstance(result.exception, UsageError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return seen.pop()


def test_nothing_given_is_every_default() -> None:
    assert parse() == ("x", EngineOptions(), SamplingParams())
    assert EngineOptions().given() == {}


def test_every_field_has_a_flag_and_help() -> None:
    parameters = inspect.signature(command).parameters
    assert {option.name for option in option_table()} <= set(parameters)
    text = CliRunner().invoke(app, ["--help"]).output
    for option in option_table():
        assert option.flag in text


def test_values_arrive() -> None:
    _, engine, sampling = parse(
        *("-n", "7", "--temp", "0", "--top-k", "3", "--seed", "18446744073709551615", "--ignore-eos"),
        *("--stop", "a", "--stop", "b\n", "--stop-token-ids", "5", "--logit-bias", "12=-1.5"),
        *(
            "--logit-bias",
            "a=b=2",
            "--banned-tokens",
            "9",
            "--banned-tokens",
            "word",
            "--repeat-last-n",
            "-1",
        ),
        *("--samplers", "top_k;temperature", "-c", "128", "-t", "2", "--kv-type", "f32", "--timeout", "1.5"),
    )
    assert engine.given() == {"n_ctx": 128, "n_threads": 2, "kv_type": "f32"}
    assert sampling == SamplingParams(
        max_tokens=7,
        temp=0,
        top_k=3,
        seed=2**64 - 1,
        ignore_eos=True,
        stop=("a", "b\n"),
        stop_token_ids=(5,),
        logit_bias=((12, -1.5), ("a=b", 2.0)),
        banned_tokens=(9, "word"),
        repeat_last_n=-1,
        samplers=("top_k", "temperature"),
        timeout=1.5,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--temp", "-1"], r"temp \(--temp\)"),
        (["--temp", "nan"], "temp"),
        (["--top-p", "1.5"], "top_p"),
        (["--stop", ""], "stop"),
        (["--logit-bias", "5"], "--logit-bias must be TOKEN=BIAS"),
        (["--samplers", "top_z"], "samplers"),
        (["--context-full", "explode"], "context_full"),
    ],
)
def test_values_that_cannot_be(arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(*arguments)


@pytest.mark.parametrize("name", ["run", "chat", "batch"])
def test_the_names_of_other_programs(name: str) -> None:
    import typer.main

    from llmgen.cli.app import app as program

    found = typer.main.get_command(program).commands[name]  # type: ignore[attr-defined]
    words = ["M", "x"] if name != "chat" else ["M"]
    context = found.make_context(
        name,
        [
            *words,
            *("--temperature", "0.5", "--num-predict=7", "--num_ctx", "64", "--repetition-penalty", "1.5"),
            *("--stop-sequences", "--temperature", "--stop", "b", "--top_k", "3"),
        ],
    )
    values = context.params
    assert (values["temp"], values["max_tokens"], values["n_ctx"], values["top_k"]) == (0.5, 7, 64, 3)
    assert (values["repeat_penalty"], list(values["stop"])) == (1.5, ["--temperature", "b"])


def test_a_command_knows_other_names_of_its_own_options_only() -> None:
    assert "--temperature" in refused(llmgen("perplexity", "M", "F", "--temperature", "1"), code=2)
    assert "No such file" in refused(llmgen("perplexity", "M", "F", "--num-ctx", "64"))


def test_set() -> None:
    params = SamplingParams(temp=0.5)
    assert changed(params, "temp", "0.2").temp == 0.2
    assert changed(params, "--top-k", "5").top_k == 5
    assert changed(params, "seed", "9").seed == 9
    assert changed(params, "ignore_eos", "on").ignore_eos
    assert changed(params, "stop", "###").stop == ("###",)
    assert changed(params, "logit-bias", "3=1").logit_bias == ((3, 1.0),)
    assert changed(params, "temperature", "0.3").temp == 0.3
    assert changed(params, "stop_token_ids", "2, 7 9").stop_token_ids == (2, 7, 9)
    assert changed(params, "samplers", "top_k").samplers == ("top_k",)


def test_buckets_of_context_lengths() -> None:
    _, engine, _ = parse("--decode-buckets", "100,4000")
    assert engine.decode_plan == DecodeConfig(buckets=(100, 4000))
    for wrong in ("", "5,", "a", "5;6", "2,1"):
        with pytest.raises(UsageError, match="--decode-buckets"):
            parse("--decode-buckets", wrong)


def test_an_empty_decode_plan_is_none_of_the_plans() -> None:
    with pytest.raises(UsageError, match="the decode plan is '', expected"):
        parse("--decode-plan", "")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("tmp", "1", "did you mean temp"),
        ("num_ctx", "1", "num_ctx is chosen when a model is opened \\(--ctx\\)"),
        ("num_thread", "1", "\\(--threads\\)"),
        ("kv_type", "f32", "\\(--kv-type\\)"),
        ("draft-max", "2", "chosen when a model is opened \\(--draft-max\\)"),
        ("decode_q_chunk", "2", "\\(--decode-q-chunk\\)"),
        ("kv-budget", "2", "\\(--kv-budget\\)"),
        ("temperatur", "1", "did you mean temp\\?"),
        ("colour", "1", "/show lists them"),
        ("stop_token_ids", "two", "must be a whole number, not 'two'"),
        ("temp", "", "must be a number"),
        ("temp", "warm", "must be a number"),
        ("top_k", "1.5", "whole number"),
        ("ignore_eos", "maybe", "on or off"),
        ("top_p", "7", "top_p"),
    ],
)
def test_set_what_cannot_be(name: str, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        changed(SamplingParams(), name, text)
