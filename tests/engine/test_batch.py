from __future__ import annotations

import threading

import pytest

from engine.fakes import NEVER, FakeModel, FakeTokenizer, says
from llmgen.engine import SamplingParams, Session
from llmgen.engine.batch import Batch
from llmgen.engine.requests import Answer, Request
from llmgen.errors import ContextFullError, LLMGenError, UsageError

GREEDY = SamplingParams(temp=0.0, max_tokens=20, ignore_eos=True)


def run(model, requests, **kw):
    """Answers by key."""
    answers = list(Batch(model, FakeTokenizer(), **kw).run(requests))
    assert len({a.request.key for a in answers}) == len(answers)
    return {a.request.key: a for a in answers}


def alone(request, **kw):
    return Session(FakeModel(**kw), FakeTokenizer()).generate(request.prompt, request.params)


def mixed(n):
    """Requests of different lengths, samplings and ends."""
    return [
        Request(
            [i, *range(i % 5)],
            SamplingParams(temp=i % 3 * 0.7, seed=i, max_tokens=i * 7 % 23, ignore_eos=i % 2 == 0),
            key=i,
        )
        for i in range(n)
    ]


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_every_answer_is_the_one_it_would_be_alone(slots):
    model = FakeModel()
    requests = mixed(20)
    answers = run(model, requests, slots=slots)
    assert len(answers) == 20
    for request in requests:
        found, expected = answers[request.key].result, alone(request)
        assert found.token_ids == expected.token_ids
        assert (found.text, found.finish_reason, found.seed) == (
            expected.text,
            expected.finish_reason,
            expected.seed,
        )
    widths = [n for kind, n in model.calls if kind == "decode"]
    assert max(widths) == slots
    assert all(seq.closed for seq in model.sequences)


def test_slots_are_refilled_at_once():
    model = FakeModel()
    requests = [Request([i], GREEDY.with_(max_tokens=2 + i), key=i) for i in range(12)]
    run(model, requests, slots=4)
    widths = [n for kind, n in model.calls if kind == "decode"]
    assert widths[:15] == [4] * 15


def test_requests_are_taken_as_slots_come_free():
    taken = []

    def source():
        for i in range(10):
            taken.append(i)
            yield Request([i], GREEDY.with_(max_tokens=5), key=i)

    answers = Batch(FakeModel(), FakeTokenizer(), slots=2).run(source())
    next(answers)
    assert len(taken) <= 4
    answers.close()


def test_prompts_that_begin_alike_are_computed_once():
    model = FakeModel()
    common = list(range(100))
    requests = [Request(common, GREEDY.with_(temp=1.0, seed=i, max_tokens=5), key=i) for i in range(12)]
    requests += [Request([*common, i, 7], GREEDY.with_(max_tokens=5), key=100 + i) for i in range(4)]
    answers = run(model, requests)
    prefilled = sum(n for kind, n in model.calls if kind in ("prefill", "together"))
    assert prefilled == 100 + 11 + 4 * 2
    for request in requests:
        assert answers[request.key].result.token_ids == alone(request).token_ids
    assert answers[5].result.timings.cached_tokens == 99


def test_short_prompts_are_computed_in_one_pass():
    model = FakeModel()
    requests = [Request(range(i, 2 * i + 1), GREEDY.with_(max_tokens=5), key=i) for i in range(1, 9)]
    answers = run(model, requests)
    assert model.calls[0] == ("together", sum(i + 1 for i in range(1, 9)))
    assert not any(kind == "prefill" for kind, _ in model.calls)
    for request in requests:
        assert answers[request.key].result.token_ids == alone(request).token_ids
        assert answers[request.key].result.timings.prefill_tokens == len(request.prompt)


def test_prompts_that_are_long_or_have_a_timeout_are_computed_alone(monkeypatch):
    monkeypatch.setattr("llmgen.engine.scheduler._TOGETHER", 64)
    model = FakeModel()
    two = GREEDY.with_(max_tokens=2)
    prompts = [[1], [2, 3], [4] * 3, list(range(60)), [5] * 4, [6] * 5]
    params = [two, two.with_(max_tokens=0), two.with_(timeout=NEVER), two, two, two]
    requests = [Request(*pair, key=i) for i, pair in enumerate(zip(prompts, params, strict=True))]
    answers = run(model, requests)
    # 60 + 4 tokens are all that go together
    assert model.calls[:5] == [
        ("prefill", 1),
        ("prefill", 2),
        ("prefill", 3),
        ("together", 64),
        ("prefill", 5),
    ]
    for request in requests:
        assert answers[request.key].result.token_ids == alone(request).token_ids


