"""Files that read well and are no model: each is refused in one sentence, or runs; never anything else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
import variants
from archs import build_variant
from llmgen.backends.cpu.dry_run import dry_run
from llmgen.backends.cpu.model import Model
from llmgen.errors import UnsupportedModelError
from llmgen.gguf import GGUFFile
from llmgen.model.archs import read_model
from llmgen.model.keys import Keys
from llmgen.model.weights import Weights

NAN = float("nan")
EPS, BASE = "attention.layer_norm_rms_epsilon", "rope.freq_base"


def u32(key: str, value: int) -> dict[str, Any]:
    return {"keys": {key: ("uint32", value)}}


def tensor(name: str, change: Any) -> dict[str, Any]:
    return {"tensors": {name: change}}


def extra(*names: str) -> dict[str, Any]:
    return {"tensors": {name: np.ones(32, np.float32) for name in names}}


def experts(count: int, used: int, **more: int) -> dict[str, Any]:
    named = {"expert_count": count, "expert_used_count": used}
    named |= {f"expert_{key}_count": value for key, value in more.items()}
    return {"keys": {key: ("uint32", value) for key, value in named.items()}}


def yarn(**more: float) -> dict[str, Any]:
    base = {BASE: ("float32", more.pop("base"))} if "base" in more else {}
    named = {f"rope.scaling.yarn_{key}": ("float32", value) for key, value in more.items()}
    return {"keys": {**tiny.YARN, **base, **named}, "architecture": "mistral3"}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no heads": (u32("attention.head_count", 0), "head_count is 0"),
    "heads that do not divide": (u32("attention.head_count_kv", 3), "a divisor of the 2 heads"),
    "negative": ({"keys": {"block_count": ("int32", -2)}}, "block_count is -2"),
    "text": ({"keys": {EPS: ("string", "1e-5")}}, "'1e-5'"),
    "NaN": ({"keys": {EPS: ("float32", NAN)}}, "epsilon is nan"),
    "no layers": (u32("block_count", 0), "block_count is 0"),
    "more layers than tensors": (u32("block_count", 4000), r"no tensor blk\.2\."),
    "no context": (u32("context_length", 0), "context_length is 0"),
    "an endless context": (u32("context_length", 2**32 - 1), "context_length is 4294967295"),
    "a missing key": ({"keys": {"context_length": None}}, "missing"),
    "odd rotation": (u32("rope.dimension_count", 15), "an even number"),
    "huge rotation": (u32("rope.dimension_count", 2**31), "dimension_count is"),
    "a width beyond all": (u32("embedding_length", 2**31), "embedding_length is"),
    "a base that does not turn": (yarn(base=1.0), "no rotary positions follow"),
    "a ramp without a start": (yarn(beta_fast=0.0), "no rotary positions follow"),
    "an infinite base": ({"keys": {BASE: ("float32", float("inf"))}}, "freq_base is inf"),
    "an unknown architecture": ({"architecture": "ll\x1b[2Jama"}, "is not supported"),
    "an unknown scaling": ({"keys": {"rope.scaling.type": ("string", "foo")}}, "expected none, linear"),
    "no embedding": ({"drop": ["token_embd.weight"]}, "no token_embd.weight matrix"),
    "a flat embedding": (tensor("token_embd.weight", np.ones(64, np.float32)), "no token_embd.weight matrix"),
    "more tokens than rows": (tensor("token_embd.weight", lambda x: x[:-1]), "has 262 rows.* 263 tokens"),
    "a missing tensor": ({"drop": ["blk.1.attn_q.weight"]}, r"no tensor blk\.1\.attn_q"),
    "a turned matrix": (tensor("blk.0.attn_q.weight", np.ones((64, 32), np.float32)), "has the shape"),
    "a norm with two axes": (tensor("blk.0.attn_norm.weight", np.ones((32, 2), np.float32)), "has the shape"),
    "a short norm": (tensor("blk.0.attn_norm.weight", lambda x: x[:-1]), "has the shape"),
    "whole numbers": (tensor("blk.0.ffn_up.weight", lambda x: x.astype(np.int32)), "cannot multiply by"),
    "causal in words": ({"keys": {"attention.causal": ("string", "no")}}, "causal is 'no', expected True"),
    "an encoder": ({"keys": {"attention.causal": ("bool", False)}}, "causal is False, expected True"),
    "an epsilon above 1": ({"keys": {EPS: ("float32", 2.0)}}, "is 2.0, expected a finite number from 0 to 1"),
    "a truth value as a base": (
        {"keys": {BASE: ("bool", True)}},
        "is True, expected a finite number of at least",
    ),
    "a scaling of several": (
        {"keys": {"rope.scaling.type": ("array", ["yarn", "linear"])}},
        "scaling.type is an array of 2 values, expected none, linear, yarn or longrope",
    ),
    "another hidden width": (
        u32("feed_forward_length", 128),
        r"ffn_gate.weight has the shape \[32, 64\].*metadata",
    ),
    "no hidden width": ({"keys": {"feed_forward_length": None}}, "feed_forward_length is missing"),
    "experts in a number of words": (
        {"keys": {"expert_count": ("string", "4")}},
        "expert_count is '4', expected a whole",
    ),
    "experts of which none is used": (
        u32("expert_count", 4),
        "used_count is missing, expected .* the 4 experts",
    ),
    "fewer experts than are used": (
        experts(2, 3),
        "used_count is 3, expected a number from 1 to the 2 experts",
    ),
    "experts over dense tensors": (experts(4, 2), "no tensor blk.0.ffn_gate_inp.weight"),
    "a mixture without experts": ({"architecture": "qwen3moe"}, "qwen3moe.expert_count is missing"),
    "experts' tensors": (
        extra("blk.0.ffn_up_exps.weight"),
        r"does not read 1 tensor.*blk.0.ffn_up_exps.weight",
    ),
    "groups that are no groups": (experts(8, 2, group=3), "group_count is 3, expected a divisor of 8"),
    "groups of one": (experts(8, 2, group=8), "group_count is 8, expected a divisor of 8 with two"),
    "groups of which none is used": (experts(8, 2, group=4), "group_used_count is missing"),
    "groups with too few": (experts(8, 3, group=4, group_used=1), "expected groups with 3 experts together"),
    "a mixture of a dense architecture": (
        {"architecture": "internlm2", "keys": {"expert_count": ("uint32", 8), "attention.head_count": None}},
        "mixture of experts .internlm2 with expert_count 8",
    ),
    "experts' tensors of a dense architecture": (
        {"architecture": "internlm2", **extra("blk.0.ffn_up_exps.weight")},
        "with the tensor blk.0.ffn_up_exps.weight",
    ),
    "an architecture with other keys": (
        {"architecture": "rwkv6", "keys": {"attention.head_count": ("uint32", 0)}},
        r"architecture 'rwkv6' is not supported; use a model of another one.*docs/architectures.md lists all \d+",
    ),
    "an architecture with neighbours": ({"architecture": "qwen2v"}, "qwen2vl, qwen2.* are nearest in name"),
    "fewer layers than tensors": (
        u32("block_count", 1),
        r"block_count is 1, but the file has more blocks \(blk.1.attn_norm.weight, .* and 3 more\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_a_model_is_refused(name: str, tmp_path: Path) -> None:
    """Before any kernel is compiled, and by ``inspect`` as by ``run``."""
    changes, says = WRONG[name]
    with GGUFFile.open(tiny.write(tmp_path / "wrong.gguf", **changes)) as file:
        for load in (dry_run, lambda f: Model.load(f, n_threads=1)):
            with pytest.raises(UnsupportedModelError, match=says) as caught:
                load(file)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "names",
    [
        ("foo.weight",),
        ("blk.0.attn_q_norm.weight", "blk.1.attn_q_norm.weight"),
        ("output_norm.bias",),
        ("blk.0.attn_sinks.weight",),
        ("blk.1.ffn_norm.bias", "blk.1.attn_rot_embd", "token_embd_norm.weight"),
        ("rope_factors_long.weight", "rope_factors_short.weight"),  # of a file whose scaling is another
    ],
)
def test_tensors_that_are_not_read_are_refused_by_name(names: tuple[str, ...], tmp_path: Path) -> None:
    with GGUFFile.open(tiny.write(tmp_path / "more.gguf", **extra(*names))) as file:
        for load in (dry_run, lambda f: Model.load(f, n_threads=1)):
            with pytest.raises(
                UnsupportedModelError, match="does not read .*answers would be wrong"
            ) as caught:
                load(file)
            assert ", ".join(names) in str(caught.value)


@pytest.mark.parametrize("n_ctx", [64, 128])
def test_long_and_short_factors_are_both_expected(n_ctx: int, tmp_path: Path) -> None:
    """One of them is used, as the context says; both belong to the model, and are checked."""
    keys: dict[str, Any] = {
        "rope.scaling.type": ("string", "longrope"),
        "rope.scaling.original_context_length": ("uint32", 64),
    }
    factors = {f"rope_factors_{which}.weight": np.ones(8, np.float32) for which in ("long", "short")}
    with GGUFFile.open(tiny.write(tmp_path / "long.gguf", keys, factors)) as file:
        dry_run(file, n_ctx=n_ctx)
    factors["rope_factors_long.weight"] = np.ones(7, np.float32)
    with GGUFFile.open(tiny.write(tmp_path / "short.gguf", keys, factors)) as file:
        with pytest.raises(UnsupportedModelError, match=r"rope_factors_long.weight has the shape \[7\]"):
            dry_run(file, n_ctx=n_ctx)


@pytest.mark.parametrize("pattern", [[[1, 0], [0, 1]], ["a", "b"], [0.5, 1.5], "every second"])
def test_a_window_pattern_of_no_flags_is_refused(pattern: Any, tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "attention.sliding_window": ("uint32", 32),
        "attention.sliding_window_pattern": ("string" if isinstance(pattern, str) else "array", pattern),
    }
    with GGUFFile.open(tiny.write(tmp_path / "odd.gguf", keys, architecture="gemma2")) as file:
        with pytest.raises(
            UnsupportedModelError, match="sliding_window_pattern is .*, expected a whole number"
        ):
            dry_run(file)


def test_local_layers_that_turn_another_part_of_the_head_are_refused(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "attention.sliding_window": ("uint32", 32),
        "rope.dimension_count_swa": ("uint32", 8),
    }
    with GGUFFile.open(tiny.write(tmp_path / "odd.gguf", keys, architecture="gemma2")) as file:
        with pytest.raises(
            UnsupportedModelError, match="dimension_count_swa is 8, expected 16 as in the other"
        ):
            dry_run(file)


ODD: list[tuple[str, Any]] = [
    ("string", ""),
    ("string", "x" * 100_000 + "\x1b\n"),
    ("bool", True),
    ("float32", NAN),
    ("float64", -1e300),
    ("uint64", 2**64 - 1),
    ("int64", -(2**63)),
    ("array", [[1, 0], [0, 1]]),
    ("array", ["a", "b"]),
    ("array", [1, 2, 3]),
    ("array", [0.5, NAN]),
]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "attention.sliding_window_pattern",
            [1, 0, 1, 1, 0],
            "a layer with the window and one without before layer 3",
        ),
        (
            "attention.head_count_kv",
            [2, 2, 1, 1, 1],
            r"head_count_kv is 1, expected 2 in layer 3, which shares them",
        ),
        ("attention.value_length_swa", 24, "value_length_swa is 24, expected 16"),
        ("attention.shared_kv_layers", 5, "shared_kv_layers is 5, expected a whole number from 0 to 4"),
        ("rope.dimension_count_swa", 18, "an even number up to the head's 16"),
    ],
)
def test_layers_of_gemma_4_that_do_not_fit_together_are_refused(key: str, value: Any, message: str) -> None:
    kind: Any = ["ARRAY", "UINT32"] if isinstance(value, list) else "UINT32"
    path = build_variant("gemma4-dense", f"wrong-{key}", set_keys={key: (kind, value)})
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedModelError, match=message):
        read_model(file)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "mistral3", "stablelm", "qwen2moe"])
def test_no_key_of_any_type_ends_in_more_than_a_sentence(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()
    get = Keys.get
    monkeypatch.setattr(Keys, "get", lambda self, key: asked.add(key) or get(self, key))
    base = {
        "attention.sliding_window": ("uint32", 32),
        "attention.layer_norm_epsilon": ("float32", 1e-5),
        **(
            {"expert_count": ("uint32", 4), "expert_used_count": ("uint32", 2)}
            if "moe" in architecture
            else {}
        ),
    }
    with GGUFFile.open(tiny.write(tmp_path / "good.gguf", base, architecture=architecture)) as file:
        read_model(file)
    assert len(asked) > 15
    for key in sorted(asked):
        for odd in ODD:
            path = tiny.write(tmp_path / "odd.gguf", {**base, key: odd}, architecture=architecture)
            with GGUFFile.open(path) as file, suppress(UnsupportedModelError):
                read_model(file)


@pytest.mark.parametrize("value", [0.0, -0.0, NAN])
def test_frequency_factors_that_are_none(value: float, tmp_path: Path) -> None:
    from llmgen.model.rope import Rope, RopeScaling

    with pytest.raises(UnsupportedModelError, match="no rotary positions follow"):
        Rope.of(16, 1e4, False, RopeScaling(), np.full(8, value))


def test_what_is_only_unusual_runs(tmp_path: Path) -> None:
    unusual: list[dict[str, Any]] = [
        tensor("blk.0.attn_norm.weight", lambda x: x.astype(np.float16)),
        tensor("token_embd.weight", lambda x: np.vstack([x, x])),  # more rows than tokens
        u32("rope.dimension_count", 0),
    ]
    for changes in unusual:
        with GGUFFile.open(tiny.write(tmp_path / "unusual.gguf", **changes)) as file:
            model = Model.load(file, n_ctx=64, n_threads=1)
            logits = model.prefill(model.new_sequence(), [1, 2, 3])
            assert logits is not None
            assert np.isfinite(logits).all()
            model.close()


def test_a_table_that_names_an_expert_that_is_not_there_is_refused() -> None:
    path, *_ = variants.deepseek4_long()
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedModelError, match=r"from 0 to 5; the file"):
        Weights(file).numbers("blk.0.ffn_gate_tid2eid", 128, 3, 6)


@pytest.mark.parametrize("name", ["attn_compressor_norm", "indexer_compressor_norm"])
def test_summaries_without_their_norm_are_refused(name: str) -> None:
    key = {"attention.indexer.top_k": ("UINT32", 6)}
    path = build_variant("deepseek4-moe", f"no-{name}", set_keys=key, drop_tensors=(f"{name}.weight",))
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedModelError, match=f"no tensor blk.2.{name}"):
        dry_run(file)


@pytest.mark.parametrize("name", ["ffn_gate_exps.weight", "ffn_gate_shexp.weight"])
def test_experts_without_a_gate_that_their_activation_needs_are_refused(name: str) -> None:
    path = build_variant("minimax-m3-moe", f"no-{name}", drop_tensors=(name,))
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedModelError, match=f"no tensor blk.1.{name}"):
        dry_run(file)
