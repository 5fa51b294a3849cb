"""The choice of a KV cache: what is measured, which gates there are, what is kept in a file and how long."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgen.engine import kv_plan
from llmgen.engine.kv_measure import Probe, Quality, compare, needle_rank, probe, step_seconds
from llmgen.engine.kv_plan import CANDIDATES, Candidate, Plan, check_passed, choose
from llmgen.engine.kv_plan_file import keep, kept, measuring_alone, plan_as_dict, plan_key
from llmgen.errors import LLMGenError, UsageError
from llmgen.files import try_folder_lock
from llmgen.model.kv_config import KVAutoConfig, KVCacheConfig

N_VOCAB = 50
F16, Q8, Q4 = (KVCacheConfig.of(kinds) for kinds in ("f16", "q8_0", "q4_0"))


class Sequence:
    def __init__(self) -> None:
        self.tokens: list[int] = []

    def stand_in(self, n: int) -> None:
        self.tokens = [0] * n

    def close(self) -> None: ...


class Model:
    """Logits are a function of the token before, plus an error in every even place."""

    max_prompt_tokens, max_outputs = 16, 8

    def __init__(self, error: float = 0.0, seconds: float = 0.0) -> None:
        self.error, self.seconds, self.lock = error, seconds, threading.RLock()
        self.runs: list[tuple[str, int]] = []

    def new_sequence(self) -> Sequence:
        return Sequence()

    def forward(self, parts: Any, role: str) -> np.ndarray:
        [(seq, ids, n_logits)] = parts
        self.runs.append((role, len(ids)))
        seq.tokens += ids
        rows = [np.random.default_rng(token).normal(0, 1, N_VOCAB) for token in ids[len(ids) - n_logits :]]
        out = np.array(rows, np.float32)
        out[:, ::2] += self.error
        return out


def by_hand(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, float]:
    """ln p of one row, and the KL divergence of another from it."""
    logs = [x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum()) for x in (p, q)]
    return logs[0], float((np.exp(logs[0]) * (logs[0] - logs[1])).sum())


def test_quality_is_what_its_formulas_say() -> None:
    ids = [int(i) for i in np.random.default_rng(1).integers(0, N_VOCAB, 44)]
    exact, other = Model(), Model(error=0.7)
    quality = compare(exact, other, ids, 4)  # type: ignore[arg-type]
    rows = [model.forward([(Sequence(), ids, len(ids))], "prompt") for model in (Model(), Model(0.7))]
    pairs = list(zip(*rows, strict=True))
    nll = [-by_hand(p, q)[0][target] for (p, q), target in zip(pairs, ids[1:], strict=False)]
    other_nll = [-by_hand(q, p)[0][target] for (p, q), target in zip(pairs, ids[1:], strict=False)]
    assert quality.tokens == 44
    assert quality.nll == pytest.approx(np.mean(other_nll))
    assert quality.delta_nll == pytest.approx(np.mean(other_nll) - np.mean(nll))
    assert quality.ppl_ratio == pytest.approx(np.exp(quality.delta_nll))
    assert quality.mean_kl == pytest.approx(np.mean([by_hand(p, q)[1] for p, q in pairs]))
    assert quality.same_top == np.mean([p.argmax() == q.argmax() for p, q in pairs])
    assert other.runs == [("prompt", 8)] * 5 + [("generated", 1)] * 4


def test_a_model_against_itself_loses_nothing() -> None:
    ids = list(range(20))
    quality = compare(Model(), Model(), ids, 4)  # type: ignore[arg-type]
    assert (quality.delta_nll, quality.ppl_ratio, quality.same_top) == (0.0, 1.0, 1.0)
    assert quality.mean_kl == 0.0


def test_the_rank_of_the_hidden_fact() -> None:
    row = Model().forward([(Sequence(), [7], 1)], "prompt")[0]
    order = np.argsort(-row)
    for rank in (1, 2, 20):
        what = Probe([1, 2], 1, [3] * 30 + [7], int(order[rank - 1]))
        assert needle_rank(Model(), what) == rank  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 2, 5, 500])
def test_a_step_is_timed_at_the_length_asked_for(length: int) -> None:
    model = Model()
    assert step_seconds(model, length, 8) >= 0  # type: ignore[arg-type]
    assert len(model.runs) == min(length, 10)


def test_probes_fit_into_the_context() -> None:
    for n_ctx in (1, 2, 5, 8, 100, 4096):
        for n_tokens, n_steps in ((64, 4), (10**12, 1), (2, 10**12)):
            what = probe(None, N_VOCAB, n_ctx, n_tokens, n_steps)
            assert 1 <= len(what.ids) <= n_ctx
            assert 1 <= len(what.needle) <= n_ctx
            assert what.n_steps == min(n_steps, n_ctx // 2) < len(what.ids)


@pytest.mark.parametrize("vocabulary", [("a", "b"), ()])
def test_a_vocabulary_that_cannot_write_the_text_gets_random_tokens(vocabulary: tuple[str, ...]) -> None:
    class Tokenizer:
        add_bos, bos_id = True, 0

        def encode_fragment(self, text: str) -> list[int]:
            return [1 + vocabulary.index(c) for c in text if c in vocabulary]

    what = probe(Tokenizer(), N_VOCAB, 512, 64, 4)  # type: ignore[arg-type]
    if vocabulary:  # " Ottilie" has neither letter
        assert Tokenizer().encode_fragment(" Ottilie") == []
    assert what == probe(None, N_VOCAB, 512, 64, 4)


def test_one_token_predicts_nothing_and_loses_nothing() -> None:
    quality = compare(Model(), Model(), [7], 0)  # type: ignore[arg-type]
    assert (quality.tokens, quality.delta_nll, quality.ppl_ratio, quality.mean_kl) == (1, 0.0, 1.0, 0.0)


# ---- the choice -----------------------------------------------------------------------------

MODELS = {"f16": (0.0, 0.003), "q8_0": (0.01, 0.001), "q4_0": (2.0, 0.0)}
"""By kind: its error, and the seconds of a step."""


@pytest.fixture(autouse=True)
def _told_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take what the model says, not what this computer needs for them."""
    monkeypatch.setattr(kv_plan, "step_seconds", lambda model, length, n_steps: model.seconds)


