"""Guessing on models that compute: tiny ones of some architectures, and a real one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import models
import tiny
from archs import SPECS, build_arch
from llmgen import LLM, SamplingParams, SpeculativeConfig
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.weight_memory import WeightMemory
from llmgen.errors import LLMGenError, UsageError
from llmgen.gguf import GGUFFile
from llmgen.gguf.large_pages import supported
from llmgen.model.runs import Part

PROMPT = [1, *range(10, 40), 10, 11, 12, 13]
CHAINS = [
    SamplingParams(temp=0.0),
    SamplingParams(seed=1),
    SamplingParams(seed=2, temp=2.0, top_k=0, repeat_penalty=1.2, logprobs=2),
    SamplingParams(seed=3, mirostat=2, logprobs=1, logprobs_mode="processed"),
]


def answers(llm, n, prompts=(PROMPT,)):
    results = [
        llm.generate(prompt, params.with_(max_tokens=n, ignore_eos=True))
        for prompt in prompts
        for params in CHAINS
    ]
    return [(r.token_ids, r.logprobs) for r in results], [r.speculation for r in results]


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense", "qwen3-dense"])
def test_the_same_tokens_and_log_probabilities(name):
    path = build_arch(name)
    with LLM(path, n_ctx=256, n_threads=1) as llm:
        expected, _ = answers(llm, 60)
    for options in ({"lookup": True}, {"draft": path}, {"draft": build_arch(name, "q8_0"), "lookup": True}):
        config = SpeculativeConfig(adaptive=False, k=7, **options)
        with LLM(path, n_ctx=256, n_threads=2, speculation=config) as llm:
            found, stats = answers(llm, 60)
            assert found == expected
            if options == {"draft": path}:
                assert all(one.acceptance_rate == 1 for one in stats)
                assert all(one.tokens_per_step > 6 for one in stats)


OTHERS = [
    "llama-moe",
    "qwen3moe-moe",
    "cohere2-dense",
    "gemma2-dense",
    "gpt2-dense",
    "phi3-dense",
    "mpt-dense",
    "minicpm3-dense",
]


@pytest.mark.parametrize("name", [name for name in OTHERS if name in SPECS])
def test_other_architectures(name):
    """Experts, windows, soft caps, learned positions, biases of attention, latent attention."""
    path, params = build_arch(name), SamplingParams(seed=1, max_tokens=40, ignore_eos=True)
    with LLM(path, n_ctx=128, n_threads=1) as llm:
        expected = llm.generate(PROMPT, params).token_ids
    config = SpeculativeConfig(draft=path, lookup=True, adaptive=False, k=7)
    with LLM(path, n_ctx=128, n_threads=2, speculation=config) as llm:
        result = llm.generate(PROMPT, params)
        assert result.token_ids == expected
        assert result.speculation.accepted > 25


@pytest.mark.parametrize("kv_type", ["q8_0", "k=q4_0,v=nf4"])
def test_other_kinds_of_numbers_in_the_cache(kv_type):
    """What a wrong guess has left in a block must not change what is written there next."""
    path, params = build_arch("gemma3-dense"), SamplingParams(seed=1, max_tokens=120, ignore_eos=True)
    with LLM(path, n_ctx=256, n_threads=1, kv_type=kv_type) as llm:
        expected = llm.generate(PROMPT, params).token_ids
    config = SpeculativeConfig(draft=build_arch("gemma3-dense", "q8_0"), adaptive=False, k=7)
    with LLM(path, n_ctx=256, n_threads=1, kv_type=kv_type, speculation=config) as llm:
        result = llm.generate(PROMPT, params)
        assert result.token_ids == expected
        assert 0 < result.speculation.accepted < result.speculation.guessed


@pytest.mark.parametrize("options", [{"lookup": True}, {"draft": True}])
@pytest.mark.parametrize(
    "name", [name for name in ("mamba-dense", "jamba-dense", "lfm2-dense") if name in SPECS]
)
def test_recurrent_models_say_that_they_cannot_guess(name, options):
    if "draft" in options:
        options = {"draft": build_arch(name)}
    with pytest.raises(
        UsageError, match=r"recurrent states.*leave out the draft model \(--draft\) and --lookup"
    ):
        LLM(build_arch(name), n_ctx=64, n_threads=1, **options)


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (
            "mamba-dense",
            "recurrent states, which cannot take back a wrong guess: choose a model with attention",
        ),
        (
            "dream-dense",
            "is a dream model, which writes by diffusion: choose a model that writes token by token",
        ),
    ],
)
def test_models_that_cannot_draft_are_refused_before_anything_is_loaded(monkeypatch, draft, reason):
    monkeypatch.setattr(Model, "load", None)
    with pytest.raises(UsageError, match=rf"the draft model \(--draft\) .*{reason}"):
        LLM(build_arch("llama-dense"), n_ctx=64, draft=build_arch(draft))


def test_an_error_says_that_it_is_the_draft_s(tmp_path):
    path = tiny.write(tmp_path / "tiny.gguf")
    unknown = tiny.write(tmp_path / "unknown.gguf", architecture="riddle")
    lacking = tiny.write(tmp_path / "lacking.gguf", drop=["blk.1.ffn_up.weight"])
    for draft, reason in (unknown, "architecture 'riddle' is not supported"), (lacking, "ffn_up"):
        with pytest.raises(LLMGenError, match=rf"the draft model \(--draft\) cannot be used: .*{reason}"):
            LLM(path, draft=draft)


def test_a_draft_that_is_the_model_is_right_2000_times(tmp_path):
    path = tiny.write(tmp_path / "tiny.gguf", {"context_length": ("uint32", 2100)})
    params = SamplingParams(seed=5, max_tokens=2000, ignore_eos=True)
    with LLM(path, n_threads=1) as llm:
        expected = llm.generate([1, 5, 6], params)
    with LLM(path, n_threads=1, speculation=SpeculativeConfig(draft=path, adaptive=False)) as llm:
        found = llm.generate([1, 5, 6], params)
    assert found.token_ids == expected.token_ids
    assert found.speculation.acceptance_rate == 1
    assert found.speculation.accepted >= 1598


def test_a_sliding_window_that_has_wrapped():
    """The ring of a window has lost its oldest keys by then; guesses can be taken back all the same."""
    path = build_arch("gemma3-dense")
    prompt = np.random.default_rng(0).integers(3, 120, 900).tolist()
    params = SamplingParams(seed=1, max_tokens=150, ignore_eos=True)
    with LLM(path, n_ctx=1200, n_threads=1) as llm:
        assert any(0 < state.shortest_cut(1050) for state in llm.model.layout.states)
        expected = llm.generate(prompt, params).token_ids
    for options in ({"lookup": True}, {"draft": build_arch("gemma3-dense", "q8_0")}):
        config = SpeculativeConfig(adaptive=False, k=7, **options)
        with LLM(path, n_ctx=1200, n_threads=1, speculation=config) as llm:
            result = llm.generate(prompt, params)
            assert result.token_ids == expected
            assert result.speculation.guessed > result.speculation.accepted


def test_one_team_of_threads_serves_both_models():
    path = build_arch("llama-dense")
    llm = LLM(path, n_ctx=128, n_threads=2, draft=path)
    draft = llm.draft_model
    assert draft._team is llm.model._team
    assert draft.lock is llm.model.lock
    assert draft.n_threads == 2
    llm.generate(PROMPT, SamplingParams(max_tokens=9))
    llm.close()
    with pytest.raises(Exception, match="closed"):
        draft.new_sequence()


def test_a_draft_chooses_among_the_first_tokens(monkeypatch):
    """With the bits that they have in a run for all; a model that drafts for none computes all."""
    monkeypatch.setattr("llmgen.backends.cpu.recording.GUESSABLE", 64)
    with GGUFFile.open(build_arch("llama-dense")) as file:
        model = Model.load(file, n_ctx=64, n_threads=1)
        draft = Model.load(file, n_ctx=64, beside=model)
        rows = {}
        for one, role in itertools.product((model, draft), ("generated", "guess")):
            seq = one.new_sequence()
            rows[one, role] = one.forward([Part(seq, [1, 5, 9], 2)], role)
        whole = rows[model, "generated"]
        assert whole.shape[1] > 64
        assert np.array_equal(rows[model, "guess"], whole)
        assert np.array_equal(rows[draft, "generated"], whole)
        assert np.array_equal(rows[draft, "guess"], whole[:, :64])
        draft.close()
        model.close()


def _guess_among_64(monkeypatch):
    """Let drafts choose among 64 tokens only wherever they may choose among the most frequent ones."""
    monkeypatch.setattr("llmgen.backends.cpu.recording.GUESSABLE", 64)
    monkeypatch.setattr("llmgen.engine.speculation.speculator.role_of_guesses", lambda answer: "guess")
    may = property(lambda speculation: not speculation.draft.all_tokens)
    monkeypatch.setattr("llmgen.engine.speculation.speculator.Speculation.among_frequent", may)


def test_a_model_that_drafts_for_itself_chooses_among_all_tokens(monkeypatch):
    _guess_among_64(monkeypatch)
    path = build_arch("llama-dense")
    config = SpeculativeConfig(draft=path, adaptive=False)
    with LLM(path, n_ctx=256, n_threads=1, speculation=config) as llm:
        _, figures = answers(llm, 60)
    for one in figures:
        assert one.guessed >= 40
        assert one.acceptance_rate == 1


@pytest.mark.parametrize("method", ["coupled", "reject"])
def test_guesses_among_the_first_tokens_change_no_text(monkeypatch, method):
    _guess_among_64(monkeypatch)
    monkeypatch.setattr(Model, "fingerprint", property(lambda model: str(id(model))))  # as of two files
    path = build_arch("llama-dense")
    chains = CHAINS if method == "coupled" else CHAINS[:1]  # the other method keeps greedy texts only
    params = [chain.with_(max_tokens=60, ignore_eos=True) for chain in chains]
    with LLM(path, n_ctx=256, n_threads=1) as llm:
        expected = [llm.generate(PROMPT, chain).token_ids for chain in params]
    config = SpeculativeConfig(draft=path, method=method, adaptive=False)
    with LLM(path, n_ctx=256, n_threads=1, speculation=config) as llm:
        results = [llm.generate(PROMPT, chain) for chain in params]
    assert [result.token_ids for result in results] == expected
    assert all(result.speculation.guessed for result in results)
    assert any(
        result.speculation.acceptance_rate < 1 for result in results
    )  # some tokens are not among the 64


@pytest.mark.skipif(not supported(), reason="large pages need Linux")
def test_a_draft_lies_where_its_model_lies(tmp_path):
    """Also where that was moved without being asked to, as ``llmgen bench`` does."""
    path = tiny.write(tmp_path / "tiny.gguf")
    with GGUFFile.open(path) as file:
        model = Model.load(file, n_ctx=64, n_threads=1)
        moved = []
        for all_moved in (False, True):
            model.weight_memory.all_moved = all_moved
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(WeightMemory, "move_all", lambda memory, n: moved.append(memory))
                Model.load(file, n_ctx=64, beside=model).close()
        model.close()
    assert len(moved) == 1


def test_what_cannot_be_honoured_is_refused(tmp_path):
    path = tiny.write(tmp_path / "tiny.gguf")
    with pytest.raises(UsageError, match="nothing to guess with"):
        LLM(path, speculation=SpeculativeConfig(k=2))
    with pytest.raises(UsageError, match="speculation must be a SpeculativeConfig, not dict"):
        LLM(path, speculation={"k": 2})
    with pytest.raises(UsageError, match=r"lookup \(--lookup\) must be True or False, not 'no'"):
        LLM(path, lookup="no")
    with pytest.raises(UsageError, match="another vocabulary"):
        LLM(path, draft=build_arch("llama-dense"))
    for wrong in (
        {"k": 0},
        {"k_max": 9},
        {"lookup": 1},
        {"min_acceptance": 2},
        {"method": "x"},
        {"draft": 5},
    ):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            SpeculativeConfig(**wrong)


TEXT = "The quick brown fox jumps over the lazy dog near the river bank.\n" * 4


LOOKUP = SpeculativeConfig(lookup=True, adaptive=False)


def test_lookup_on_a_real_model():
    params = [SamplingParams(temp=0.0, max_tokens=48), SamplingParams(seed=4, max_tokens=48, logprobs=2)]
    with LLM(models.smollm2(), n_ctx=512, n_threads=1) as llm:
        expected = [llm.generate(TEXT, p) for p in params]
    with LLM(models.smollm2(), n_ctx=512, n_threads=1, speculation=LOOKUP) as llm:
        found = [llm.generate(TEXT, p) for p in params]
        many = llm.generate_many([TEXT] * 4, params * 2)
    for plain, guessed in zip(expected * 3, found + many, strict=True):
        assert guessed.text == plain.text
        assert guessed.token_ids == plain.token_ids
        assert guessed.logprobs == plain.logprobs
    stats = found[0].speculation
    assert stats.accepted > 20
    assert stats.tokens == 47
    assert stats.as_dict()["acceptance_rate"] == stats.accepted / stats.guessed
    assert found[0].as_dict()["speculation"]["tokens_per_step"] > 1.5
    assert "speculation" not in expected[0].as_dict()
    assert found[0].timings.decode_tokens == 47 > found[0].timings.decode_steps


def test_prompt_caches(tmp_path):
    """Saved between two events, far ahead of the answer: what is read again goes on with the same bits."""
    params = SamplingParams(seed=4, max_tokens=40)
    found = []
    for options in ({}, {"speculation": LOOKUP}):
        with LLM(models.smollm2(), n_ctx=512, n_threads=1, **options) as llm:
            path = tmp_path / f"{len(found)}.kv"
            with llm.session() as session:
                stream, cached = session.stream(llm.tokenize(TEXT), params), []
                for _ in range(9):
                    next(stream)
                    session.save(path)
                    cached.append(session.cached_tokens)
                rest = stream.run().token_ids
            with llm.session() as session:
                session.load(path)
                again = session.generate([*session.tokens, 5], params)
                found.append((cached, rest, again.token_ids, again.timings.cached_tokens))
    assert found[0] == found[1]


def test_a_timeout_keeps_what_was_given_out():
    with LLM(models.smollm2(), n_ctx=2048, n_threads=1, lookup=True) as llm:
        params = SamplingParams(temp=0.0, timeout=0.5, ignore_eos=True, max_tokens=10**6)
        result = llm.generate(TEXT, params.with_(context_full="shift"))
        assert result.finish_reason == "timeout"
