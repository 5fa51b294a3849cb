"""Options from files: which wins, what is refused, what --print-config shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from llmgen.cli.common.config import configurable, read_file, user_file
from llmgen.cli.common.model_options import EngineOptions, model_options
from llmgen.cli.common.sampling_options import sampling_options
from llmgen.errors import UsageError
from llmgen.sampling.params import SamplingParams

seen: list[Any] = []
app = typer.Typer(rich_markup_mode=None)


@app.command("run")
@configurable
@model_options
@sampling_options
def command(
    name: str,
    raw: bool = typer.Option(False, "--raw"),
    *,
    engine: EngineOptions,
    sampling: SamplingParams,
) -> None:
    """A command with all shared options."""
    seen.append((name, raw, engine, sampling))


@app.command("bench")
@configurable
def bench(depth: str = typer.Option("0", "-d", "--depth")) -> None:
    """Another command."""
    seen.append(depth)


@pytest.fixture(autouse=True)
def _no_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGEN_CONFIG", "")
    monkeypatch.delenv("LLMGEN_THREADS", raising=False)


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return seen.pop() if seen else result.output


TOML = """
temp = 0.25
"max-tokens" = 7
[run]
raw = true
stop = ["a", "b"]
logit_bias = { 5 = -1.5, "a=b" = 2 }
samplers = "top_k;temperature"
threads = 3
[bench]
depth = "0,16"
"""


def test_values_of_every_kind_arrive(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(TOML.replace("temp = 0.25", "").replace('"max-tokens" = 7', ""))
    _, raw, engine, sampling = run("run", "x", "--config", str(path))
    assert raw is True
    assert engine == EngineOptions(n_threads=3)
    assert sampling == SamplingParams(
        stop=("a", "b"), logit_bias={5: -1.5, "a=b": 2}, samplers=("top_k", "temperature")
    )
    assert run("bench", "--config", str(path)) == "0,16"
    path.write_text("temperature = 0.5\n[run]\nnum_ctx = 64\n")
    _, _, engine, sampling = run("run", "x", "--config", str(path))
    assert (engine.n_ctx, sampling.temp) == (64, 0.5)


def test_what_is_typed_wins_then_the_environment_then_the_file_then_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, default = tmp_path / "a.yaml", tmp_path / "config.toml"
    path.write_text("temp: 0.5\nthreads: 4\nstop: x\ntop-k: null\n")
    default.write_text('temp = 0.1\ntop-p = 0.5\nstop = ["y"]\ndepth = "7"\n')
    monkeypatch.setenv("LLMGEN_CONFIG", str(default))
    monkeypatch.setenv("LLMGEN_THREADS", "2")
    _, _, engine, sampling = run("run", "x", "--config", str(path), "--stop", "z")
    assert (sampling.temp, sampling.top_p, sampling.stop, engine.n_threads) == (0.5, 0.5, ("z",), 2)
    assert sampling.top_k == 40
    assert run("run", "x")[3].temp == 0.1
    assert run("bench") == "7"


def test_print_config_shows_values_and_sources_as_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tomllib

    path = tmp_path / "a.toml"
    path.write_text('temp = 0.5\nstop = ["a\\nb"]\n')
    monkeypatch.setenv("LLMGEN_THREADS", "2")
    text = run("run", "x", "--config", str(path), "--top-k", "3", "--print-config")
    assert not seen
    values = tomllib.loads(text)
    assert values == {"name": "x", "temp": 0.5, "stop": ["a\nb"], "top-k": 3, "threads": 2}
    lines = {line.split(" =")[0]: line for line in text.splitlines()}
    assert str(path) in lines["temp"]
    assert "command line" in lines["top-k"]
    assert "$LLMGEN_THREADS" in lines["threads"]
    assert lines["# top-p"].split() == ["#", "top-p", "=", "0.95", "#", "default"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.toml", "tmep = 1", "did you mean temp"),
        ("a.toml", "qqqqqq = 1", "--help"),
        ("a.yaml", "[1, 2]", "names and values"),
        ("a.yaml", "a: 1\na: 2", "there twice"),
        ("a.yaml", "\n".join(f"k{i}: 1" for i in range(5000)), "k0 is not an option"),
        ("a.yaml", "? [temp]\n: 2", "must be a text"),
        ("a.yaml", "\n".join(f"k{i}: 1" for i in range(60_000)), "more than 20000 names"),
        ("a.yaml", "a: [", "cannot be read"),
        ("a.yaml", "1: 2", "names and values"),
        ("a.yaml", "!!python/object:os.system x", "cannot be read"),
        ("a.toml", "x", "cannot be read"),
        ("a.txt", "temp: 1", "must end in"),
        ("a.yaml", "max-tokens: 1.5", "max-tokens: "),
        ("a.yaml", "max-tokens: true", "takes a value"),
        ("a.yaml", "raw: 1", "true or false"),
        ("a.yaml", "temp: [1, 2]", "one value"),
        ("a.yaml", "stop: [[1]]", "a list of them"),
        ("a.yaml", "temp: hot", "temp: "),
        ("a.yaml", "temp: -1", "--temp"),
        ("a.yaml", "temp: 1\ntemperature: 2", "temp and temperature are the same option"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match=expected):
        run("run", "x", "--config", str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(UsageError):
            read_file(path)
    (tmp_path / "a.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        read_file(tmp_path / "a.toml")
    (tmp_path / "deep.yaml").write_text("[" * 5000)
    with pytest.raises(UsageError, match="cannot be read"):
        read_file(tmp_path / "deep.yaml")


@pytest.mark.skipif(os.name == "nt", reason="the folder is named otherwise")
def test_the_users_defaults_are_in_the_config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMGEN_CONFIG")
    monkeypatch.setattr("platformdirs.user_config_dir", lambda *_, **__: str(tmp_path))
    assert user_file() is None
    (tmp_path / "config.yaml").write_text("temp: 0")
    assert user_file() == tmp_path / "config.yaml"
    assert run("run", "x")[3].temp == 0


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs an endless file")
def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="has more than 1048576 bytes"):
        read_file(tmp_path / "endless.toml")