PROBE = Probe(list(range(30)), 4, list(range(30)), 5)


@contextmanager
def opened(kinds: KVCacheConfig) -> Iterator[Any]:
    yield Model(*MODELS[str(kinds)])


def sized(*fitting: KVCacheConfig) -> list[Candidate]:
    return [
        Candidate(kinds, size, 100 * size, kinds in fitting) for kinds, size in ((F16, 20), (Q8, 10), (Q4, 5))
    ]


def chosen(*fitting: KVCacheConfig, **gates: Any) -> Plan:
    return choose(opened, sized(*fitting), PROBE, 100, 1500, KVAutoConfig(**gates))


def test_the_fastest_that_passes_is_chosen() -> None:
    plan = chosen(F16, Q8, Q4)
    assert (plan.chosen, plan.passed) == (Q8, True)
    by_kind = {str(candidate.kinds): candidate for candidate in plan.candidates}
    assert by_kind["f16"].passes
    assert not by_kind["q4_0"].passes
    assert by_kind["q4_0"].step_seconds is None
    [failure] = [text for text in by_kind["q4_0"].failed if text.startswith("mean KL")]
    assert failure.endswith("at most 0.1")
    assert "the fastest of 2" in plan.reason


def test_what_does_not_fit_is_not_measured() -> None:
    plan = chosen(Q4)
    assert [candidate.quality is None for candidate in plan.candidates] == [True, True, False]
    assert (plan.chosen, plan.passed) == (Q4, False)
    assert "no kind that fits passes the gates, and q4_0, which has the least mean KL, fails: " in plan.reason
    assert "mean KL" in plan.reason
    with pytest.raises(
        LLMGenError,
        match="^KV cache: no kind that fits passes .*, mean KL .*; allow more, or leave --kv-strict out",
    ):
        check_passed(plan, KVAutoConfig(strict=True))
    assert check_passed(plan, KVAutoConfig()) is plan
    with pytest.raises(
        LLMGenError, match="fits into 0.0015 MB: the smallest, q4_0, takes 0.0005 MB.*--kv-budget"
    ):
        chosen()


