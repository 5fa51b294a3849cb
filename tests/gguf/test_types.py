"""The table of tensor types against the gguf package's and against recorded ones."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from llmgen.gguf import GGMLType
from llmgen.gguf.types import REMOVED_TYPES
from shared import DATA


@pytest.mark.parametrize("oracle", list(GGMLQuantizationType), ids=lambda t: t.name)
def test_sizes_are_those_of_the_gguf_package(oracle: GGMLQuantizationType) -> None:
    ours = GGMLType[oracle.name]
    block_size, block_bytes = GGML_QUANT_SIZES[oracle]
    if ours is GGMLType.Q8_1 and block_bytes == 40:
        # ggml's own block_q8_1 has had two half-precision numbers since 2023, not two floats;
        # it is an intermediate format that is not stored in files.
        block_bytes = 36
    assert ours == int(oracle)
    assert (ours.block_size, ours.block_bytes) == (block_size, block_bytes)


def test_sizes_are_those_of_the_recorded_blocks() -> None:
    with np.load(DATA / "quants.npz") as recorded:
        sizes = {name: recorded[name] for name in recorded.files if "." not in name}
        blocks = {
            name.removesuffix(".blocks"): recorded[name] for name in recorded.files if ".blocks" in name
        }
        values = {name: recorded[f"{name}.values"] for name in blocks}
    assert len(sizes) == 27
    assert len(blocks) == 27
    for name, (number, block_size, block_bytes) in sizes.items():
        ours = GGMLType[name]
        assert (int(ours), ours.block_size, ours.block_bytes) == (number, block_size, block_bytes)
    for name in blocks:
        assert GGMLType[name].bytes_for(values[name].shape[1]) == blocks[name].shape[1]


def test_removed_ids_are_not_types() -> None:
    assert not REMOVED_TYPES.keys() & {int(kind) for kind in GGMLType}


def test_a_type_is_found_by_its_id() -> None:
    assert GGMLType(12) is GGMLType.Q4_K
    assert GGMLType.Q4_K.bytes_for(512) == 288


def test_an_unknown_id_has_a_name_and_no_size() -> None:
    assert (GGMLType(97).name, int(GGMLType(97)), GGMLType(97).known) == ("type 97", 97, False)
    assert (GGMLType(31).name, GGMLType(31).known) == ("Q4_0_4_4", False)
    assert all(kind.known for kind in GGMLType)
    assert GGMLType(97) == GGMLType(97) != GGMLType(98)
    for none in (-1, 2**32, "Q4_K"):
        with pytest.raises(ValueError):
            GGMLType(none)
