"""Names that people know from elsewhere: each is taken, or the error says what it is called here."""

from __future__ import annotations

import numpy as np
import pytest

import llmgen
import tiny
from llmgen import LLM, Batch, ContextFullError, Request, Sampler, SamplingParams, UsageError
from llmgen.sampling.params import OTHER_NAMES, option_named, option_table

GREEDY = SamplingParams(temp=0.0, max_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("names") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, n_ctx=32, n_threads=1, params=GREEDY) as llm:
        yield llm


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("temperature", "its name is temp$"),
        ("stop_sequences", "its name is stop$"),
        ("num_predict", "its name is max_tokens$"),
        ("max_new_tokens", "its name is max_tokens$"),
        ("tempp", "did you mean temp"),
        ("Temperature", "did you mean temp"),
        ("num_ctx", "n_ctx="),
        ("num_beams", "llm.beams"),
        ("xyz", "SamplingParams"),
    ],
)
def test_an_unknown_option_is_told_by_our_name(name, says) -> None:
    for make in (SamplingParams, SamplingParams().with_):
        with pytest.raises(UsageError, match=says):
            make(**{name: 1})


def test_other_names_stand_for_options_that_exist() -> None:
    ours = {option.name for option in option_table()}
    assert set(OTHER_NAMES.values()) <= ours
    assert not ours & OTHER_NAMES.keys()
    assert option_named("top_k") == "top_k"
    assert option_named("nothing") is None


def test_params_of_the_model_hold_where_a_call_brings_none(llm) -> None:
    expected = llm.generate("ab", GREEDY)
    assert expected.completion_tokens == 3
    assert llm.generate("ab").token_ids == expected.token_ids
    assert [r.token_ids for r in llm.generate(["ab", "ab"])] == [expected.token_ids] * 2
    assert [r.token_ids for r in llm.generate(["ab"], [None])] == [expected.token_ids]
    assert [r.token_ids for r in llm.generate_many(["ab", "ab"])] == [expected.token_ids] * 2
    assert list(llm.stream("ab"))[-1].result.token_ids == expected.token_ids
    assert llm.samples("ab", 1)[0].token_ids == expected.token_ids
    assert llm.beams("ab", 1)[0].result.completion_tokens == 3
    with llm.session() as session, session.fork() as fork:
        assert session.generate("ab").token_ids == fork.generate("ab").token_ids == expected.token_ids
    [answer] = llm.batch([Request("ab")])
    assert answer.result.token_ids == expected.token_ids
    assert llm.generate("ab", GREEDY.with_(max_tokens=1)).completion_tokens == 1


def test_sessions_and_batches_take_text(llm) -> None:
    ids = llm.tokenize("ab a")
    with llm.session() as session:
        assert session.generate("ab a").prompt_tokens == len(ids)
        assert session.tokens[: len(ids)] == ids
    requests = [Request("ab a", key="text"), Request(ids, key="ids"), Request("a" * 99, key="long")]
    answers = {answer.request.key: answer for answer in Batch(llm.model, llm.tokenizer).run(requests)}
    assert answers["text"].result.prompt_tokens == answers["ids"].result.prompt_tokens == len(ids)
    assert isinstance(answers["long"].error, ContextFullError)
    [answer] = Batch(llm.model).run([Request("ab")])
    assert "no tokenizer" in str(answer.error)


def test_prompts_that_are_no_row_of_ids(llm) -> None:
    with pytest.raises(UsageError, match=r"shape \(1, 2\): give one row"):
        llm.generate(np.array([[3, 4]]))
    with llm.session() as session, pytest.raises(UsageError, match="token ids"):
        session.generate([[3, 4]])
    with pytest.raises(UsageError, match=r"shape \(2, 1\)"):
        llm.logits(np.array([[3], [4]]))
    assert llm.generate(np.array([3, 4], dtype=np.int32)).prompt_tokens == 2


def test_generate_many_takes_prompts_of_any_kind(llm) -> None:
    one, two = (llm.generate(ids).token_ids for ids in ([3, 4], [5]))
    short = GREEDY.with_(max_tokens=1)
    for prompts in ([[3, 4], np.array([5])], ((3, 4), (5,)), iter([[3, 4], [5]])):
        assert [r.token_ids for r in llm.generate_many(prompts)] == [one, two]
    assert llm.generate_many(np.array([[3, 4]]))[0].token_ids == one
    assert [r.token_ids for r in llm.generate_many([[3, 4], [5]], [short, None])] == [one[:1], two]
    assert llm.generate_many([]) == []
    for wrong in ("ab", b"ab", 5):
        with pytest.raises(UsageError, match="takes several prompts, not .*use generate"):
            llm.generate_many(wrong)
    with pytest.raises(UsageError, match="whole numbers"):
        llm.generate_many([3, 4])


@pytest.mark.parametrize(
    ("logits", "says"),
    [
        ([0.0, 1.0, 2.0], "not a list"),
        (np.zeros((1, 3), np.float32), r"not an array float32 \[1, 3\]"),
        (np.zeros(2, np.float32), r"float32 \[3\], not an array float32 \[2\]"),
        (np.zeros(3), "float64"),
    ],
)
def test_a_sampler_refuses_what_is_no_row_of_logits(logits, says) -> None:
    sampler = Sampler(GREEDY, 3)
    for call in (sampler.sample, sampler.distribution):
        with pytest.raises(UsageError, match=says):
            call(logits)
    assert sampler.sample(np.array([0, 2, 1], np.float32)).token_id == 1


def test_logits_stay_when_the_next_ones_are_computed(llm) -> None:
    seq = llm.model.new_sequence()
    llm.model.prefill(seq, [3, 4])
    first = llm.model.decode([seq], [5])
    before = first.copy()
    llm.model.decode([seq], [6])
    np.testing.assert_array_equal(first, before)
    seq.close()


def test_public_names() -> None:
    for name in ("ContextFullError", "Batch", "Request", "Beam", "Sampler", "UsageError", "Answer"):
        assert name in llmgen.__all__
        assert name in dir(llmgen)
