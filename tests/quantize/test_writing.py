"""The new file: what is carried over, what is refused, and that nothing is left after an error."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf
import gguf_files as gf
import tiny
from gguf_writing import write_out
from llmgen.errors import LLMGenError, UnsupportedModelError, UsageError
from llmgen.gguf import GGMLType, GGUFFile
from llmgen.quantize import MIXES, mix_named, quantize


def made(source: Path, mix: str, out: Path, **options: Any) -> Path:
    with GGUFFile.open(source) as file:
        quantize(file, mix_named(mix), out, **options)
    return out


def values(path: Path, name: str) -> np.ndarray:
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def wide(path: Path, *, weights: Callable[[], np.ndarray] | None = None, **options: Any) -> Path:
    """A model with one matrix whose rows are whole superblocks."""
    rng = np.random.default_rng(4)
    matrix = (weights or (lambda: rng.standard_normal((64, 512)).astype(np.float32)))()
    return tiny.write(path, tensors={"blk.0.extra.weight": matrix}, **options)


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_gives_a_file_that_other_programs_read(mix: str, tmp_path: Path) -> None:
    source = wide(tmp_path / "source.gguf")
    out = made(source, mix, tmp_path / "out.gguf", n_threads=2)
    name = "blk.0.extra.weight"
    before, after = values(source, name), values(out, name)
    worst = {"TQ1_0": 1.0, "TQ2_0": 1.0, "Q2_K": 0.3, "Q3_K": 0.16, "F32": 1e-9, "F16": 1e-3, "BF16": 5e-3}
    kind = mix.removesuffix("_S").removesuffix("_M").removesuffix("_L")
    error = float(np.sqrt(np.square(after - before).mean() / np.square(before).mean()))
    assert error < worst.get(kind, 0.1)
    with GGUFFile.open(out) as file:
        assert file.metadata["general.file_type"] == MIXES[mix].file_type
        assert file.metadata["general.quantization_version"] == 2


def test_types_of_the_gguf_package_are_its_bytes(tmp_path: Path) -> None:
    source = wide(tmp_path / "source.gguf")
    for kind in ("Q8_0", "Q5_0", "Q4_1"):
        out = made(source, kind, tmp_path / f"{kind}.gguf")
        with GGUFFile.open(out) as file:
            found = file.tensors["blk.0.extra.weight"].data
        wanted = gguf.quants.quantize(values(source, "blk.0.extra.weight"), gguf.GGMLQuantizationType[kind])
        np.testing.assert_array_equal(found, wanted.reshape(-1))


def test_metadata_are_carried_over_byte_for_byte(tmp_path: Path) -> None:
    """All but the file type: odd types, empty arrays, arrays of arrays, text that is not UTF-8, in their order."""
    inner = [gf.array(gf.U8, [1, 2]), gf.array(gf.U8, [])]
    pairs = [
        gf.pair("general.architecture", gf.STRING, "llama"),
        gf.pair("general.file_type", gf.U32, 0),
        gf.pair("a.text", gf.STRING, b"\xff\xfe not utf-8"),
        gf.pair("a.empty", gf.ARRAY, gf.array(gf.STRING, [])),
        gf.pair("a.nested", gf.ARRAY, gf.array(gf.ARRAY, inner)),
        gf.pair("a.small", gf.I8, -3),
        gf.pair("a.long", gf.U64, 2**63),
        gf.pair("a.flags", gf.ARRAY, gf.array(gf.BOOL, [True, False])),
        gf.pair("a.doubles", gf.ARRAY, gf.array(gf.F64, [1e300])),
    ]
    spec = gf.Spec(pairs=pairs, tensors=[gf.tensor("w.weight", [32, 2], 0, 0)], data=bytes(256))
    source = tmp_path / "source.gguf"
    source.write_bytes(spec.to_bytes())
    made(source, "Q8_0", tmp_path / "out.gguf")
    raw = (tmp_path / "out.gguf").read_bytes()
    expected = [*pairs, gf.pair("general.quantization_version", gf.U32, 2)]
    expected[1] = gf.pair("general.file_type", gf.U32, 7)
    assert raw[24:].startswith(b"".join(expected))


def test_names_of_types_and_files(tmp_path: Path) -> None:
    with GGUFFile.open(tiny.write(tmp_path / "source.gguf")) as file:
        written = quantize(file, "q4_k", str(tmp_path / "out.gguf"))
        assert (written.plan.mix, written.path) == (MIXES["Q4_K_M"], tmp_path / "out.gguf")
        with pytest.raises(UsageError, match="no type 'Q4_X'"):
            quantize(file, "Q4_X", tmp_path / "no.gguf")
        with pytest.raises(UsageError, match="the new file must be given as a text or a path"):
            quantize(file, "Q4_0", 3)  # type: ignore[arg-type]


def test_parts_become_one_file(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    weights = {f"blk.{i}.w.weight": np.full((4, 32), i + 1, np.float32) for i in range(5)}
    for name, array in weights.items():
        writer.add_tensor(name, array)
    write_out(writer)
    first = tmp_path / "m-00001-of-00003.gguf"
    with pytest.raises(UsageError, match="the model itself"):
        made(first, "Q8_0", tmp_path / "m-00002-of-00003.gguf", overwrite=True)
    made(first, "Q8_0", tmp_path / "out.gguf")
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        assert not [key for key in file.metadata if key.startswith("split.")]
        assert list(file.tensors) == list(weights)
    for name, array in weights.items():
        np.testing.assert_allclose(values(tmp_path / "out.gguf", name), array, rtol=1e-2)


def test_the_alignment_is_kept(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "source.gguf", "llama")
    writer.add_custom_alignment(256)
    for i in range(3):
        writer.add_tensor(f"w{i}.weight", np.full((3, 32), i, np.float32))
    write_out(writer)
    out = made(tmp_path / "source.gguf", "Q4_0", tmp_path / "out.gguf")
    reader = gguf.GGUFReader(out)
    assert reader.alignment == 256
    assert [int(t.data_offset) % 256 for t in reader.tensors] == [0, 0, 0]
    assert out.stat().st_size % 256 == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mix", ["Q4_K", "Q8_0", "F16", "F32"])
def test_weights_that_are_no_numbers_name_the_tensor(mix: str, value: float, tmp_path: Path) -> None:
    def weights() -> np.ndarray:
        array = np.ones((4, 512), np.float32)
        array[3, 511] = value
        return array

    source = wide(tmp_path / "source.gguf", weights=weights)
    with pytest.raises(
        UnsupportedModelError, match=r"'blk\.0\.extra\.weight' has weights that are NaN or inf"
    ):
        made(source, mix, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == ["source.gguf"]


@pytest.mark.parametrize("mix", ["F16", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "Q2_K"])
def test_weights_too_large_for_the_type_are_refused(mix: str, tmp_path: Path) -> None:
    source = wide(tmp_path / "source.gguf", weights=lambda: np.full((4, 512), 3e38, np.float32))
    with pytest.raises(
        UnsupportedModelError, match=r"'blk\.0\.extra\.weight' has a weight of 3e\+38, .* BF16"
    ):
        made(source, mix, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == ["source.gguf"]
    made(source, "BF16", tmp_path / "out.gguf")


@pytest.mark.parametrize("mix", ["F16", "Q8_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_XS", "TQ2_0"])
def test_weights_too_small_for_the_type_are_counted(mix: str, tmp_path: Path) -> None:
    """Rows whose scale half precision rounds to 0; single small weights beside larger ones do not count."""

    def weights() -> np.ndarray:
        array = np.random.default_rng(5).standard_normal((8, 512)).astype(np.float32)
        array[0, ::2] = 1e-9
        array[2:4] *= np.float32(1e-9)
        return array

    source = wide(tmp_path / "source.gguf", weights=weights)
    with GGUFFile.open(source) as file:
        written = quantize(file, mix_named(mix), tmp_path / "out.gguf")
    assert written.lost == {"blk.0.extra.weight": 0.25}


def test_a_large_block_is_not_lost_beside_one_that_is_not(tmp_path: Path) -> None:
    """Whose sums of squares overflow in the quantizer, and which would become zeros."""

    def weights() -> np.ndarray:
        array = np.ones((4, 512), np.float32)
        array[1, :256] = -1e19
        return array

    source = wide(tmp_path / "source.gguf", weights=weights)
    with pytest.raises(UnsupportedModelError, match=r"has a weight of -1e\+19, which is too large for Q6_K"):
        made(source, "Q6_K", tmp_path / "out.gguf")


def test_weights_of_64_bits_beyond_float32(tmp_path: Path) -> None:
    matrices = {f"blk.{i}.w.weight": np.full((4, 256), 10.0**e) for i, e in enumerate((0, -60, 60))}

    def source(*names: str) -> Path:
        writer = gguf.GGUFWriter(tmp_path / "source.gguf", "llama")
        for name in names:
            writer.add_tensor(name, matrices[name])
        write_out(writer)
        return tmp_path / "source.gguf"

    with GGUFFile.open(source("blk.0.w.weight", "blk.1.w.weight")) as file:
        assert quantize(file, "F32", tmp_path / "out.gguf").lost == {"blk.1.w.weight": 1}
    with pytest.raises(UnsupportedModelError, match=r"a weight of 1e\+60, .* for F32; no type .* has room"):
        made(source("blk.2.w.weight"), "F32", tmp_path / "no.gguf")


def test_the_model_itself_is_never_written(tmp_path: Path) -> None:
    source = tiny.write(tmp_path / "source.gguf")
    content = source.read_bytes()
    os.link(source, tmp_path / "hard.gguf")
    (tmp_path / "soft.gguf").symlink_to(source)
    for name in ("source.gguf", "hard.gguf", "soft.gguf", "../" + tmp_path.name + "/source.gguf"):
        with pytest.raises(UsageError, match="the model itself"):
            made(source, "Q8_0", tmp_path / name, overwrite=True)
    with pytest.raises(UsageError, match="the model itself"):
        made(tmp_path / "soft.gguf", "Q8_0", source, overwrite=True)
    assert source.read_bytes() == content


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_pipe_or_device_is_not_replaced(tmp_path: Path) -> None:
    source, pipe = tiny.write(tmp_path / "source.gguf"), tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for target in (pipe, tmp_path / "link"):
        with pytest.raises(UsageError, match="is a pipe or a device"):
            made(source, "Q8_0", target, overwrite=True)
    assert pipe.is_fifo()


def test_targets_that_are_there(tmp_path: Path) -> None:
    source, out = tiny.write(tmp_path / "source.gguf"), tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists already.*--force"):
        made(source, "Q8_0", out)
    assert out.read_bytes() == b"mine"
    made(source, "Q8_0", out, overwrite=True)
    assert out.read_bytes().startswith(b"GGUF")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="exists already"):
        made(source, "Q8_0", tmp_path / "dangling")
    with pytest.raises(UsageError, match="is a folder"):
        made(source, "Q8_0", tmp_path, overwrite=True)
    with pytest.raises(UsageError, match="does not exist; make it"):
        made(source, "Q8_0", tmp_path / "no" / "out.gguf")
    with pytest.raises(UsageError, match=r"source\.gguf is not a folder"):
        made(source, "Q8_0", source / "out.gguf")
    with pytest.raises(LLMGenError, match=r"could not be written: File name too long"):
        made(source, "Q8_0", tmp_path / ("x" * 300), done=lambda *_: pytest.fail("found out too late"))


def test_a_file_that_another_program_writes_meanwhile_stays(tmp_path: Path) -> None:
    source, out = tiny.write(tmp_path / "source.gguf"), tmp_path / "out.gguf"
    with pytest.raises(UsageError, match="exists already"):
        made(source, "Q8_0", out, done=lambda *_: out.write_bytes(b"theirs"))
    assert out.read_bytes() == b"theirs"
    assert sorted(os.listdir(tmp_path)) == ["out.gguf", "source.gguf"]


def test_a_disk_with_too_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny.write(tmp_path / "source.gguf")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(LLMGenError, match="the disk has 1,000 bytes free"):
        made(source, "Q8_0", tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == ["source.gguf"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    source = tiny.write(tmp_path / "source.gguf")

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(source, "Q8_0", tmp_path / "out.gguf", done=fail)
    assert os.listdir(tmp_path) == ["source.gguf"]


def test_the_same_bytes_whatever_the_threads(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    source = wide(tmp_path / "s.gguf", weights=lambda: rng.standard_normal((5000, 512)).astype(np.float32))
    files = [made(source, "Q4_K", tmp_path / f"{n}.gguf", n_threads=n).read_bytes() for n in (1, 3)]
    assert files[0] == files[1]


def test_copied_tensors_and_done(tmp_path: Path) -> None:
    """Vectors and tensors that have the type already are copied; progress ends at the last weight."""
    source = made(tiny.write(tmp_path / "source.gguf"), "Q8_0", tmp_path / "q8.gguf")
    seen: list[tuple[int, int]] = []
    with GGUFFile.open(source) as file:
        done = quantize(file, mix_named("Q8_0"), tmp_path / "again.gguf", done=lambda *a: seen.append(a))
        total = sum(t.n_elements for t in file.tensors.values())
    assert not done.errors
    assert done.error == 0
    assert seen[-1] == (total, total)
    assert (tmp_path / "again.gguf").read_bytes() == source.read_bytes()


def test_a_file_without_tensors(tmp_path: Path) -> None:
    source = tmp_path / "empty.gguf"
    source.write_bytes(
        gf.Spec(pairs=[gf.pair("general.architecture", gf.STRING, "llama")], tensors=[]).to_bytes()
    )
    with pytest.raises(UnsupportedModelError, match="no tensors"):
        made(source, "Q8_0", tmp_path / "out.gguf")


def test_ids_are_copied_and_odd_types_named(tmp_path: Path) -> None:
    """Tensors of whole numbers stay; the types of activations cannot be converted."""
    pairs = [gf.pair("general.architecture", gf.STRING, "llama")]
    tensors = [gf.tensor("ids.weight", [32, 2], int(GGMLType.I32), 0)]
    (tmp_path / "ids.gguf").write_bytes(
        gf.Spec(pairs=pairs, tensors=tensors, data=bytes(range(256))).to_bytes()
    )
    made(tmp_path / "ids.gguf", "Q8_0", tmp_path / "out.gguf")
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        assert file.tensors["ids.weight"].type is GGMLType.I32
        assert bytes(file.tensors["ids.weight"].data) == bytes(range(256))
    tensors = [gf.tensor("w.weight", [32, 2], int(GGMLType.Q8_1), 0)]
    (tmp_path / "q8_1.gguf").write_bytes(gf.Spec(pairs=pairs, tensors=tensors, data=bytes(256)).to_bytes())
    with pytest.raises(UnsupportedModelError, match=r"'w\.weight' has the type Q8_1"):
        made(tmp_path / "q8_1.gguf", "Q4_0", tmp_path / "no.gguf")


def fp4(path: Path, factors: dict[str, np.ndarray]) -> Path:
    """A file with a matrix and a mixture of two experts in NVFP4, and factors of them."""
    writer = gguf.GGUFWriter(path, "llama")
    rng = np.random.default_rng(3)
    for name, shape in (("output.weight", (2, 128)), ("blk.0.ffn_up_exps.weight", (2, 4, 128))):
        blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // 64, 36), dtype=np.uint8)
        blocks[..., :4] = 0x18  # the scales of 16 values each: 8-bit floats
        writer.add_tensor(name, blocks.reshape(*shape[:-1], -1), raw_dtype=gguf.GGMLQuantizationType.NVFP4)
    for name, values in factors.items():
        writer.add_tensor(name, values)
    write_out(writer)
    return path


def test_weights_that_leave_nvfp4_take_their_factors_along(tmp_path: Path) -> None:
    """llama.cpp and llmgen read the factor of an output, and those of activations, beside NVFP4 only."""
    factors = {
        "output.scale": np.array([3], np.float32),
        "output.input_scale": np.array([7], np.float32),
        "blk.0.ffn_up_exps.scale": np.array([2, 5], np.float32),
        "blk.0.attn_norm.weight": np.ones(128, np.float32),
        "blk.0.attn_q.scale": np.array([9], np.float32),  # of a matrix in another type, or of none
    }
    source = fp4(tmp_path / "source.gguf", factors)
    out = made(source, "F32", tmp_path / "out.gguf")
    with GGUFFile.open(out) as file:
        assert sorted(file.tensors) == [
            "blk.0.attn_norm.weight",
            "blk.0.attn_q.scale",
            "blk.0.ffn_up_exps.weight",
            "output.weight",
        ]
    np.testing.assert_array_equal(values(out, "output.weight"), 3 * values(source, "output.weight"))
    experts = "blk.0.ffn_up_exps.weight"
    expected = values(source, experts) * np.array([2, 5], np.float32)[:, None, None]
    np.testing.assert_array_equal(values(out, experts), expected)


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (np.ones(3, np.float32), "'output.scale' has 3 values in F32, expected 1 in F32"),
        (np.ones(1, np.int32), "'output.scale' has 1 values in I32"),
        (np.full(1, np.nan, np.float32), "'output.weight' has weights that are NaN"),
    ],
)
def test_factors_that_make_no_sense(factor: np.ndarray, says: str, tmp_path: Path) -> None:
    source = fp4(tmp_path / "source.gguf", {"output.scale": factor})
    with pytest.raises(UnsupportedModelError, match=says):
        made(source, "Q8_0", tmp_path / "out.gguf")
