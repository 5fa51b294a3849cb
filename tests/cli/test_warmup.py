"""``llmgen warmup`` without a model goes through those in the models folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from program import llmgen, refused


def test_a_file_that_cannot_run_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    tiny.write(tmp_path / "tiny.gguf")
    done = llmgen("warmup", LLMGEN_MODELS=str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.startswith("tiny.gguf: ready")
    assert "broken left out: " in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-t", "0"), "0 threads were asked for"),
        (("-c", "0"), "the context is 0"),
        (("--kv-type", "f8"), "'f8'"),
    ],
)
def test_options_that_no_model_takes_are_no_models_fault(
    options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    tiny.write(tmp_path / "tiny.gguf")
    assert says in refused(llmgen("warmup", *options, LLMGEN_MODELS=str(tmp_path)), code=2)
