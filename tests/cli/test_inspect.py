"""``llmgen inspect``, on real, odd and hostile files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gguf
import tiny
from gguf_writing import write_out
from llmgen.gguf import GGMLType
from models import gemma3, smollm2
from program import llmgen, refused


def facts(output: str) -> dict[str, str]:
    """The lines of the report by their name."""
    pairs = (line.split("  ", 1) for line in output.splitlines())
    return {name: value.strip() for name, value in pairs}


def test_smollm2() -> None:
    done = llmgen("inspect", str(smollm2()))
    assert done.returncode == 0
    assert done.stderr == ""
    told = facts(done.stdout)
    assert told["architecture"] == "llama"
    assert "SmolLM" in told["family"]
    assert told["parameters"] == "134.5M in 272 tensors"
    assert told["quantization"].startswith("Q4_1 69% (210), Q8_0 31% (1)")
    assert told["context"].startswith("8192 tokens")
    assert told["KV cache"] == "23.0 kB per token, 188.7 MB for the whole context (f16)"
    sizes = "f32 46.1 kB, f16 23.0 kB, bf16 23.0 kB, q8_0 12.2 kB, q4_0 6.5 kB, nf4 6.1 kB per token"
    assert told["by its kind"] == sizes
    assert "eos 2 <|im_end|>" in told["special tokens"]
    assert "2 <|im_end|>" in told["ends an answer"]
    assert told["chat template"].startswith("tokenizer.chat_template in the file")
    assert int(told["threads"]) >= 1
    assert told["kernels"] in ("amx", "avx512vnni", "avxvnni", "avx2", "i8mm", "neon", "generic")


def test_what_options_change() -> None:
    told = facts(llmgen("inspect", str(smollm2()), "-c", "100", "-t", "3", "--kv-type", "f32").stdout)
    assert told["context"].startswith("100 tokens (the model was made for 8192)")
    assert told["KV cache"].startswith("46.1 kB per token")
    mixed = facts(llmgen("inspect", str(smollm2()), "--kv-type", "k=q8,v=q4_0").stdout)
    assert mixed["KV cache"].startswith("9.4 kB per token")
    assert mixed["KV cache"].endswith("(k=q8_0,v=q4_0)")
    assert told["threads"] == "3"
    assert facts(llmgen("inspect", str(smollm2()), LLMGEN_THREADS="4").stdout)["threads"] == "4"
    assert "LLMGEN_THREADS" in refused(llmgen("inspect", str(smollm2()), LLMGEN_THREADS="all"), code=2)


def test_json_with_tensors() -> None:
    done = llmgen("inspect", str(gemma3()), "--json", "--tensors")
    report = json.loads(done.stdout)
    assert report["file"]["architecture"] == "gemma3"
    assert report["engine"]["n_ctx"] == report["engine"]["context_length"] == 32768
    assert report["engine"]["window"] == 512
    assert report["engine"]["kv_kinds"]["f16"] == {
        "bytes_per_token": report["engine"]["kv_bytes_per_token"],
        "bytes_per_context": report["engine"]["kv_bytes_per_context"],
    }
    assert list(report["engine"]["kv_kinds"]) == ["f32", "f16", "bf16", "q8_0", "q4_0", "nf4"]
    assert report["chat_template"]["source"] is None
    assert len(report["tensors"]) == report["file"]["tensors"] == 236
    assert {
        "name": "output_norm.weight",
        "type": "F32",
        "shape": [640],
        "parameters": 640,
        "bytes": 2560,
    } in (report["tensors"])
    assert sum(entry["bytes"] for entry in report["file"]["quantization"].values()) < gemma3().stat().st_size
    assert report["metadata"]["tokenizer.ggml.tokens"] == {"type": "ARRAY[STRING]", "length": 262144}


def test_tensor_table() -> None:
    lines = llmgen("inspect", str(smollm2()), "--tensors").stdout.splitlines()
    assert ["blk.9.attn_v.weight", "Q4_1", "576", "x", "192", "69.1", "kB"] in [
        line.split() for line in lines
    ]


def write(
    path: Path, architecture: str = "llama", name: str = "a model", tensor: str = "x", **extra: str
) -> Path:
    """A small file that is sound, and no model that llmgen could run."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name(name)
    for key, value in extra.items():
        writer.add_string(key.replace("__", "."), value)
    writer.add_tensor(tensor, np.zeros((4, 32), dtype=np.float32))
    write_out(writer)
    return path