@pytest.mark.parametrize("gate", ["max_delta_nll", "max_mean_kl", "max_ppl_ratio"])
def test_every_gate_counts(gate: str) -> None:
    strictest = {gate: 1.0 if gate == "max_ppl_ratio" else 0.0}
    wide = {"max_delta_nll": 1e3, "max_ppl_ratio": 1e300, "max_mean_kl": 1e3}
    assert all(candidate.passes for candidate in chosen(F16, Q8, Q4, **wide).candidates)
    failed = chosen(F16, Q8, Q4, **{**wide, **strictest}).candidates
    assert failed[0].passes  # f16 against itself
    assert [len(candidate.failed) for candidate in failed[1:]] == [1, 1]


def test_a_lost_fact_fails() -> None:
    row = Model().forward([(Sequence(), [29], 1)], "prompt")[0]
    best = int(np.argmax(np.where(np.arange(N_VOCAB) % 2, row, -9)))  # an odd place, which errors push down
    if int((row > row[best]).sum()) >= 5:
        pytest.skip("the random row has no such token")
    wide = KVAutoConfig(max_delta_nll=1e3, max_ppl_ratio=1e300, max_mean_kl=1e3)
    plan = choose(opened, sized(F16, Q4), dataclasses.replace(PROBE, answer=best), 100, None, wide)
    [_, _, q4] = plan.candidates
    assert [text.split(" 2")[0].split(" 1")[0] for text in q4.failed] == ["rank of the hidden fact"]


def test_candidates_are_known_kinds_and_keys_have_no_fewer_bits() -> None:
    assert len(set(CANDIDATES)) == len(CANDIDATES)
    order = ["f16", "q8_0", "q4_0", "nf4"]
    assert all(order.index(kinds.k) <= order.index(kinds.v) for kinds in CANDIDATES)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"budget_mb": -1}, {"budget_mb": "5"}, {"max_ppl_ratio": 0.5}, {"max_mean_kl": float("nan")}),
        *({"probe_tokens": 1}, {"probe_tokens": 2.5}, {"probe_steps": 0}, {"probe_interval": float("inf")}),
        *({"budget_mb": 1e308}, {"budget_mb": 10**400}, {"max_delta_nll": 10**400}, {"probe_steps": 10**30}),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match=rf"^{next(iter(wrong))} \(--kv-[a-z-]*\) must be a (whole )?number "
    ):
        KVAutoConfig(**wrong)


def test_numbers_may_be_numpys() -> None:
    config = KVAutoConfig(budget_mb=np.float32(1.5), probe_tokens=np.int64(9))  # type: ignore[arg-type]
    assert config == KVAutoConfig(budget_mb=1.5, probe_tokens=9)
    assert (type(config.budget_mb), type(config.probe_tokens)) == (float, int)


def test_a_plan_file_is_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for path in (str(tmp_path / "plans.json"), tmp_path / "plans.json", "~/plans.json"):
        assert KVAutoConfig(plan_file=path).plan_path == tmp_path / "plans.json"
    for wrong in (5, b"plans.json"):
        with pytest.raises(UsageError, match=r"plan_file \(--kv-plan\) must be a path, not "):
            KVAutoConfig(plan_file=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"strict \(--kv-strict\) must be True or False, not 'yes'"):
        KVAutoConfig(strict="yes")  # type: ignore[arg-type]


# ---- the file -------------------------------------------------------------------------------


def plan_of(chosen: KVCacheConfig = Q8) -> Plan:
    quality = Quality(68, 2.5, 0.01, 1.01, 0.002, 0.97)
    done = Candidate(Q8, 10, 1000, True, quality, 1, 0.005, ("mean KL 0.2, at most 0.1",))
    return Plan(100, 1500, (done, Candidate(F16, 20, 2000, False)), chosen, "because", True)


def test_a_kept_plan_is_the_plan(tmp_path: Path) -> None:
    path, config = tmp_path / "folder" / "plans.json", KVAutoConfig()
    assert kept(path, "a", 1500, config) is None
    keep(path, "a", config, plan_of())
    keep(path, "b", config, plan_of(F16))
    assert kept(path, "a", 1500, config) == plan_of()
    assert kept(path, "b", None, config) == plan_of(F16)
    assert kept(path, "c", 1500, config) is None
    assert [p.name for p in path.parent.iterdir()] == ["plans.json"]
    assert json.loads(path.read_text())["plans"][0]["plan"] == plan_as_dict(plan_of(F16)) | {
        "candidates": [json.loads(json.dumps(c)) for c in plan_as_dict(plan_of(F16))["candidates"]]
    }


