"""--rope-scaling: what it takes, that it gives the rotations of a file that says the same, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import variants
from archs import build_arch, build_variant
from engines import engine
from llmgen.backends.cpu.dry_run import dry_run
from llmgen.errors import UsageError
from llmgen.gguf import GGUFFile
from llmgen.model.rope_option import RopeOption

IDS = [int(i) for i in np.random.default_rng(5).integers(3, 90, 12)]


def test_what_is_taken() -> None:
    assert RopeOption.of("yarn:4") == RopeOption("yarn", 4.0)
    assert RopeOption.of("linear:2.5") == RopeOption("linear", 2.5)
    assert RopeOption.of("none") == RopeOption("none", 1.0)


@pytest.mark.parametrize(
    "wrong",
    ["", "yarn", "yarn:", "yarn:0.5", "yarn:nan", "yarn:1e9", "none:2", "longrope:2", "YARN:2", 4, None],
)
def test_what_is_refused(wrong: object) -> None:
    with pytest.raises(
        UsageError, match=r"^rope_scaling is .*, expected yarn:N, linear:N or none.*--rope-scaling"
    ):
        RopeOption.of(wrong)


def plain(**keys: tuple[str, object]) -> Path:
    """A llama of which all that a file says about scaling is its original context."""
    original = {"rope.scaling.original_context_length": ("UINT32", 64), **keys}
    return build_variant("llama-dense", "-".join(["original", *keys]), set_keys=original)


def logits(path: Path, rope_scaling: str | None) -> np.ndarray:
    with engine(path, rope_scaling=rope_scaling) as model:
        return model.prefill(model.new_sequence(), IDS, logits="all")


@pytest.mark.parametrize(
    ("option", "file"),
    [("yarn:4", "llama-yarn"), ("linear:2", "llama-old-linear-key"), ("none", "llama-scaling-none")],
)
def test_the_option_is_what_the_file_could_say(option: str, file: str) -> None:
    said = logits(variants.build(file), None)
    np.testing.assert_array_equal(logits(plain(), option), said)
    np.testing.assert_array_equal(
        logits(variants.build("llama-yarn"), option), said
    )  # in place of the file's
    assert option == "none" or not np.array_equal(logits(plain(), None), said)


def test_the_context_grows_by_as_much() -> None:
    with GGUFFile.open(plain(context_length=("UINT32", 64))) as file:
        for option, n_ctx in ((None, 64), ("yarn:4", 256), ("linear:1.5", 96), ("none", 64)):
            config, layout = dry_run(file, rope_scaling=option)
            assert (config.reach, config.context_length, layout.n_ctx) == (n_ctx, 64, n_ctx)


@pytest.mark.parametrize("name", ["bloom-dense", "mamba-dense", "gpt2-dense", "cogvlm-dense"])
def test_models_without_scaled_positions_refuse_it(name: str) -> None:
    with GGUFFile.open(build_arch(name)) as file:
        dry_run(file)
        with pytest.raises(UsageError, match="have no rotated positions.*leave --rope-scaling out"):
            dry_run(file, rope_scaling="yarn:2")


@pytest.mark.parametrize("name", ["llama-longrope", "phi3-long"])
def test_models_with_factors_of_their_own_refuse_it(name: str) -> None:
    with GGUFFile.open(variants.build(name)) as file:
        dry_run(file)
        with pytest.raises(UsageError, match=r"factors of its own \(LongRoPE\).*leave --rope-scaling out"):
            dry_run(file, rope_scaling="yarn:2")
