"""How generated tokens attend: what a plan may be, that only a local window changes results, and where that is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from archs import build_arch
from engines import engine, one_by_one
from llmgen import DecodeConfig
from llmgen.errors import LLMGenError, UsageError
from llmgen.model.decode_config import RULE, DecodePlan, Reading
from llmgen.model.runs import Part
from program import llmgen, refused

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 90, 150)]


def test_plans() -> None:
    assert DecodeConfig.of("none").resolved == DecodePlan((Reading(1),))
    assert DecodeConfig("fixed", 3, 100).resolved == DecodePlan((Reading(3),), local_window=100)
    auto = DecodeConfig.of("auto").resolved
    assert auto == DecodePlan((RULE,) * 3, (512, 2048), adapts=True)
    assert [auto.bucket(n) for n in (1, 512, 513, 2048, 2049, 10**6)] == [0, 0, 1, 1, 2, 2]
    assert DecodeConfig(buckets=(7,)).resolved == DecodePlan((RULE,) * 2, (7,), adapts=True)
    numpys = DecodeConfig(buckets=[np.int64(7)])  # type: ignore[list-item]
    assert numpys == DecodeConfig(buckets=(7,))
    assert type(DecodeConfig("fixed", np.int32(3)).q_chunk) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"plan": "fast"}, "the decode plan is 'fast', expected none, auto or fixed"),
        ({"q_chunk": 2}, "--decode-q-chunk goes with --decode-plan fixed"),
        ({"plan": "none", "local_window": 9}, "--decode-local-window goes with --decode-plan fixed"),
        (
            {"plan": "fixed", "q_chunk": 9},
            r"q_chunk \(--decode-q-chunk\) must be a whole number from 1 to 8, not 9",
        ),
        ({"plan": "fixed", "q_chunk": True}, "q_chunk .* must be"),
        ({"plan": "fixed", "local_window": 0}, "local_window .* must be a whole number from 1"),
        ({"plan": "none", "buckets": (5,)}, "--decode-buckets goes with --decode-plan auto"),
        *(
            ({"buckets": wrong}, "buckets must be up to 8 context lengths")
            for wrong in ((), (0, 5), (5, 5), (9, 5))
        ),
        ({"buckets": (9, 5)}, r"each longer than the one before, not 9,5 \(--decode-buckets\)"),
        *(
            ({"buckets": wrong}, "each longer than the one before")
            for wrong in (5, "5", (5.0,), (True,), tuple(range(1, 10)))
        ),
    ],
)
def test_wrong_plans_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        DecodeConfig(**wrong)


@pytest.mark.parametrize("plan", ["none", "auto", DecodeConfig("fixed", 3)])
def test_tokens_that_attend_together_give_the_same_logits(plan: str | DecodeConfig) -> None:
    with engine(build_arch("llama-dense"), n_threads=2, decode_plan=plan) as model:
        alone, together = model.new_sequence(), model.new_sequence()
        for seq in (alone, together):
            model.prefill(seq, IDS[:125], logits="none")
        expected = one_by_one(model, alone, IDS[125:])
        rows = [
            model.forward([Part(together, IDS[first : first + 5], 5)], "generated")
            for first in range(125, 150, 5)
        ]
        np.testing.assert_array_equal(np.concatenate(rows), expected)


def test_a_local_window_is_exact_until_keys_are_left_out() -> None:
    path, start = build_arch("llama-dense"), 20
    with engine(path) as model:
        seq = model.new_sequence()
        model.prefill(seq, IDS[:start], logits="none")
        exact = one_by_one(model, seq, IDS[start:])
    with engine(path, decode_plan=DecodeConfig("fixed", local_window=32)) as model:
        seq = model.new_sequence()
        model.prefill(seq, IDS[:start], logits="none")
        ours = one_by_one(model, seq, IDS[start:])
    same = (ours == exact).all(axis=1)
    assert same[: 64 + 32 - start].all()  # the first 64 keys and the last 32 are all there are
    assert not same[64 + 32 - start :].any()


def test_a_prompt_does_not_know_of_a_local_window_and_a_cache_does(tmp_path: Path) -> None:
    path, cache = build_arch("llama-dense"), tmp_path / "cache"
    with engine(path) as model:
        seq = model.new_sequence()
        expected = model.prefill(seq, IDS, logits="all")
        model.save_sequence(cache, seq, IDS, len(IDS))
    with engine(path, decode_plan=DecodeConfig("fixed", local_window=32)) as model:
        np.testing.assert_array_equal(model.prefill(model.new_sequence(), IDS, logits="all"), expected)
        with pytest.raises(LLMGenError, match="saw all keys, .* see the last 32 keys and the first few"):
            model.load_sequence(cache, model.new_sequence())


@pytest.mark.parametrize("name", ["deepseek2-moe", "mamba-dense"])
def test_models_whose_attention_has_no_local_window_refuse_one(name: str) -> None:
    with pytest.raises(
        UsageError, match="on which a local window has no effect; leave --decode-local-window out"
    ):
        with engine(build_arch(name), decode_plan=DecodeConfig("fixed", local_window=32)):
            pass


def test_a_local_window_is_told(tmp_path: Path) -> None:
    model = str(tiny.write(tmp_path / "tiny.gguf"))
    options = ("--raw", "-n", "3", "--temp", "0", "-c", "128", "-t", "1", "--json")
    local = ("--decode-plan", "fixed", "--decode-local-window", "16")
    done = llmgen("run", model, "ab" * 50, *options, *local)
    assert done.returncode == 0, done.stderr
    assert "note: generated tokens see only the first 64 keys and the last 16" in done.stderr
    assert json.loads(done.stdout)["decode_local_window"] == 16
    plain = llmgen("run", model, "ab" * 50, *options, "--decode-plan", "none")
    assert "decode_local_window" not in json.loads(plain.stdout)
    assert "see only" not in plain.stderr
    says = refused(llmgen("run", model, "a", "--decode-q-chunk", "2"), 2)
    assert "--decode-q-chunk goes with --decode-plan fixed" in says