def test_answers_at_work_do_not_wait_for_a_whole_long_prompt():
    model = FakeModel(n_ctx=8192)
    requests = [
        Request([1], GREEDY.with_(max_tokens=12, ignore_eos=True), key="short"),
        Request([2] * 3000, GREEDY.with_(max_tokens=4, ignore_eos=True), key="long"),
        Request([2] * 3000 + [3], GREEDY.with_(max_tokens=4, ignore_eos=True), key="alike"),
    ]
    answers = run(model, requests)
    kinds = [kind for kind, _ in model.calls]
    first = kinds.index("prefill", 1)  # the long prompt's
    assert kinds[first : first + 10] == ["prefill", "decode"] * 5
    assert max(n for kind, n in model.calls if kind == "prefill") == 512
    assert sum(n for kind, n in model.calls if kind == "prefill") == 1 + 3000 + 1
    for request in requests:
        assert answers[request.key].result.token_ids == alone(request, n_ctx=8192).token_ids


def test_a_timeout_is_noticed_between_the_pieces_of_other_prompts():
    model = FakeModel(n_ctx=8192)
    model.slow_s = 0.05
    requests = [
        Request([1], GREEDY.with_(timeout=0.12, ignore_eos=True), key="timed"),
        *(Request([i] * 3000, GREEDY.with_(max_tokens=1), key=i) for i in (2, 3)),
    ]
    answers = Batch(model, FakeTokenizer()).run(requests)
    first = next(answers)
    assert (first.request.key, first.result.finish_reason) == ("timed", "timeout")
    assert model.computed < 4 * 512  # of 6000 tokens
    assert {answer.request.key for answer in answers} == {2, 3}


def test_trouble_with_several_prompts_is_traced_to_its_own():
    model = FakeModel()

    def broken(prompts):
        raise LLMGenError("not together")

    def bad(seq, ids, logits="last"):
        if ids == [3]:
            raise LLMGenError("not this one")
        return FakeModel.prefill(model, seq, ids, logits)

    model.prefill_together, model.prefill = broken, bad
    requests = [Request([i], GREEDY.with_(max_tokens=2), key=i) for i in range(1, 5)]
    answers = run(model, requests)
    assert "not this one" in str(answers[3].error)
    for key in (2, 4):
        assert answers[key].result.token_ids == alone(requests[key - 1]).token_ids


def test_an_error_of_a_step_ends_its_own_answer_only():
    model, broken = FakeModel(), []

    def generate(parts, *, copy):
        for seq, _ in parts:
            if seq.tokens[0] == 3 and len(seq.tokens) == 4:
                broken.append(len(parts))
                raise LLMGenError("no memory for this one")
        return FakeModel.generate(model, parts, copy=copy)

    model.generate = generate
    requests = [Request([i], GREEDY, key=i) for i in range(1, 6)]
    answers = run(model, requests)
    assert broken == [5, 1]
    spoiled = answers.pop(3)
    assert "no memory" in str(spoiled.error)
    assert spoiled.result.finish_detail == "error"
    assert spoiled.result.token_ids == alone(requests[2]).token_ids[:4]
    for key, answer in answers.items():
        assert answer.error is None
        assert answer.result.token_ids == alone(requests[key - 1]).token_ids
    assert all(seq.closed for seq in model.sequences)


def test_an_error_of_nobody_ends_all_with_what_there_is():
    model, found = FakeModel(), []

    def fail():
        if len(model.calls) == 4:  # the prompts, three passes
            raise MemoryError

    model.before_call = fail
    requests = [Request([i], GREEDY, key=i) for i in range(5)]
    answers = Batch(model, FakeTokenizer(), slots=3).run(requests)
    for _ in range(3):
        found.append(next(answers))
    with pytest.raises(MemoryError):
        next(answers)
    for answer in found:
        assert answer.result.finish_detail == "error"
        assert answer.result.token_ids == alone(answer.request).token_ids[:4]
    assert all(seq.closed for seq in model.sequences)


@pytest.mark.parametrize("number", [0, 2, 9])
def test_an_error_of_on_event_is_the_callers(number):
    model, seen = FakeModel(), []

    def on_event(request, event):
        seen.append(request.key)
        if len(seen) > number:
            raise LLMGenError("the disk is full")

    with pytest.raises(LLMGenError, match="disk"):
        run(model, [Request([i], GREEDY, key=i) for i in range(5)], on_event=on_event)
    assert len(seen) == number + 1
    assert all(seq.closed for seq in model.sequences)


