"""Sound files: every metadata type and tensor, compared with what was written."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gguf
import gguf_files as gf
from gguf import GGMLQuantizationType, GGUFValueType
from gguf_writing import write_out
from llmgen.errors import LLMGenError, UnsupportedModelError
from llmgen.gguf import GGMLType, GGUFFile, StringArray
from models import gemma3, smollm2


def save(folder: Path, spec: gf.Spec | None = None, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes((spec or gf.Spec()).to_bytes())
    return path


SCALARS: dict[str, Any] = {
    "UINT8": 255,
    "INT8": -128,
    "UINT16": 65535,
    "INT16": -32768,
    "UINT32": 2**32 - 1,
    "INT32": -(2**31),
    "FLOAT32": 1.5,
    "BOOL": True,
    "STRING": "naïve \U0001f600",
    "UINT64": 2**64 - 1,
    "INT64": -(2**63),
    "FLOAT64": 0.1,
}


@pytest.mark.parametrize("version", [2, 3])
def test_all_metadata_types_come_back(tmp_path: Path, version: int) -> None:
    pairs = [gf.pair("general.architecture", gf.STRING, "toy")]
    for kind, content in SCALARS.items():
        number = GGUFValueType[kind]
        pairs.append(gf.pair(f"one.{kind}", number, content))
        pairs.append(gf.pair(f"many.{kind}", gf.ARRAY, gf.array(number, [content] * 3)))
        pairs.append(gf.pair(f"none.{kind}", gf.ARRAY, gf.array(number, [])))
    with GGUFFile.open(save(tmp_path, gf.Spec(version=version, pairs=pairs))) as file:
        assert file.version == version
        assert file.architecture == "toy"
        for kind, content in SCALARS.items():
            assert file.metadata[f"one.{kind}"] == content
            assert type(file.metadata[f"one.{kind}"]) is type(content)
            assert file.metadata_type(f"one.{kind}") == kind
            assert list(file.metadata[f"many.{kind}"]) == [content] * 3
            assert file.metadata_type(f"many.{kind}") == f"ARRAY[{kind}]"
            assert len(file.metadata[f"none.{kind}"]) == 0
            many = file.metadata[f"many.{kind}"]
            assert isinstance(many, StringArray if kind == "STRING" else np.ndarray)
        assert file.metadata["many.UINT16"].dtype == np.uint16
        assert file.metadata["many.BOOL"].dtype == np.bool_
        assert not file.metadata["many.INT64"].flags.writeable
        assert file.metadata["many.FLOAT64"].flags.aligned


def test_nested_arrays_are_lists(tmp_path: Path) -> None:
    numbers, words = gf.array(gf.I32, [1, -2]), gf.array(gf.STRING, ["a", "bc"])
    spec = gf.Spec().with_pair(
        gf.pair("alike", gf.ARRAY, gf.array(gf.ARRAY, [numbers, gf.array(gf.I32, [])])),
        gf.pair("mixed", gf.ARRAY, gf.array(gf.ARRAY, [numbers, words])),
        gf.pair("empty", gf.ARRAY, gf.array(gf.ARRAY, [])),
        gf.pair("deep", gf.ARRAY, gf.array(gf.ARRAY, [gf.array(gf.ARRAY, [gf.array(gf.ARRAY, [words])])])),
    )
    with GGUFFile.open(save(tmp_path, spec)) as file:
        assert [inner.tolist() for inner in file.metadata["alike"]] == [[1, -2], []]
        assert file.metadata_type("alike") == "ARRAY[ARRAY[INT32]]"
        assert file.metadata["mixed"][1] == ["a", "bc"]
        assert file.metadata_type("mixed") == "ARRAY[ARRAY]"
        assert file.metadata["empty"] == []
        assert file.metadata["deep"][0][0][0][1] == "bc"


def test_a_string_array_is_a_sequence(tmp_path: Path) -> None:
    words = ["", "one", "zwei", "x" * 255, "y" * 256, "z" * 70_000, "\x00"] + ["w"] * 10_000
    content = gf.array(gf.STRING, [*words, b"\xff\xe2\x96"])
    with GGUFFile.open(save(tmp_path, gf.Spec().with_pair(gf.pair("words", gf.ARRAY, content)))) as file:
        array = file.metadata["words"]
    assert len(array) == len(words) + 1
    assert list(array)[:-1] == words == array[:-1]
    assert list(array.iter_raw())[-1] == array.raw(-1) == b"\xff\xe2\x96"
    assert array[-1] == "\ufffd\ufffd"
    assert array.raw(2) == b"zwei"
    assert array.index("one") == 1
    assert "zwei" in array
    assert array[1:5:2] == ["one", "x" * 255]
    assert array != words
    assert "10008 strings" in repr(array)
    for index in (len(array), -len(array) - 1):
        with pytest.raises(IndexError):
            array[index]


def test_tensors_lie_where_the_file_has_them(tmp_path: Path) -> None:
    path = save(tmp_path)
    with GGUFFile.open(path) as file:
        first, second = file.tensors["first"], file.tensors["second"]
        assert list(file.tensors) == ["first", "second"]
        assert (first.shape, first.type, first.n_elements) == ((32, 2), GGMLType.Q4_0, 64)
        assert (first.nbytes, first.row_bytes, first.slack) == (36, 18, 40)
        assert (second.nbytes, second.row_bytes, second.slack) == (12, 12, 0)
        assert first.data.tobytes() == bytes(range(36))
        assert second.data.tobytes() == bytes(range(64, 76))
        assert first.address == first.data.ctypes.data
        assert not first.data.flags.writeable
        assert file.file_size == path.stat().st_size
        assert file.path == path
        assert file.paths == [path]


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    at = 36 if alignment == 1 else max(64, alignment)
    pairs = [gf.pair("general.alignment", gf.U32, alignment)]
    tensors = [gf.tensor("first", [32, 2], 2, 0), gf.tensor("second", [3], 0, at)]
    spec = gf.Spec(pairs=pairs, tensors=tensors, alignment=alignment, data=bytes(at) + b"abcdefghijkl")
    with GGUFFile.open(save(tmp_path, spec)) as file:
        assert file.tensors["second"].data.tobytes() == b"abcdefghijkl"
        assert file.architecture is None


def test_a_file_may_hold_a_vocabulary_only(tmp_path: Path) -> None:
    with GGUFFile.open(save(tmp_path, gf.Spec(tensors=[], data=b"", alignment=1))) as file:
        assert file.tensors == {}
    with GGUFFile.open(save(tmp_path, gf.Spec(tensors=[], pairs=[], data=b"", alignment=1))) as file:
        assert dict(file.metadata) == {}


def test_after_close_what_was_taken_stays_good(tmp_path: Path) -> None:
    file = GGUFFile.open(save(tmp_path))
    data = file.tensors["first"].data
    file.close()
    file.close()
    assert data.tobytes() == bytes(range(36))
    assert list(file.metadata["a.numbers"]) == [1.5, 2.5, 3.5]
    assert file.metadata["a.strings"][0] == "one"
    with pytest.raises(LLMGenError, match="was closed; open it again"):
        _ = file.tensors["first"].data


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_close_gives_the_mapping_back(tmp_path: Path) -> None:
    path = save(tmp_path)
    maps = Path("/proc/self/maps")
    file = GGUFFile.open(path)
    data = file.tensors["first"].data
    assert str(path) in maps.read_text()
    file.close()
    assert str(path) in maps.read_text()  # a view is alive
    del data
    assert str(path) not in maps.read_text()


def test_paths_may_be_text_and_odd(tmp_path: Path) -> None:
    for name in ("with space.gguf", "unicodé 模型.gguf", "no-suffix", "~"):
        path = save(tmp_path, name=name)
        with GGUFFile.open(str(path)) as file:
            assert file.path == path


def test_against_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "written.gguf"
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_block_count(3)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list(["<s>", "a", "\u2581b"])
    writer.add_token_scores([0.0, -1.0, -2.5])
    writer.add_array("llama.layers", [True, False, True])
    writer.add_tensor("token_embd.weight", rng.standard_normal((3, 64), dtype=np.float32))
    writer.add_tensor("half", rng.standard_normal((2, 3, 5)).astype(np.float16))
    blocks = gguf.quants.quantize(rng.standard_normal((4, 256), dtype=np.float32), GGMLQuantizationType.Q8_0)
    writer.add_tensor("quantized", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    write_out(writer)
    compare_with_oracle(path)


def test_smollm2_against_the_gguf_package() -> None:
    compare_with_oracle(smollm2())


def compare_with_oracle(path: Path) -> None:
    """Every key and tensor of the file as gguf.GGUFReader has it."""
    oracle = gguf.GGUFReader(path)
    with GGUFFile.open(path) as file:
        fields = {k: v for k, v in oracle.fields.items() if not k.startswith("GGUF.")}
        assert list(file.metadata) == list(fields)
        for key, field in fields.items():
            assert file.metadata_type(key).startswith(field.types[0].name)
            assert same(file.metadata[key], field.contents()), key
        assert list(file.tensors) == [t.name for t in oracle.tensors]
        base = oracle.data.ctypes.data
        start = min(t.address for t in file.tensors.values())
        for theirs in oracle.tensors:
            ours = file.tensors[theirs.name]
            assert ours.shape == tuple(theirs.shape.tolist())
            assert ours.type == theirs.tensor_type
            assert (ours.n_elements, ours.nbytes) == (theirs.n_elements, theirs.n_bytes)
            assert ours.address - start == theirs.data.ctypes.data - base - oracle.data_offset
            assert ours.slack == oracle.data.nbytes - theirs.data_offset - ours.nbytes


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, list):
        return list(ours) == theirs
    return bool(ours == theirs)


numbers = {
    gf.U8: st.integers(0, 2**8 - 1),
    gf.I16: st.integers(-(2**15), 2**15 - 1),
    gf.U64: st.integers(0, 2**64 - 1),
    gf.F32: st.floats(width=32),
    gf.BOOL: st.booleans(),
    gf.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
}
arrays = st.sampled_from(sorted(numbers)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(numbers[kind], max_size=20))
)


@settings(max_examples=40, deadline=None)
@given(contents=st.lists(arrays, max_size=5))
def test_arrays_round_trip(
    tmp_path_factory: pytest.TempPathFactory, contents: list[tuple[int, list[Any]]]
) -> None:
    pairs = [gf.pair(f"key {i}", gf.ARRAY, gf.array(*content)) for i, content in enumerate(contents)]
    path = save(tmp_path_factory.mktemp("arrays"), gf.Spec(pairs=pairs))
    with GGUFFile.open(path) as file:
        for i, (_, written) in enumerate(contents):
            read = list(file.metadata[f"key {i}"])
            assert len(read) == len(written)
            assert all(
                a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(read, written, strict=True)
            )


def test_a_large_vocabulary_opens_at_once() -> None:
    path = gemma3()
    best = math.inf
    for _ in range(3):
        start = time.thread_time()
        with GGUFFile.open(path) as file:
            best = min(best, time.thread_time() - start)
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 262_144
    assert best < 2  # of the processor; reading each token takes longer


def test_the_package_is_not_imported_from_the_reader() -> None:
    import subprocess

    code = "import sys, llmgen.gguf; sys.exit('gguf' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_tensors_of_unknown_types_have_the_bytes_up_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = [gf.tensor("a", [10], 97, 0), gf.tensor("b", [2], 0, 64), gf.tensor("c", [7, 3], 31, 96)]
    path.write_bytes(gf.Spec(tensors=tensors, data=bytes(range(200))).to_bytes())
    with GGUFFile.open(path) as file:
        a, b, c = file.tensors.values()
        assert [t.nbytes for t in (a, b, c)] == [64, 8, 104]
        assert bytes(c.data) == bytes(range(96, 200))
        b.check_known()
        with pytest.raises(
            UnsupportedModelError, match=r"'a' has the type 97, which .* it knows F32, .*Q4_K"
        ):
            a.check_known()
        with pytest.raises(
            UnsupportedModelError, match=r"'c' has the type 31 \(Q4_0_4_4\), which was removed"
        ):
            c.check_known()