def test_a_model_that_cannot_run_is_still_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "odd.gguf", "martian")
    done = llmgen("inspect", str(path))
    assert done.returncode == 0
    told = facts(done.stdout)
    assert told["architecture"] == "martian"
    assert told["runs here"].startswith("no: ")
    assert told["tokenizer"] == "none in the file"
    assert "error" in json.loads(llmgen("inspect", str(path), "--json").stdout)["engine"]


def test_tensors_that_are_not_read_are_told(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "more.gguf", tensors={"blk.0.attn_sinks.weight": np.ones(2, np.float32)})
    told = facts(llmgen("inspect", str(path)).stdout)
    assert "does not read 1 tensor" in told["runs here"]
    assert "blk.0.attn_sinks.weight" in told["runs here"]


HOSTILE = "\x1b]0;gotcha\x07\x1b[2J [bold red]x[/] [link=http://e.vil]y[/link] \u202egnp.exe \r\n\x00 \x9b31m"


@pytest.mark.parametrize("options", [[], ["--tensors"], ["--json"]])
def test_text_from_the_file_cannot_steer_the_terminal(tmp_path: Path, options: list[str]) -> None:
    path = write(
        tmp_path / "hostile.gguf",
        architecture="mar\x1b[31mtian",
        name=HOSTILE,
        tensor="t\x1b[5m[red]",
        general__license=HOSTILE,
        tokenizer__ggml__model="x\x1b[0m",
        tokenizer__chat_template=HOSTILE,
    )
    done = llmgen("inspect", str(path), *options)
    assert done.returncode == 0, done.stderr
    assert not {"\x1b", "\x07", "\r", "\x00", "\x9b"} & set(done.stdout)
    if options == ["--json"]:
        assert json.loads(done.stdout)["file"]["name"] == HOSTILE
        return
    assert "\u202e" not in done.stdout
    assert "\\x1b]0;gotcha\\x07" in done.stdout
    assert "[bold red]x[/]" in done.stdout
    assert len([line for line in done.stdout.splitlines() if line.startswith("name")]) == 1
    listed = llmgen("list", LLMGEN_MODELS=str(tmp_path))
    assert not {"\x1b", "\x07", "\x00"} & set(listed.stdout)


