"""``llmgen quantize`` as a user sees it."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny
from llmgen.cli import quantize as command_module
from llmgen.engine.perplexity import Perplexity
from llmgen.errors import LLMGenError
from models import smollm2
from program import PROGRAM, environment, in_terminal, llmgen, refused, signalled

TEXT = "ab a b ab b a a b " * 400


def wide(path: Path) -> Path:
    """A model with one large matrix."""
    rows = np.random.default_rng(1).standard_normal((4096, 1024)).astype(np.float32)
    return tiny.write(path, tensors={"blk.0.extra.weight": rows})


def test_facts_and_json(tmp_path: Path) -> None:
    source, out = wide(tmp_path / "s.gguf"), tmp_path / "out.gguf"
    done = llmgen("quantize", str(source), "q4_k_m", "-o", str(out))
    assert done.returncode == 0, done.stderr
    told = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert told["file"].strip() == str(out)
    assert "Q4_K_M: Q4_K 9" in told["quantization"]
    assert "Q5_0 in place of Q4_K" in told["fallback"]
    assert "in rows of 32 or 64" in told["fallback"]
    assert 0.05 < float(told["error"].strip().split("%")[0]) / 100 < 0.08
    again = llmgen("quantize", str(source), "Q4_K_M", "-o", str(out), "--json", "--force")
    report = json.loads(again.stdout)
    assert report["size"] == out.stat().st_size
    assert report["size_before"] == source.stat().st_size
    assert {t["name"] for t in report["tensors"]} >= {"blk.0.extra.weight", "output_norm.weight"}
    [entry] = [t for t in report["fallbacks"] if t["name"] == "blk.0.ffn_up.weight"]
    assert (entry["wanted"], entry["to"], entry["columns"]) == ("Q4_K", "Q5_0", 32)
    assert 0 < report["fallback_share"] < 0.01


def test_weights_that_are_too_small_are_told(tmp_path: Path) -> None:
    tensors = {f"blk.0.{n}.weight": np.full((4, 512), 10.0**-n, np.float32) for n in (9, 10, 1)}
    source, out = tiny.write(tmp_path / "s.gguf", tensors=tensors), tmp_path / "o.gguf"
    done = llmgen("quantize", str(source), "Q8_0", "-o", str(out), "--json")
    assert done.returncode == 0
    note = next(line for line in done.stderr.splitlines() if "too small" in line)
    assert (
        "100% of the weights of blk.0.9.weight are too small for Q8_0, and are lost, as are some of" in note
    )
    assert note.endswith("1 other tensor (--json lists them); BF16 and F32 keep them")
    shares = {t["name"]: t["lost_share"] for t in json.loads(done.stdout)["tensors"]}
    assert [shares[name] for name in tensors] == [1, 1, 0]
    told = llmgen("quantize", str(source), "BF16", "-o", str(out), "--force")
    assert "too small" not in told.stderr
    assert re.search(r"error +0\.\d+% .*, at most 0\.\d+%, in \S+\.weight$", told.stdout, re.MULTILINE)


def test_requantizing_is_told(tmp_path: Path) -> None:
    source = tiny.write(tmp_path / "s.gguf", kind="q8_0")
    done = llmgen("quantize", str(source), "Q4_0", "-o", str(tmp_path / "o.gguf"))
    assert done.returncode == 0
    assert "quantized already" in done.stderr
    exact = llmgen("quantize", str(source), "F16", "-o", str(tmp_path / "f.gguf"))
    assert exact.returncode == 0
    assert "quantized already" not in exact.stderr  # it may be about kernels that are compiled


def test_refusals(tmp_path: Path) -> None:
    source, out = tiny.write(tmp_path / "s.gguf"), tmp_path / "out.gguf"
    assert "choose one of F32" in refused(llmgen("quantize", str(source), "Q9", "-o", str(out)), 2)
    assert "there is no file" in refused(
        llmgen("quantize", str(tmp_path / "no.gguf"), "Q8_0", "-o", str(out))
    )
    assert "the model itself" in refused(
        llmgen("quantize", str(source), "Q8_0", "-o", str(source), "--force"), 2
    )
    assert "not written to stdout" in refused(llmgen("quantize", str(source), "Q8_0", "-o", "-"), 2)
    out.write_bytes(b"mine")
    assert "--force" in refused(llmgen("quantize", str(source), "Q8_0", "-o", str(out)), 2)
    missing = llmgen(
        "quantize", str(source), "Q8_0", "-o", str(out), "--force", "--check", str(tmp_path / "t")
    )
    assert "No such file" in refused(missing)
    assert out.read_bytes() == b"mine"
    for n in ("0", "100000"):
        few = llmgen("quantize", str(source), "Q8_0", "-o", str(tmp_path / "new.gguf"), "-t", n)
        assert f"{n} threads were asked for, expected 1 to 256" in refused(few, 2)


def test_texts_to_check_that_are_refused(tmp_path: Path) -> None:
    source, text = tiny.write(tmp_path / "s.gguf"), tmp_path / "text.txt"
    text.write_text(TEXT)
    (tmp_path / "link.txt").symlink_to(text)
    for out in (text, tmp_path / "link.txt"):
        done = llmgen("quantize", str(source), "Q8_0", "-o", str(out), "--force", "--check", str(text))
        assert "is the text to --check; choose another name" in refused(done, 2)
    assert text.read_text() == TEXT
    text.write_text("ab a b")
    done = llmgen("quantize", str(source), "Q8_0", "-o", str(tmp_path / "o.gguf"), "--check", str(text), "-q")
    assert refused(done, 2).endswith("fewer than one chunk of 512; give a longer text")
    assert not (tmp_path / "o.gguf").exists()


def test_perplexity_before_and_after(tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out.gguf"
    text.write_text(TEXT)
    source = tiny.write(tmp_path / "s.gguf")
    done = llmgen("quantize", str(source), "Q8_0", "-o", str(out), "--check", str(text), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["perplexity"]
    for name, path in (("before", source), ("after", out)):
        alone = json.loads(llmgen("perplexity", str(path), str(text), "--json").stdout)
        assert told[name] == alone["perplexity"]
    assert told["ratio"] == pytest.approx(told["after"] / told["before"])
    assert 0.99 < told["ratio"] < 1.01


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), LLMGenError("no room")])
def test_the_new_file_is_told_though_its_perplexity_is_not_known(
    trouble: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out.gguf"
    text.write_text(TEXT)

    def perplexity(path: Path, *_: object) -> Perplexity:
        if path == out:
            raise trouble
        return Perplexity(100, 1, 2.0, 0.1)

    monkeypatch.setattr(command_module, "_perplexity", perplexity)
    source = str(tiny.write(tmp_path / "s.gguf"))
    with pytest.raises(type(trouble)):
        command_module.command(source, "Q8_0", out, check=text, json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["size"] == out.stat().st_size
    assert "perplexity" not in report


@pytest.mark.skipif(os.name == "nt", reason="limits of a process")
def test_a_file_that_cannot_grow(tmp_path: Path) -> None:
    """As on a full disk: one sentence, and nothing is left."""
    source = wide(tmp_path / "s.gguf")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    command = [*PROGRAM, "quantize", str(source), "F16", "-o", str(tmp_path / "out.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), preexec_fn=limit)
    assert "out.gguf could not be written: File too large; make room" in refused(done)
    assert os.listdir(tmp_path) == ["s.gguf"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_no_signal_leaves_half_a_file(tmp_path: Path, number: int, code: int) -> None:
    source = tmp_path / "s.gguf"
    wide(source)
    program = signalled("llmgen.quantize.tensors:Converter.pieces", 2, number)  # a tensor is in the new file
    command = [*program, "quantize", str(source), "Q4_0", "-o", str(tmp_path / "out.gguf"), "-t", "1"]
    done = subprocess.run(command, capture_output=True, env=environment())
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["s.gguf"]


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    seen = in_terminal("quantize", str(wide(tmp_path / "s.gguf")), "Q4_0", "-o", str(tmp_path / "o.gguf"))
    assert seen.code == 0
    assert "to Q4_0" in seen.terminal
    assert not [line for line in seen.screen if line.startswith("to Q4_0")]


def test_the_real_model_answers_as_before(tmp_path: Path, compiled: None) -> None:
    out = tmp_path / "out.gguf"
    assert llmgen("quantize", str(smollm2()), "Q4_K_M", "-o", str(out)).returncode == 0
    done = llmgen("run", str(out), "What is the capital of France?", "--temp", "0", "-n", "12")
    assert "Paris" in done.stdout
