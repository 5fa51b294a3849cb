"""Prompt cache files: the same logits after loading, refusals, damage of every kind."""

from __future__ import annotations

import io
import json
import os
import stat
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from archs import build_arch, build_variant
from engines import engine
from llmgen.backends.cpu.cache_file import VERSION
from llmgen.backends.cpu.model import Model
from llmgen.errors import LLMGenError

IDS = [int(i) for i in np.random.default_rng(5).integers(3, 90, 150)]


def stored(model: Model, path: Path, ids: list[int] = IDS) -> np.ndarray:
    """Save a prompt; the logits of a token after it."""
    seq = model.new_sequence()
    model.prefill(seq, ids, logits="none")
    model.save_sequence(path, seq, ids, len(ids))
    return model.decode([seq], [7])[0].copy()


@pytest.mark.parametrize(
    ("name", "kv_type"),
    [
        *(("llama-dense", "f16"), ("gemma3-dense", "f32"), ("gemma2-dense", "f16"), ("llama-dense", "q8_0")),
        *(("gemma3-dense", "k=q4_0,v=nf4"),),
    ],
)
def test_a_loaded_cache_gives_the_same_logits(tmp_path: Path, name: str, kv_type: str) -> None:
    path = tmp_path / "cache"
    with engine(build_arch(name), kv_type=kv_type) as model:
        expected = stored(model, path)
    with engine(build_arch(name), kv_type=kv_type) as model:
        seq = model.new_sequence()
        found = model.load_sequence(path, seq)
        assert (found.tokens, found.n_prompt, seq.length) == (IDS, len(IDS), len(IDS))
        np.testing.assert_array_equal(model.decode([seq], [7])[0], expected)
        seq.truncate(100)
    assert [p.name for p in tmp_path.iterdir()] == ["cache"]
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense", "mamba-dense"])
def test_a_cache_of_no_tokens(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cache"
    with engine(build_arch(name)) as model:
        empty = model.new_sequence()
        model.save_sequence(path, empty, [], 0)
        seq = model.new_sequence()
        found = model.load_sequence(path, seq)
        assert (found.tokens, found.n_prompt, seq.length) == ([], 0, 0)
        fresh = model.decode([model.new_sequence()], [7])[0].copy()
        np.testing.assert_array_equal(model.decode([seq], [7])[0], fresh)


def test_another_context_length_is_fine_as_long_as_it_fits(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with engine(build_arch("llama-dense")) as model:
        expected = stored(model, path)
    with engine(build_arch("llama-dense"), n_ctx=200) as model:
        seq = model.new_sequence()
        model.load_sequence(path, seq)
        np.testing.assert_array_equal(model.decode([seq], [7])[0], expected)
    with engine(build_arch("llama-dense"), n_ctx=100) as model:
        with pytest.raises(LLMGenError, match="150 tokens, and the context holds 100"):
            model.load_sequence(path, model.new_sequence())


def test_a_cache_that_was_rotated_for_another_context_is_refused(tmp_path: Path) -> None:
    """LongRoPE has one set of factors up to the trained context and one beyond it."""
    scaled = {
        "rope.scaling.type": ("STRING", "longrope"),
        "rope.scaling.original_context_length": ("UINT32", 200),
        "context_length": ("UINT32", 512),
    }
    reshaped = {"rope_factors_long.weight": [64], "rope_factors_short.weight": [64]}
    model_path = build_variant(
        *("llama-dense", "contexts"),
        set_keys=scaled,
        reshape=reshaped,
        drop_tensors=("rope_freqs.weight",),
    )
    path = tmp_path / "cache"
    with engine(model_path, n_ctx=200) as model:
        expected = stored(model, path)
    with engine(model_path, n_ctx=180) as model:  # the same factors
        seq = model.new_sequence()
        model.load_sequence(path, seq)
        np.testing.assert_array_equal(model.decode([seq], [7])[0], expected)
    with engine(model_path, n_ctx=256) as model:
        with pytest.raises(LLMGenError, match="rotated for a context of 200 tokens.*for one of 256"):
            model.load_sequence(path, model.new_sequence())


def test_a_cache_whose_positions_were_scaled_otherwise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with engine(build_arch("llama-dense"), rope_scaling="yarn:2") as model:
        expected = stored(model, path)
        seq = model.new_sequence()
        model.load_sequence(path, seq)
        np.testing.assert_array_equal(model.decode([seq], [7])[0], expected)
    for other in (None, "yarn:4", "linear:2"):
        with engine(build_arch("llama-dense"), rope_scaling=other) as model:
            expected_words = f"with the scaling yarn:2, and those of this run are with {other or 'none'} "
            with pytest.raises(LLMGenError, match=expected_words + r"\(--rope-scaling\)"):
                model.load_sequence(path, model.new_sequence())


def test_other_angles_for_no_known_reason_are_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with engine(build_arch("llama-dense")) as model:
        stored(model, path, IDS[:20])
        path.write_bytes(with_header(path.read_bytes(), {"rotations": "0" * 64}))
        with pytest.raises(LLMGenError, match="rotated by other angles .* as by another version of llmgen;"):
            model.load_sequence(path, model.new_sequence())


def test_other_models_types_and_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with engine(build_arch("llama-dense")) as model:
        stored(model, path)
        seq = model.new_sequence()
        data = bytearray(path.read_bytes())
        data[8] = VERSION + 1
        (tmp_path / "new").write_bytes(data)
        with pytest.raises(LLMGenError, match=f"version {VERSION + 1}, and this llmgen reads"):
            model.load_sequence(tmp_path / "new", seq)
        (tmp_path / "text").write_text("once upon a time, in a file far away")
        with pytest.raises(LLMGenError, match="not a prompt cache"):
            model.load_sequence(tmp_path / "text", seq)
        with pytest.raises(LLMGenError, match="cannot read"):
            model.load_sequence(tmp_path / "absent", seq)
        with pytest.raises(LLMGenError, match="cannot read"):
            model.load_sequence(tmp_path, seq)
        assert seq.length == 0
    with engine(build_arch("llama-dense"), kv_type="f16") as model:
        with pytest.raises(LLMGenError, match="KV type is f32, and this run's f16"):
            model.load_sequence(path, model.new_sequence())
    with engine(build_arch("llama-dense"), kv_type="k=q8_0,v=f16") as model:
        with pytest.raises(LLMGenError, match="this run's k=q8_0,v=f16"):
            model.load_sequence(path, model.new_sequence())
    for other in (build_arch("qwen2-dense"), build_arch("llama-dense", "f16")):
        with engine(other) as model:
            with pytest.raises(LLMGenError, match="made with another model"):
                model.load_sequence(path, model.new_sequence())


def test_damage_is_found_wherever_it_is(tmp_path: Path) -> None:
    path, bad = tmp_path / "cache", tmp_path / "bad"
    with engine(build_arch("llama-dense")) as model:
        stored(model, path, IDS[:20])
        data = path.read_bytes()
        seq = model.new_sequence()
        header = data[:600].rindex(b"}") + 1
        rng = np.random.default_rng(0)
        places = [*range(0, header, 3), *range(header, header + 80, 7), *rng.integers(header, len(data), 40)]
        for place in [*map(int, places), len(data) - 1]:
            changed = bytearray(data)
            changed[place] ^= 0x11
            bad.write_bytes(changed)
            with pytest.raises(LLMGenError) as caught:
                model.load_sequence(bad, seq)
            assert str(bad) in str(caught.value)
            assert seq.length == 0
        for size in (0, 5, 15, 16, 40, header, header + 3, header + 80, len(data) // 2, len(data) - 1):
            bad.write_bytes(data[:size])
            with pytest.raises(LLMGenError, match="damaged"):
                model.load_sequence(bad, seq)
        bad.write_bytes(data + b"x")
        with pytest.raises(LLMGenError, match="bytes, expected"):
            model.load_sequence(bad, seq)
        model.load_sequence(path, seq)
        assert seq.length == 20


def test_a_disk_that_fails_leaves_the_sequence_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.FileIO):
        def readinto(self, buffer: object) -> int:
            raise OSError(5, "Input/output error")

    with engine(build_arch("llama-dense")) as model:
        stored(model, tmp_path / "cache", IDS[:20])
        monkeypatch.setattr("llmgen.backends.cpu.cache_file.open", Failing, raising=False)
        seq = model.new_sequence()
        with pytest.raises(LLMGenError, match="Input/output error"):
            model.load_sequence(tmp_path / "cache", seq)
        assert seq.length == 0


HOSTILE = [
    {"n_tokens": 1 << 62, "reached": 1 << 62},
    {"n_tokens": -1},
    {"n_tokens": True},
    {"n_prompt": 9999},
    {"reached": 3},
    {"key_block": 0},
    {"layers": []},
    {"layers": [[1 << 60] * 4] * 2},
    {"layers": [None, None]},
    {"layers": 3},
    {"model": 5},
    {"rotations": "0", "rope_scaling": {"kind": 5}},
    {"checkpoints": [30]},
    {"checkpoints": [5, 5]},
    {"checkpoints": [5, 4]},
    {"checkpoints": [1 << 70]},
    {"checkpoints": ["5"]},
    {"checkpoints": 5},
]


def with_header(data: bytes, change: dict[str, object]) -> bytes:
    """A file with other entries in its header."""
    (n_bytes,) = struct.unpack_from("<I", data, 12)
    header = json.dumps(json.loads(data[16 : 16 + n_bytes]) | change).encode()
    return data[:12] + struct.pack("<I", len(header)) + header + data[16 + n_bytes :]


@pytest.mark.parametrize("change", HOSTILE)
def test_hostile_headers_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "cache"
    with engine(build_arch("llama-dense")) as model:
        stored(model, path, IDS[:20])
        path.write_bytes(with_header(path.read_bytes(), change))
        with pytest.raises(LLMGenError):
            model.load_sequence(path, model.new_sequence())


def test_a_file_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache"
    with engine(build_arch("llama-dense")) as model:
        stored(model, path, IDS[:20])
        before = path.read_bytes()

        def full(handle: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(LLMGenError, match=r"cannot write .* No space left"):
            stored(model, path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["cache"]
        with pytest.raises(LLMGenError, match="cannot write"):
            stored(model, tmp_path / "no" / "folder")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_bytes(b"old")
    with engine(build_arch("llama-dense")) as model:
        for name in ("folder", "pipe", "loop", "nowhere/cache"):
            with pytest.raises(LLMGenError, match=f"cannot write the prompt cache .*{name}"):
                stored(model, tmp_path / name)
        with pytest.raises(LLMGenError, match="pipe or a device"):
            model.load_sequence(tmp_path / "pipe", model.new_sequence())
        stored(model, tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert model.load_sequence(tmp_path / "target", model.new_sequence()).tokens == IDS
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