BROKEN = {
    "empty": b"",
    "html": b"<!DOCTYPE html><html>404</html>" * 10,
    "short": b"GGUF\x03\x00\x00\x00",
    "version1": b"GGUF\x01\x00\x00\x00" + bytes(100),
    "big-endian": b"GGUF\x00\x00\x00\x03" + bytes(100),
    "counts": b"GGUF\x03\x00\x00\x00" + b"\xff" * 16,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_files_that_are_no_model(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"{kind}.gguf"
    path.write_bytes(BROKEN[kind])
    assert path.name in refused(llmgen("inspect", str(path)))


@pytest.mark.parametrize("command", ["inspect", "tokenize", "run", "bench"])
def test_every_command_refuses_them_alike(tmp_path: Path, command: str) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(smollm2().read_bytes()[:1_000_000])
    text = ["Hi"] if command in ("tokenize", "run") else []
    assert "cut.gguf" in refused(llmgen(command, str(path), *text))
    assert "no file" in refused(llmgen(command, str(tmp_path / "none.gguf"), *text))
    assert "is a folder" in refused(llmgen(command, str(tmp_path), *text))


@pytest.mark.parametrize(
    "options", [["-t", "-1"], ["-t", "0"], ["-c", "-5"], ["-c", "0"], ["--kv-type", "x"]]
)
def test_what_run_refuses_is_refused(options: list[str], tmp_path: Path) -> None:
    model = str(tiny.write(tmp_path / "tiny.gguf"))
    says = refused(llmgen("run", model, "a", *options), 2)
    assert refused(llmgen("inspect", model, *options), 2) == says
    assert refused(llmgen("inspect", model, "--json", *options), 2) == says


@pytest.mark.parametrize("command", ["run", "batch", "perplexity"])
def test_a_context_above_the_trained_one_warns_with_both_numbers(command: str, tmp_path: Path) -> None:
    model, text = str(tiny.write(tmp_path / "tiny.gguf")), tmp_path / "in"
    text.write_text(json.dumps("ab" * 300) + "\n")
    arguments = {
        "run": ["a", "--raw", "-n", "0"],
        "batch": [str(text), "--raw", "-n", "0"],
        "perplexity": [str(text)],
    }
    for n_ctx, warned in ((256, False), (257, True)):
        done = llmgen(command, model, *arguments[command], "-c", str(n_ctx))
        assert (
            "warning: a context of 257 tokens (-c), and this model was made for 256" in done.stderr
        ) == warned


def with_type(path: Path, name: str, kind: int) -> Path:
    """The tiny model with another type's id in a tensor's entry."""
    raw = bytearray(tiny.write(path).read_bytes())
    at = raw.index(name.encode()) + len(name)
    at += 4 + 8 * int.from_bytes(raw[at : at + 4], "little")
    raw[at : at + 4] = kind.to_bytes(4, "little")
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "blk.0.attn_norm.weight", "token_embd.weight"])
def test_a_type_that_is_not_known(name: str, tmp_path: Path) -> None:
    """The file is shown, and everything that needs the tensor's values says why it cannot have them."""
    path = with_type(tmp_path / "m.gguf", name, 97)
    told = facts(llmgen("inspect", str(path)).stdout)
    assert told["cannot run"] == f"type 97: {name}"
    sentence = (
        f"the tensor '{name}' has the type 97, which this llmgen does not know; it knows F32, F16, Q4_0"
    )
    assert told["runs here"].startswith(f"no: {sentence}")
    assert told["architecture"] == "llama"
    assert told["tokenizer"].startswith("llama")
    listed = json.loads(llmgen("inspect", str(path), "--json", "--tensors").stdout)
    assert listed["file"]["unreadable"] == {"type 97": [name]}
    assert {t["type"] for t in listed["tensors"]} == {"F32", "type 97"}
    for command in (["run", str(path), "a"], ["quantize", str(path), "Q8_0", "-o", str(tmp_path / "o.gguf")]):
        assert refused(llmgen(*command)).startswith(sentence)
    assert llmgen("tokenize", str(path), "ab").returncode == 0


def test_a_type_that_was_removed(tmp_path: Path) -> None:
    path = with_type(tmp_path / "m.gguf", "blk.0.ffn_down.weight", 31)
    told = facts(llmgen("inspect", str(path)).stdout)
    assert told["cannot run"] == "Q4_0_4_4: blk.0.ffn_down.weight"
    assert "31 (Q4_0_4_4), which was removed" in refused(llmgen("run", str(path), "a"))


@pytest.mark.parametrize("kind", ["Q8_1", "I32"])
def test_a_norm_in_a_type_that_is_not_for_weights(kind: str, tmp_path: Path) -> None:
    path = with_type(tmp_path / "m.gguf", "blk.0.attn_norm.weight", int(GGMLType[kind]))
    sentence = (
        f"tensor blk.0.attn_norm.weight has the type {kind}, which is not for weights; the file is damaged"
    )
    assert facts(llmgen("inspect", str(path)).stdout)["runs here"].startswith(f"no: {sentence}")
    assert refused(llmgen("run", str(path), "a")).startswith(sentence)


def test_the_experts_of_a_mixture(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "experts.gguf", **tiny.mixture())
    shape = json.loads(llmgen("inspect", str(path), "--json").stdout)["engine"]["shape"]
    assert {"experts": 4, "used for a token": 2, "size of one": 64}.items() <= shape.items()
