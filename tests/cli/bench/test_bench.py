"""``llmgen bench`` and ``llmgen warmup``: that they measure and report, not how fast."""

from __future__ import annotations

import csv
import io
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.main import get_command

import tiny
from archs import build_arch, build_changed
from llmgen.cli.app import app
from llmgen.cli.bench import measure as benchmark
from llmgen.cli.bench import plot as bench_plot
from llmgen.cli.bench.measure import CacheShares, read_bandwidth, weight_bytes_per_token
from llmgen.cli.common.summary import quant_mix, quantization_name
from llmgen.errors import LLMGenError
from llmgen.gguf import GGUFFile
from models import gemma3, smollm2
from program import HANGS_S, PROGRAM, environment, llmgen, refused

pytestmark = pytest.mark.usefixtures("compiled")
DETAILS = {"first_token_s", "prompt_tokens", "sampler_share", "speedup", "cached_step_s", "recomputed_step_s"}
SMALL = ["-p", "16", "-n", "3", "-r", "2"]


def test_json_has_what_was_asked_for_and_nothing_else() -> None:
    done = llmgen("bench", str(smollm2()), *SMALL, "-d", "0,32", "-t", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["complete"] is True
    assert {"version", "cpu", "kernel_level"} <= set(report)
    [run] = report["runs"]
    assert run["model"] == "smollm2.gguf"
    assert (run["size"], run["parameters"]) == (98362432, 134515008)
    assert (run["quantization"], run["kv_type"], run["threads"]) == ("Q4_1", "f16", 1)
    assert run["kv_bytes_per_token"] == 23040
    assert run["read_gb_per_s"] > 0
    assert not DETAILS & set(run)
    assert [(test["test"], test["depth"]) for test in run["tests"]] == [
        *(("pp16", 0), ("tg3", 0)),
        *(("pp16", 32), ("tg3", 32)),
    ]
    for test in run["tests"]:
        assert test["repetitions"] == len(test["samples"]) == 2
        assert min(test["samples"]) <= test["tokens_per_s"] <= max(test["samples"])
    assert run["tests"][0]["weight_gb_per_s"] is None
    assert run["tests"][1]["share_of_read"] == pytest.approx(
        run["tests"][1]["weight_gb_per_s"] / run["read_gb_per_s"]
    )
    assert [test["kv_store_share"] is None for test in run["tests"]] == [True, False, True, False]
    for test in run["tests"][1::2]:
        assert 0 < test["kv_store_share"] < 0.2
        assert 0 < test["kv_read_share"] < 1


def test_details_are_measured_on_request() -> None:
    done = llmgen("bench", str(smollm2()), "-p", "16", "-n", "0", "-r", "1", "--details", "--json")
    [run] = json.loads(done.stdout)["runs"]
    assert set(run) >= DETAILS
    assert 0 < run["sampler_share"] < 1
    assert run["prompt_tokens"] == 16
    assert run["read_gb_per_s"] is None  # no test is compared with it


def test_csv_without_the_cache() -> None:
    done = llmgen("bench", str(smollm2()), "-p", "0", "-n", "3", "-r", "1", "--csv", "--no-kv-cache")
    [row] = csv.DictReader(io.StringIO(done.stdout))
    assert (row["test"], row["kv_cache"]) == ("tg3", "false")
    assert float(row["tokens_per_s"]) > 0
    assert row["spread"] == row["weight_gb_per_s"] == ""


def test_table_of_prompts_alone() -> None:
    done = llmgen("bench", str(smollm2()), "-p", "30,20,30", "-n", "0", "-r", "1", "-d", "0,5")
    assert done.returncode == 0, done.stderr
    title, header, *rows = done.stdout.splitlines()
    assert title.endswith(")")
    assert header.split() == ["model", "size", "params", "quantization", "threads", "test", "tokens/s"]
    found = [row.split("  ") for row in rows]
    names = [next(cell for cell in row if cell.startswith("pp")) for row in found]
    assert names == ["pp30", "pp20", "pp30 @ d5", "pp20 @ d5"]
    assert "±" not in done.stdout


@pytest.fixture(scope="module")
def two_tiny_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tiny")
    return str(tiny.write(folder / "a|b.gguf")), str(tiny.write(folder / "it's.gguf", kind="q8_0"))


def test_several_models_as_markdown(two_tiny_models: tuple[str, str]) -> None:
    done = llmgen("bench", *two_tiny_models, "-p", "4", "-n", "2,3", "-r", "2", "-t", "1", "--format", "md")
    assert done.returncode == 0, done.stderr
    header, border, *rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in header.strip("|").split("|")][-6:] == [
        *("tokens/s", "±", "GB/s", "of read"),
        *("KV store", "KV read"),
    ]
    assert set(border) == set("|-: ")
    assert [row.split(" | ")[0] for row in rows] == ["| a\\|b.gguf"] * 3 + ["| it's.gguf"] * 3
    assert [row.split(" | ")[3] for row in rows] == ["F32"] * 3 + ["Q8_0, F32"] * 3
    assert [row.split(" | ")[5] for row in rows] == ["pp4", "tg2", "tg3"] * 2


