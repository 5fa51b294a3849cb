"""``llmgen bench`` and ``llmgen warmup``: that they measure and report, not how fast."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmgen.cli.benchmark import read_bandwidth, weight_bytes_per_token
from llmgen.gguf import GGUFFile
from models import smollm2
from program import PROGRAM, environment, llmgen, refused

pytestmark = pytest.mark.usefixtures("compiled")
SMALL = ["-p", "16", "-n", "3", "-r", "2"]


def test_json_has_everything() -> None:
    done = llmgen("bench", str(smollm2()), *SMALL, "-d", "0,32", "-t", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["model"] == "smollm2.gguf"
    assert {"cpu", "kernel_level"} <= set(report)
    [run] = report["runs"]
    assert run["threads"] == 1
    assert run["kv_bytes_per_token"] == 23040
    assert run["read_gb_per_s"] > 0
    assert run["speedup"] > 0
    assert 0 < run["sampler_share"] < 1
    assert run["first_token_s"] > 0
    assert [(test["test"], test["depth"]) for test in run["tests"]] == [
        *(("pp16", 0), ("tg3", 0)),
        *(("pp16", 32), ("tg3", 32)),
    ]
    for test in run["tests"]:
        assert len(test["samples"]) == 2
        assert min(test["samples"]) <= test["tokens_per_s"] <= max(test["samples"])
    assert run["tests"][0]["weight_gb_per_s"] is None
    assert run["tests"][1]["share_of_read"] == pytest.approx(
        run["tests"][1]["weight_gb_per_s"] / run["read_gb_per_s"]
    )


def test_csv_without_the_cache() -> None:
    done = llmgen("bench", str(smollm2()), "-p", "0", "-n", "3", "-r", "1", "--csv", "--no-kv-cache")
    [row] = csv.DictReader(io.StringIO(done.stdout))
    assert row["test"] == "tg3 no cache"
    assert float(row["tokens_per_s"]) > 0


def test_table() -> None:
    done = llmgen("bench", str(smollm2()), "-p", "300", "-n", "3", "-r", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("smollm2.gguf on ")
    assert lines[1].split()[:4] == ["test", "threads", "depth", "tokens/s"]
    assert [line.split()[0] for line in lines[2:4]] == ["pp300", "tg3"]
    assert "KV cache 23.0 kB per token" in done.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--json", "--csv"], "exclude each other"),
        (["-p", "0", "-n", "0"], "nothing to measure"),
        (["-t", "two"], "--threads must be whole numbers"),
        (["-t", "0"], "of at least 1"),
        (["-d", "-1"], "--depth"),
        (["-r", "0"], "repetitions"),
    ],
)
def test_wrong_usage(options: list[str], says: str) -> None:
    assert says in refused(llmgen("bench", str(smollm2()), *options), code=2)


def test_weights_read_for_a_token() -> None:
    with GGUFFile.open(smollm2()) as file:  # tied: the embedding is the output matrix
        assert weight_bytes_per_token(file) == sum(tensor.nbytes for tensor in file.tensors.values())
    assert read_bandwidth(1, repetitions=1) > 0


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
    assert program.wait(120) == 130
    assert program.stderr.read() == ""
