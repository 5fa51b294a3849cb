"""Which tensor gets which type, against llama.cpp's choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf
from gguf_writing import write_out
from llmgen.errors import UsageError
from llmgen.gguf import GGMLType, GGUFFile
from llmgen.quantize import MIXES, mix_named, plan
from llmgen.quantize.rules import fitting

_DATA = json.loads((Path(__file__).parent / "choices.json").read_text())
CHOICES, LETTERS = _DATA["models"], _DATA["letters"]
"""Of llama.cpp (llama-cpp-python 0.3.36, a dry run): model -> its tensors, and for each mix a letter a tensor."""


def write(path: Path, facts: dict[str, Any]) -> Path:
    """A file with tensors and keys as the facts say, all weights 0: F16, vectors F32."""
    writer = gguf.GGUFWriter(str(path), facts["architecture"])
    for key, value in facts["keys"].items():
        writer.add_uint32(f"{facts['architecture']}.{key}", value)
    for name, shape in facts["tensors"]:
        writer.add_tensor(name, np.zeros(shape[::-1], np.float32 if len(shape) == 1 else np.float16))
    write_out(writer)
    return path


@pytest.mark.parametrize("name", CHOICES)
def test_the_types_that_llama_cpp_chooses(name: str, tmp_path: Path) -> None:
    facts = CHOICES[name]
    with GGUFFile.open(write(tmp_path / "m.gguf", facts)) as file:
        for mix, types in facts["types"].items():
            found = {t.tensor.name: t.type.name for t in plan(file, mix_named(mix))}
            names = (tensor for tensor, _ in facts["tensors"])
            assert found == {n: LETTERS[letter] for n, letter in zip(names, types, strict=True)}, mix


def test_other_architectures_that_count_as_70b(tmp_path: Path) -> None:
    """llama.cpp's choices for a qwen2 of 80 layers are those for a llama."""
    facts = {**CHOICES["a llama of 80 layers"], "architecture": "qwen2"}
    with GGUFFile.open(write(tmp_path / "m.gguf", facts)) as file:
        for mix in ("Q4_K_S", "Q3_K_S", "Q2_K"):
            found = "".join(t.type.name + "\n" for t in plan(file, mix_named(mix)))
            assert found == "".join(LETTERS[letter] + "\n" for letter in facts["types"][mix])


def test_every_mix_is_tried() -> None:
    assert all(set(facts["types"]) == set(MIXES) for facts in CHOICES.values())


def test_names() -> None:
    assert mix_named("q4_k_m") is MIXES["Q4_K_M"]
    assert mix_named("Q4_K") is MIXES["Q4_K_M"]
    with pytest.raises(UsageError, match=r"'Q4_X'.*choose one of F32, F16.*Q4_K_M"):
        mix_named("Q4_X")


def test_rows_that_are_not_whole_blocks() -> None:
    assert fitting(GGMLType.Q4_K, 512) is GGMLType.Q4_K
    assert fitting(GGMLType.Q4_K, 576) is GGMLType.Q5_0
    assert fitting(GGMLType.Q6_K, 96) is GGMLType.Q8_0
    assert fitting(GGMLType.Q6_K, 100) is GGMLType.F16
    assert fitting(GGMLType.Q8_0, 100) is GGMLType.F16
