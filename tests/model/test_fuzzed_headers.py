"""A fuzzer over the headers of model files, in a process of its own, which a bad address would end."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import tiny
from llmgen.backends.cpu.dry_run import dry_run
from llmgen.backends.cpu.model import Model
from llmgen.errors import LLMGenError
from llmgen.gguf import GGUFFile
from llmgen.tokenizer import Tokenizer
from program import HANGS_S

NAN = float("nan")
_CASES = 500
_NASTY = (0, 1, 2, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS = (0.0, -1.0, 1.0, NAN, float("inf"), 1e-45, 3e38)


def mutants(data: bytes, header: int) -> Iterator[bytes]:
    """The file with one to eight changes in its first ``header`` bytes; always the same ones."""
    import random

    for seed in range(_CASES):
        rng, changed = random.Random(seed), bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            at, kind = rng.randrange(4, header), rng.randrange(6)
            if kind == 0:
                changed[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                changed[at] = rng.randrange(256)
            elif kind == 2:
                n = rng.choice((1, 4, 8))
                changed[at : at + n] = (rng.choice(_NASTY) % 256**n).to_bytes(n, "little")
            elif kind == 3:
                changed[at : at + 4] = struct.pack("<f", rng.choice(_FLOATS))
            elif kind == 4:
                del changed[at : at + rng.randrange(1, 40)]
            else:
                source = rng.randrange(header)
                changed[at : at + 8] = changed[source : source + 8]
        yield bytes(changed)


def use(path: Path) -> None:
    """What the commands do with a file, up to logits; an LLMGenError is an answer too."""
    with GGUFFile.open(path) as file:
        for step in (_read_text, dry_run, _compute):
            with suppress(LLMGenError):
                step(file)


def _read_text(file: GGUFFile) -> None:
    tokenizer = Tokenizer.from_gguf(file)
    for text in ("ab <s> \u00e9\U0001f600", ""):
        tokenizer.decode(tokenizer.encode(text, parse_special=True))


def _compute(file: GGUFFile) -> None:
    model = Model.load(file, n_ctx=64, n_threads=1)
    try:
        seq = model.new_sequence()
        model.prefill(seq, [1, 2, 3])
        model.decode([seq], [0])
    finally:
        model.close()


def fuzz(folder: Path) -> None:
    """Use every mutant of a few files, printing its number first; an error other than LLMGenError ends it."""
    import warnings

    warnings.simplefilter("ignore")
    files: dict[str, dict[str, Any]] = {
        "llama": {"keys": tiny.YARN},
        "mistral3": {"keys": tiny.YARN, "architecture": "mistral3"},
        "experts": tiny.mixture(),
    }
    for architecture, changes in files.items():
        path = tiny.write(folder / f"{architecture}.gguf", kind="q8_0", **changes)
        data = path.read_bytes()
        with GGUFFile.open(path) as file:
            header = len(data) - sum(tensor.nbytes for tensor in file.tensors.values())
        for number, case in enumerate(mutants(data, header)):
            print(architecture, number, flush=True)
            path.write_bytes(case)
            with suppress(LLMGenError):
                use(path)


def test_no_damage_to_a_header_does_more_than_an_error(tmp_path: Path) -> None:
    with GGUFFile.open(tiny.write(tmp_path / "good.gguf", kind="q8_0")) as file:
        _compute(file)  # the kernels are there
    code = f"import pathlib, model.test_fuzzed_headers as t; t.fuzz(pathlib.Path({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=HANGS_S,  # it hangs
    )
    assert done.returncode == 0, f"case {done.stdout.splitlines()[-1:]}: {done.stderr[-2000:]}"