def test_the_cache_takes_what_its_kernels_take() -> None:
    seconds = {"cache:rows_f16_q8_0": 1.0, "cache:keys_f16": 1.0, "attention:combine": 2.0, "latent:x": 3.0}
    shares = CacheShares.of({**seconds, "indexer:choose": 1.0, "quants.matvec:q8_0": 12.0})
    assert (shares.store, shares.read) == (0.1, 0.3)


def test_a_kind_of_cache_is_chosen_by_measuring(two_tiny_models: tuple[str, str], tmp_path: Path) -> None:
    # of all candidates, only 4 bits fit
    auto = ["--kv-type", "auto", "--kv-budget", "0.008", "--kv-plan", str(tmp_path / "plans.json")]
    small = ["-p", "4", "-n", "2", "-d", "122", "-r", "1", "-t", "1", "--json"]
    done = llmgen("bench", two_tiny_models[0], *auto, *small)
    assert done.returncode == 0, done.stderr
    [run] = json.loads(done.stdout)["runs"]
    assert run["kv_type"] in ("q4_0", "k=q4_0,v=nf4", "nf4")
    [kept] = json.loads((tmp_path / "plans.json").read_text())["plans"]
    assert (kept["plan"]["chosen"], kept["plan"]["n_ctx"]) == (run["kv_type"], 126)
    assert ("warning: KV cache" in done.stderr) != kept["plan"]["passed"]
    says = refused(llmgen("bench", two_tiny_models[0], "--kv-budget", "5"), 2)
    assert "--kv-budget goes with --kv-type auto" in says


def test_sql_fills_a_table(two_tiny_models: tuple[str, str]) -> None:
    done = llmgen("bench", *two_tiny_models, "-pg", "4,2", "--pg", "4,4", "-r", "1", "--format", "sql")
    assert done.returncode == 0, done.stderr
    database = sqlite3.connect(":memory:")
    database.executescript(done.stdout)
    database.executescript(done.stdout)  # again: the rows are added
    rows = database.execute("SELECT model, test, n_prompt, n_generate, spread FROM llmgen_bench").fetchall()
    first = [("a|b.gguf", "pp4+tg2", 4, 2, None), ("a|b.gguf", "pp4+tg4", 4, 4, None)]
    assert rows == [*first, *(("it's.gguf", *row[1:]) for row in first)] * 2
    [(speed,)] = database.execute("SELECT min(tokens_per_s) FROM llmgen_bench").fetchall()
    assert speed > 0


@pytest.mark.parametrize("local", [[], ["--decode-plan", "fixed", "--decode-local-window", "64"]])
def test_json_says_that_tokens_see_a_part_of_the_keys(
    local: list[str], two_tiny_models: tuple[str, str]
) -> None:
    small = ["bench", two_tiny_models[0], "-p", "0", "-n", "2", "-r", "1", "-t", "1", *local]
    [run] = json.loads(llmgen(*small, "--json").stdout)["runs"]
    [row] = [json.loads(line) for line in llmgen(*small, "--format", "jsonl").stdout.splitlines()]
    expected = 64 if local else None
    assert run.get("decode_local_window") == row.get("decode_local_window") == expected
    for found in (run, row):
        assert (found["rope_scaling"], found["decode_plan"]) == ("none", "fixed" if local else "auto")


