"""The scheduler as a server would drive it: told from any thread, asked to step from one."""

from __future__ import annotations

import threading

import pytest

from engine.fakes import NEVER, FakeModel, FakeTokenizer
from llmgen.engine import Batch, Request, SamplingParams, Session
from llmgen.engine.events import Ending
from llmgen.engine.scheduler import Scheduler
from llmgen.errors import LLMGenError

GREEDY = SamplingParams(temp=0.0, max_tokens=20, ignore_eos=True)


def alone(request, **kw):
    return Session(FakeModel(**kw), FakeTokenizer()).generate(request.prompt, request.params)


def answers(outputs):
    return {output.answer.request.key: output.answer for output in outputs if output.answer}


def drain(scheduler):
    """The answers of everything that is left."""
    found = {}
    for _ in range(1000):
        if not scheduler.has_work:
            return found
        found |= answers(scheduler.step())
    raise AssertionError("the requests do not end")


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "llmgen-watch"]


def test_it_waits_for_nobody():
    model = FakeModel()
    scheduler = Scheduler(model, FakeTokenizer())
    assert not scheduler.has_work
    assert scheduler.step() == []
    first, second = Request([1], GREEDY, "first"), Request([2], GREEDY, "second")
    scheduler.submit(first)
    for _ in range(4):
        scheduler.step()
    scheduler.submit(second)  # while the first is at work
    found = drain(scheduler)
    for request in (first, second):
        assert found[request.key].result.token_ids == alone(request).token_ids
    assert max(n for kind, n in model.calls if kind == "decode") == 2
    scheduler.close()
    assert all(seq.closed for seq in model.sequences)


def test_events_come_one_by_one_and_the_last_brings_the_answer():
    scheduler = Scheduler(FakeModel(), FakeTokenizer())
    scheduler.submit(Request([1], GREEDY.with_(max_tokens=3), "it"))
    steps = []
    while scheduler.has_work:
        steps.append(scheduler.step())
    assert [len(outputs) for outputs in steps] == [1, 1, 2]  # a token a step, and the end with the last
    last = steps[-1][-1]
    assert last.event.result is last.answer.result
    assert [outputs[0].event.token_id for outputs in steps] == list(last.answer.result.token_ids)


def test_requests_from_many_threads():
    scheduler = Scheduler(FakeModel(), FakeTokenizer())
    requests = [Request([i, 5], GREEDY.with_(max_tokens=3 + i % 5), i) for i in range(40)]
    threads = [
        threading.Thread(target=lambda part=requests[i::4]: [scheduler.submit(r) for r in part])
        for i in range(4)
    ]
    found = {}
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or scheduler.has_work:
        found |= answers(scheduler.step())
    assert {key: a.result.token_ids for key, a in found.items()} == {
        request.key: alone(request).token_ids for request in requests
    }


@pytest.mark.parametrize("ending", [None, Ending("stop", "callback")])
def test_a_request_is_cancelled_and_the_others_go_on(ending):
    model = FakeModel()
    scheduler = Scheduler(model, FakeTokenizer(), slots=2)
    requests = [Request([i], GREEDY, i) for i in range(4)]
    for request in requests:
        scheduler.submit(request)
    for _ in range(5):
        scheduler.step()
    for request in requests[::2]:  # one at work, one that waits
        scheduler.cancel(request, *([ending] if ending else []))
    scheduler.cancel(Request([1], GREEDY, 1))  # equal to one of them, but not that one
    found = drain(scheduler)
    ending = ending or Ending("interrupted", "cancel")
    assert found[0].result.token_ids == alone(requests[0]).token_ids[:5]
    assert (found[2].result.token_ids, found[2].result.prompt_tokens) == ((), 1)
    for key in (0, 2):
        assert (found[key].result.finish_reason, found[key].result.finish_detail) == (
            ending.reason,
            ending.detail,
        )
    for key in (1, 3):
        assert found[key].result.token_ids == alone(requests[key]).token_ids
    scheduler.close()
    assert all(seq.closed for seq in model.sequences)


def test_those_that_wait_for_a_shared_prompt_go_on_when_its_request_is_cancelled():
    model = FakeModel(n_ctx=2048)
    scheduler = Scheduler(model, FakeTokenizer())
    requests = [Request([*[7] * 1000, i], GREEDY, i) for i in range(3)]
    for request in requests:
        scheduler.submit(request)
    scheduler.step()
    assert (scheduler.n_queued, model.computed) == (2, 512)
    scheduler.cancel(requests[0])
    found = drain(scheduler)
    assert found[0].result.finish_detail == "cancel"
    for key in (1, 2):
        assert found[key].result.token_ids == alone(requests[key], n_ctx=2048).token_ids
    assert sum(n for kind, n in model.calls if kind == "prefill") == 512 + 1001 + 1