def _never() -> None:
    pytest.fail("nobody else measures")


def test_one_process_measures_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "folder" / "plans.json.lock"
    path = tmp_path / "folder" / "plans.json"
    with measuring_alone(path, _never), try_folder_lock(lock) as state:
        assert state == "taken"
    assert not lock.exists()

    class StillMeasuring(Exception):
        pass

    def waiting() -> None:
        raise StillMeasuring

    with try_folder_lock(lock), pytest.raises(StillMeasuring):
        with measuring_alone(path, waiting):
            pytest.fail("another one is measuring")
    (tmp_path / "file").touch()
    with pytest.raises(LLMGenError, match="cannot write the plan file .*--kv-plan"):
        with measuring_alone(tmp_path / "file" / "plans.json", _never):
            pytest.fail("there is no such folder")


def test_a_plan_holds_for_a_time_and_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, config = tmp_path / "plans.json", KVAutoConfig(probe_interval=60)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    keep(path, "a", config, plan_of())
    assert kept(path, "a", 999, config) is None  # what was chosen takes 1000
    assert kept(path, "a", 1000, config)
    assert kept(path, "a", 1500, dataclasses.replace(config, budget_mb=1.0)) is None
    for later, holds in ((59, True), (61, False), (-10, False)):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        assert (kept(path, "a", 1500, config) is not None) == holds


def test_the_key_says_everything_that_counts() -> None:
    config = KVAutoConfig()
    keys = {plan_key("model", "machine", 100, config)}
    keys |= {plan_key(*parts, config) for parts in (("other", "machine", 100), ("model", "other", 100))}
    keys.add(plan_key("model", "machine", 101, config))
    gates = ("max_delta_nll", "max_ppl_ratio", "max_mean_kl", "probe_tokens", "probe_steps")
    for change in ({gate: 9} for gate in gates):
        keys.add(plan_key("model", "machine", 100, KVAutoConfig(**change)))  # type: ignore[arg-type]
    keys |= {plan_key("model", "machine", 100, config, scaling) for scaling in ("yarn:2", "none")}
    assert len(keys) == 11


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "{}", '{"format": "llmgen KV plans", "version": 2, "plans": []}', "[" * 100_000]
    + ['{"format": "llmgen KV plans", "version": 1, "plans": [{"key": "a"}]}'],
)
def test_a_file_of_something_else_is_neither_used_nor_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plans.json"
    path.write_text(text)
    for use in (
        lambda: kept(path, "a", None, KVAutoConfig()),
        lambda: keep(path, "a", KVAutoConfig(), plan_of()),
    ):
        with pytest.raises(LLMGenError, match="cannot use the plan file.*--kv-plan"):
            use()
    assert path.read_text() == text
    with pytest.raises(LLMGenError, match="it is a folder"):
        kept(tmp_path, "a", None, KVAutoConfig())


JUNK = (None, True, 1.5, 10**400, float("nan"), "x", "\x1b[31m", [[]], {})


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value of a JSON document lies."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def test_an_edited_file_is_refused_or_holds_a_whole_plan(tmp_path: Path) -> None:
    """Whatever one of its values is replaced with."""
    path = tmp_path / "plans.json"
    keep(path, "a", KVAutoConfig(), plan_of())
    text = path.read_text()
    for place in _places(json.loads(text)):
        for junk in JUNK:
            content = json.loads(text)
            node = content
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = junk
            path.write_text(json.dumps(content))
            with suppress(LLMGenError):
                plan = kept(path, "a", None, KVAutoConfig())
                assert plan is None or _shape(plan_as_dict(plan)) == _shape(plan_as_dict(plan_of())), place


def _shape(node: Any) -> Any:
    """The types of a document's values; a number is a number, and what may be missing may be anything."""
    if isinstance(node, dict):
        optional = {"quality", "needle_rank", "step_seconds", "budget_bytes"}
        return {key: _shape(value) for key, value in node.items() if key not in optional}
    if isinstance(node, (list, tuple)):
        return "texts" if all(isinstance(item, str) for item in node) else [_shape(item) for item in node]
    return "number" if type(node) in (int, float) else type(node).__name__