def test_a_batch_can_be_run_and_cancelled_again():
    model, cancel = FakeModel(), threading.Event()
    batch = Batch(model, FakeTokenizer(), cancel=cancel)
    assert len(list(batch.run([Request([1], GREEDY)]))) == 1
    model.slow_s = NEVER
    model.at_work.clear()
    computed = model.computed
    canceller = threading.Thread(target=lambda: (model.at_work.wait(), cancel.set()))
    canceller.start()
    (answer,) = batch.run([Request([2], GREEDY)])
    canceller.join()
    assert answer.result.finish_detail == "cancel"
    assert model.computed == computed  # the call was stopped


def test_a_bad_request_spoils_only_itself():
    model = FakeModel(n_ctx=16)
    requests = [
        Request(range(17), GREEDY, key="long"),
        Request([1, 2], GREEDY, key="good"),
        Request([], GREEDY, key="empty"),
        Request([1], GREEDY.with_(banned_tokens=tuple(range(260))), key="masked"),
    ]
    answers = run(model, requests)
    assert isinstance(answers["long"].error, ContextFullError)
    assert isinstance(answers["empty"].error, LLMGenError)
    assert "masked" in str(answers["masked"].error)
    assert answers["good"].error is None
    assert answers["good"].result.finish_detail == "context_full"


def test_context_shift_in_a_batch():
    requests = [Request([i, i], GREEDY.with_(context_full="shift", max_tokens=30), key=i) for i in range(3)]
    answers = run(FakeModel(n_ctx=16), requests)
    for request in requests:
        assert answers[request.key].result.token_ids == alone(request, n_ctx=16).token_ids


def test_stop_strings_and_timeouts_are_each_ones_own():
    model = FakeModel(script=says("one END two", 1))
    requests = [
        Request([1], SamplingParams(temp=0, stop="END"), key="stop"),
        Request([1], SamplingParams(temp=0), key="free"),
        Request([1], SamplingParams(temp=0, timeout=0), key="late"),
    ]
    answers = run(model, requests)
    assert answers["stop"].result.text == "one "
    assert answers["free"].result.text == "one END two"
    assert answers["late"].result.finish_reason == "timeout"


def test_interruption_ends_those_at_work_and_begins_no_other():
    model = FakeModel()

    def press():
        if len(model.calls) == 4:  # the prompts, three passes
            raise KeyboardInterrupt

    model.before_call = press
    requests = [Request([i], GREEDY, key=i) for i in range(9)]
    with pytest.raises(KeyboardInterrupt) as caught:
        next(Batch(model, FakeTokenizer(), slots=3).run(requests))  # no cut answer is given as one
    answers = {answer.request.key: answer for answer in caught.value.result}
    assert sorted(answers) == [0, 1, 2]
    for key, answer in answers.items():
        assert answer.result.finish_reason == "interrupted"
        assert answer.result.token_ids == alone(requests[key]).token_ids[: answer.result.completion_tokens]
        assert answer.result.completion_tokens == 4
    assert all(seq.closed for seq in model.sequences)
    cancel = threading.Event()
    events = []

    def on_event(request, event):
        events.append((request.key, event.token_id))
        if len(events) == 10:
            cancel.set()

    model.before_call = None
    answers = run(model, requests, slots=3, cancel=cancel, on_event=on_event)
    assert sorted(answers) == [0, 1, 2]
    assert {a.result.finish_detail for a in answers.values()} == {"cancel"}
    assert all(seq.closed for seq in model.sequences)


def test_ctrl_c_loses_no_answer_and_counts_what_was_computed():
    """Also those that were ready, but not given out yet."""
    model = FakeModel(n_ctx=4096)

    def on_event(request, event):
        if request.key == "short" and event.result:
            raise KeyboardInterrupt

    requests = [
        Request([1], GREEDY.with_(max_tokens=1), key="short"),
        Request([2], GREEDY, key="cut"),
        Request([2] * 2000, GREEDY, key="long"),
    ]
    with pytest.raises(KeyboardInterrupt) as caught:
        list(Batch(model, on_event=on_event).run([*requests, Request([], key="refused")]))
    results = {answer.request.key: answer.result for answer in caught.value.result}
    assert sorted(results) == ["cut", "long", "refused", "short"]
    assert results["refused"] is None
    assert results["short"].finish_detail == "max_tokens"
    assert results["cut"].finish_detail == results["long"].finish_detail == "keyboard"
    assert 0 < results["long"].timings.prefill_tokens < 2000
    assert results["long"].timings.cached_tokens == 0


def test_answers_are_plain_data():
    request = Request([1], GREEDY.with_(max_tokens=1))
    (answer,) = Batch(FakeModel()).run([request])
    assert isinstance(answer, Answer)
    assert answer.result.completion_tokens == 1
    with pytest.raises(UsageError):
        Batch(FakeModel(), slots=9)