def test_cancelling_the_only_request_stops_its_call():
    model = FakeModel()
    model.slow_s = NEVER
    scheduler, request = Scheduler(model, FakeTokenizer()), Request([1], GREEDY, "it")
    scheduler.submit(request)
    canceller = threading.Thread(target=lambda: (model.at_work.wait(), scheduler.cancel(request)))
    canceller.start()
    assert scheduler.step()[0].answer.result.finish_detail == "cancel"
    canceller.join()


def test_a_run_of_several_ends_early_only_where_all_of_them_have_to():
    model = FakeModel()
    scheduler = Scheduler(model, FakeTokenizer())
    requests = [Request([i], GREEDY.with_(max_tokens=4), i) for i in range(2)]
    for request in requests:
        scheduler.submit(request)
    scheduler.step()
    model.slow_s = NEVER
    model.at_work.clear()

    def cancel_both():
        model.at_work.wait()
        for request in requests:
            scheduler.cancel(request)

    canceller = threading.Thread(target=cancel_both)
    canceller.start()
    found = answers(scheduler.step())
    canceller.join()
    assert {a.result.finish_detail for a in found.values()} == {"cancel"}
    assert [a.result.completion_tokens for a in found.values()] == [1, 1]


def test_one_thread_watches_all_timeouts():
    model = FakeModel()
    schedulers = [Scheduler(model, FakeTokenizer()) for _ in range(3)]
    for scheduler in schedulers:
        for i in range(8):
            scheduler.submit(Request([i], GREEDY.with_(timeout=NEVER), i))
        scheduler.step()
    assert len(watchers()) == 1
    for scheduler in schedulers:
        assert {a.result.finish_detail for a in drain(scheduler).values()} == {"max_tokens"}
        scheduler.close()


def test_a_stop_of_the_model_that_nobody_asked_for_ends_all():
    model = FakeModel()
    model.slow_s = NEVER
    scheduler = Scheduler(model, FakeTokenizer())
    for i in range(2):
        scheduler.submit(Request([i], GREEDY, i))
    stopper = threading.Thread(target=lambda: (model.at_work.wait(), model.cancel()))
    stopper.start()
    found = answers(scheduler.step())
    stopper.join()
    assert {a.result.finish_detail for a in found.values()} == {"cancel"}
    assert scheduler.stopped


def test_a_shift_of_the_context_is_computed_in_pieces_between_which_others_go_on():
    model = FakeModel(n_ctx=2048)
    long = Request([1] * 2046, GREEDY.with_(max_tokens=6, context_full="shift"), "long")
    short = Request([2], GREEDY.with_(max_tokens=12), "short")
    scheduler = Scheduler(model, FakeTokenizer())
    for request in (short, long):
        scheduler.submit(request)
    found = drain(scheduler)
    assert found["long"].result.token_ids == alone(long, n_ctx=2048).token_ids
    assert found["short"].result.token_ids == alone(short).token_ids
    both = model.calls.index(("decode", 2))
    shifted = next(i for i, (kind, _) in enumerate(model.calls) if i > both and kind == "prefill")
    assert model.calls[shifted : shifted + 4] == [
        ("prefill", 512),
        ("decode", 1),
        ("prefill", 512),
        ("decode", 2),
    ]


def test_what_is_refused_is_answered_in_its_turn():
    scheduler = Scheduler(FakeModel(n_ctx=16), FakeTokenizer())
    scheduler.submit(Request([], GREEDY, "empty"))
    scheduler.submit(Request([1], GREEDY, "good"))
    outputs = scheduler.step()
    assert isinstance(answers(outputs)["empty"].error, LLMGenError)
    assert drain(scheduler)["good"].result.finish_reason == "length"


def test_a_batch_goes_on_while_its_source_has_nothing():
    model, computed = FakeModel(), []

    def source():
        yield Request([1], GREEDY.with_(max_tokens=5), "first")
        while len(given) < 1:  # the second comes when the first is answered, not before
            computed.append(model.computed)
            yield None
        yield Request([2], GREEDY.with_(max_tokens=5), "second")

    given = []
    for answer in Batch(model, FakeTokenizer()).run(source()):
        given.append(answer.request.key)
    assert given == ["first", "second"]
    assert len(computed) <= 6  # asked once a step
    assert computed[-1] == 4  # all but the last token


def test_a_batch_can_be_cancelled_while_its_source_has_nothing():
    cancel = threading.Event()

    def source():
        for _ in range(3):
            yield None
        cancel.set()
        while True:
            yield None

    assert list(Batch(FakeModel(), FakeTokenizer(), cancel=cancel).run(source())) == []