def test_a_prompt_and_generation_count_together(two_tiny_models: tuple[str, str]) -> None:
    done = llmgen("bench", two_tiny_models[0], "-p", "8", "-pg", "6,2", "-r", "1", "--format", "jsonl")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["test"], row["n_prompt"], row["n_generate"]) for row in rows] == [
        ("pp8", 8, 0),
        ("pp6+tg2", 6, 2),
    ]
    assert all(row["samples"] == [row["tokens_per_s"]] for row in rows)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_keeps_the_tests_that_are_done() -> None:
    options = ["-p", "16,4000", "-n", "0", "-r", "99", "-t", "1", "--csv"]
    program = subprocess.Popen(
        [*PROGRAM, "bench", str(smollm2()), *options],
        **dict.fromkeys(("stdout", "stderr"), subprocess.PIPE),
        text=True,
        env=environment(),
    )
    assert program.stdout is not None
    lines = [program.stdout.readline(), program.stdout.readline()]  # not at the end: when it is measured
    program.send_signal(signal.SIGINT)
    rest, said = program.communicate(timeout=HANGS_S)
    assert program.returncode == 130
    [row] = csv.DictReader(lines)
    assert row["test"] == "pp16"
    assert (rest, said) == ("", "ended after 1 of 2 tests\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), LLMGenError("lost")])
def test_whatever_ends_it_json_has_what_is_done(
    error: BaseException,
    two_tiny_models: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measure = benchmark.Bench.measure

    def failing(bench: benchmark.Bench, test: benchmark.Test) -> benchmark.Row:
        if test.depth == 8:
            raise error
        return measure(bench, test)

    monkeypatch.setattr(benchmark.Bench, "measure", failing)
    arguments = ["bench", two_tiny_models[0], "-n", "0", "-p", "4", "-r", "1", "-d", "0,2,8", "--json"]
    program = get_command(app)
    with program.make_context("llmgen", arguments) as context, pytest.raises(type(error)):
        program.invoke(context)
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["complete"] is False
    assert [test["depth"] for test in report["runs"][0]["tests"]] == [0, 2]
    assert printed.err.endswith("ended after 2 of 3 tests\n")


def test_a_plot_has_a_panel_for_each_axis(two_tiny_models: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.svg"
    small = ["-p", "4", "-n", "2", "-r", "2"]
    done = llmgen("bench", *two_tiny_models, *small, "-d", "0,8", "-t", "1,2", "--plot", str(path))
    assert done.returncode == 0, done.stderr
    texts = [
        "".join(node.itertext()).strip()
        for node in ElementTree.parse(path).iter()
        if node.tag.endswith("text")
    ]
    for title in ("prompt processing", "generation", "threads", "tokens already in the context"):
        assert texts.count(title) == 2
    assert "a|b.gguf: tg2, 1 thread" in texts
    assert "it's.gguf: pp4, 8 tokens before" in texts


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--json", "--csv"], "exclude each other"),
        (["--format", "md", "--json"], "exclude each other"),
        (["--format", "xml"], "jsonl"),
        (["-p", "0", "-n", "0"], "nothing to measure"),
        (["-p", "9" * 400], "-p must be whole numbers from 0 to"),
        (["-n", "1,,2"], "-n must be"),
        (["-pg", "5"], "-pg must be prompt and generated tokens, such as 512,128, not '5'"),
        (["-pg", "5,0"], "from 1 to"),
        (["-t", "two"], "--threads must be whole numbers"),
        (["-t", "2,257"], "--threads must be whole numbers from 1 to 256"),
        (["-t", "0"], "from 1 to"),
        (["-d", "-1"], "--depth"),
        (["-r", "0"], "repetitions"),
        (["--plot", "a.jpg", "-d", "0,1"], "must name a file that ends in .svg"),
        (["--plot", "a.svg"], "-d 0,1024,4096 or -t 1,2"),
    ],
)
def test_wrong_usage(options: list[str], says: str) -> None:
    assert says in refused(llmgen("bench", str(smollm2()), *options), code=2)


def test_a_plot_that_cannot_be_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(LLMGenError, match=r"pip install 'llmgen\[plot\]'"):
            bench_plot.check(tmp_path / "a.svg", [0, 1], [None])
    pytest.importorskip("matplotlib")
    with pytest.raises(LLMGenError, match="its folder must exist"):
        bench_plot.check(tmp_path / "none" / "a.svg", [0, 1], [None])


def test_a_mix_is_called_by_its_name() -> None:
    with GGUFFile.open(gemma3()) as file:
        assert quantization_name(file) == "Q4_K_M"
        assert next(iter(quant_mix(file))) == "Q8_0"  # most of its bytes are the embedding's


def test_weights_read_for_a_token() -> None:
    with GGUFFile.open(smollm2()) as file:  # tied: the embedding is the output matrix
        assert weight_bytes_per_token(file) == sum(tensor.nbytes for tensor in file.tensors.values())
    assert read_bandwidth(1, repetitions=1) > 0


def test_of_experts_a_token_reads_those_that_it_takes() -> None:
    with GGUFFile.open(build_changed("llama-moe", "experts")) as file:  # three of eight
        all_bytes = sum(tensor.nbytes for tensor in file.tensors.values())
        experts = sum(tensor.nbytes for name, tensor in file.tensors.items() if "_exps." in name)
        rows = file.tensors["token_embd.weight"]
        assert weight_bytes_per_token(file) == all_bytes - experts * 5 // 8 - rows.nbytes + rows.row_bytes


def test_measuring_memory_leaves_most_of_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    empty = np.empty

    def counting(n: int, dtype: type) -> np.ndarray:
        asked.append(n * 8)
        return empty(n, dtype)

    monkeypatch.setattr(benchmark, "available_bytes", lambda: 4 << 20)
    monkeypatch.setattr(benchmark.np, "empty", counting)
    assert read_bandwidth(100, repetitions=1) > 0
    assert asked == [1 << 20]


def test_a_model_of_broken_numbers_is_not_timed(tmp_path: Path) -> None:
    broken = tiny.write(tmp_path / "nan.gguf", tensors={"output_norm.weight": lambda x: x * np.nan})
    assert "not numbers (NaN)" in refused(llmgen("bench", str(broken), *SMALL, "-t", "1"))


def test_warmup() -> None:
    done = llmgen("warmup", str(smollm2()))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("smollm2.gguf: ready (")


def test_warmup_leaves_out_what_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"no model")
    (tmp_path / "smollm2.gguf").symlink_to(smollm2())
    done = llmgen("warmup", LLMGEN_MODELS=str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith("smollm2.gguf: ready")
    assert "broken left out: " in done.stderr
    assert "no models" in refused(llmgen("warmup", LLMGEN_MODELS=str(tmp_path / "none")))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_interrupted_while_it_compiles(tmp_path: Path) -> None:
    """Ctrl-C ends the first compilation; what is done by then does no harm."""
    program = subprocess.Popen(
        [*PROGRAM, "warmup", str(smollm2())],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(LLMGEN_CACHE=str(tmp_path)),
    )
    assert program.stderr is not None
    assert program.stderr.readline().startswith("compiling kernels for this CPU")
    program.send_signal(signal.SIGINT)
    assert program.wait(HANGS_S) == 130
    assert program.stderr.read() == ""


def test_guessing_is_measured_beside_plain_decoding() -> None:
    bench = ["bench", str(smollm2()), "-p", "0", "-n", "2", "-r", "1", "--lookup"]
    done = llmgen(*bench, "--json")
    assert done.returncode == 0, done.stderr
    [run] = json.loads(done.stdout)["runs"]
    assert [one["text"] for one in run["guessed"]] == ["code", "prose", "rewriting"]
    for one in run["guessed"]:
        assert one["tokens_per_s"] / one["plain_tokens_per_s"] == pytest.approx(one["speedup"])
        assert one["tokens_per_step"] >= 1
        assert one["acceptance_rate"] == (one["accepted"] / one["guessed"] if one["guessed"] else None)
        assert one["tokens_per_step"] == pytest.approx(127 / one["steps"])
    table = llmgen(*bench)
    assert table.stdout.count(" tokens a step") == 3
    error = refused(llmgen(*bench, "--csv"), 2)
    assert error == "what --draft and --lookup gain is told by --format table, md or json, not by csv"


def test_models_that_guessing_does_not_go_with_are_refused_before_anything_is_measured() -> None:
    recurrent = str(build_arch("mamba-dense"))
    error = refused(llmgen("bench", str(smollm2()), recurrent, "-r", "1", "--lookup"), 2)
    assert error.startswith("this model has recurrent states")
    error = refused(llmgen("bench", str(smollm2()), "-r", "1", "--draft", str(gemma3())), 2)
    assert "another vocabulary" in error
