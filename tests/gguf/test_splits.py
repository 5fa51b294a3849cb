"""Models in several files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguf
import gguf_files as gf
from gguf_writing import write_out
from llmgen.errors import ModelFileError
from llmgen.gguf import GGUFFile


def name(number: int, count: int, stem: str = "model") -> str:
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def part(index: int, count: int, total: int = 3, said: int | None = None) -> gf.Spec:
    """Part ``index`` from 0; each has one tensor, F32 [2]."""
    pairs = [
        gf.pair("split.no", gf.U16, index),
        gf.pair("split.count", gf.U16, count if said is None else said),
        gf.pair("split.tensors.count", gf.I32, total),
    ]
    if index == 0:
        pairs.append(gf.pair("general.architecture", gf.STRING, "llama"))
    return gf.Spec(pairs=pairs, tensors=[gf.tensor(f"t{index}", [2], 0, 0)], data=bytes([index]) * 8)


def save(folder: Path, count: int = 3, **changed: gf.Spec) -> Path:
    """A model of ``count`` parts; ``p1=spec`` replaces part 1 (from 0). The path of the first."""
    for index in range(count):
        spec = changed.get(f"p{index}") or part(index, count)
        (folder / name(index + 1, count)).write_bytes(spec.to_bytes())
    return folder / name(1, count)


def refused(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(path)
    assert "; " in str(caught.value)
    return str(caught.value)


def test_the_parts_are_one_model(tmp_path: Path) -> None:
    first = save(tmp_path)
    with GGUFFile.open(first) as file:
        assert file.architecture == "llama"
        assert file.paths == [tmp_path / name(i, 3) for i in (1, 2, 3)]
        assert file.path == first
        assert file.file_size == sum(p.stat().st_size for p in file.paths)
        assert list(file.tensors) == ["t0", "t1", "t2"]
        assert [t.data[0] for t in file.tensors.values()] == [0, 1, 2]


def test_files_that_the_gguf_package_splits(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    weights = {f"w{i}": np.full((4, 8), i, np.float32) for i in range(5)}
    for key, weight in weights.items():
        writer.add_tensor(key, weight)
    write_out(writer)
    with GGUFFile.open(tmp_path / name(1, 3, "m")) as file:
        assert len(file.paths) == 3
        for key, weight in weights.items():
            assert file.tensors[key].data.tobytes() == weight.tobytes()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = save(tmp_path)
    (tmp_path / name(2, 3)).unlink()
    assert f"part 2 of 3 is missing, expected {name(2, 3)} in the same folder" in refused(first)


def test_another_than_the_first_part_names_the_first(tmp_path: Path) -> None:
    save(tmp_path)
    message = refused(tmp_path / name(2, 3))
    assert f"this is part 2 of a split model, expected the first part; open {name(1, 3)}" in message


def test_a_renamed_part(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / name(1, 3)).rename(tmp_path / "first.gguf")
    assert "expected a name that ends in -00001-of-00003.gguf" in refused(tmp_path / "first.gguf")
    (tmp_path / name(2, 3)).rename(tmp_path / "second.gguf")
    assert "open the first part" in refused(tmp_path / "second.gguf")


def test_counts_that_contradict_one_another(tmp_path: Path) -> None:
    assert "expected a name that ends in -00001-of-00002.gguf" in refused(
        save(tmp_path, p0=part(0, 3, said=2))
    )
    assert "it says it is part 2 of 4, expected part 2 of 3" in refused(save(tmp_path, p1=part(1, 3, said=4)))
    assert "it says it is part 3 of 3, expected part 2 of 3" in refused(save(tmp_path, p1=part(2, 3)))
    assert "it says nothing about parts, expected part 3 of 3" in refused(save(tmp_path, p2=gf.Spec()))
    assert "the 3 parts have 3 tensors, expected 4" in refused(save(tmp_path, p0=part(0, 3, total=4)))


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    spec = part(1, 3).with_tensors(gf.tensor("t0", [2], 0, 0))
    message = refused(save(tmp_path, p1=spec))
    assert f"the tensor 't0' is also in {name(1, 3)}" in message


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    first = save(tmp_path)
    second = tmp_path / name(2, 3)
    second.write_bytes(second.read_bytes()[:-1])
    assert refused(first).startswith(f"{second}: ")


def test_one_part_of_one_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "whole.gguf").write_bytes(part(0, 1, total=1).to_bytes())
    with GGUFFile.open(tmp_path / "whole.gguf") as file:
        assert list(file.tensors) == ["t0"]
