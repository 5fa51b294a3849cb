from __future__ import annotations

import asyncio
import threading

import pytest

from engine.fakes import NEVER, FakeModel, FakeTokenizer
from llmgen.engine import SamplingParams, Session
from llmgen.engine.aio import generate_async, stream_async
from llmgen.errors import UsageError
from program import HANGS_S

GREEDY = SamplingParams(temp=0.0, max_tokens=20, ignore_eos=True)


def test_the_same_events():
    async def main():
        s = Session(FakeModel(), FakeTokenizer())
        return [e async for e in stream_async(lambda cancel: s.stream([1, 2], GREEDY, cancel=cancel))]

    events = asyncio.run(main())
    expected = Session(FakeModel(), FakeTokenizer()).generate([1, 2], GREEDY)
    assert events[-1].result.token_ids == expected.token_ids
    assert [e.token_id for e in events[:-1]] == list(expected.token_ids)


def test_the_loop_stays_free_and_two_run_side_by_side():
    model, ticked = FakeModel(), threading.Event()

    def await_a_tick():
        ticked.clear()
        assert ticked.wait(HANGS_S), "the loop does not run while the model computes"

    model.before_call = await_a_tick

    async def tick():
        while True:
            ticked.set()
            await asyncio.sleep(0.002)

    async def answer(prompt):
        s = Session(model, FakeTokenizer())
        events = [e async for e in stream_async(lambda cancel: s.stream(prompt, GREEDY, cancel=cancel))]
        return events[-1].result.token_ids

    async def main():
        ticker = asyncio.create_task(tick())
        found = await asyncio.gather(answer([1]), answer([2]))
        ticker.cancel()
        return found

    first, second = asyncio.run(main())
    assert first == Session(FakeModel()).generate([1], GREEDY).token_ids
    assert second == Session(FakeModel()).generate([2], GREEDY).token_ids


def test_cancelling_the_task_stops_the_computation():
    model = FakeModel()
    model.slow_s = NEVER
    s = Session(model, FakeTokenizer())

    async def consume():
        async for _ in stream_async(lambda cancel: s.stream([1], GREEDY, cancel=cancel)):
            pass

    async def main():
        task = asyncio.create_task(consume())
        await asyncio.to_thread(model.at_work.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    model.slow_s = 0.0
    assert s.generate([1], GREEDY).completion_tokens == 20


def test_leaving_the_loop_and_errors():
    async def leave():
        s = Session(FakeModel(), FakeTokenizer())
        events = stream_async(lambda cancel: s.stream([1], GREEDY, cancel=cancel))
        async for _ in events:
            break
        await events.aclose()
        return s.generate([1], GREEDY).completion_tokens

    assert asyncio.run(leave()) == 20

    s = Session(FakeModel(), FakeTokenizer())
    with pytest.raises(UsageError, match="no tokens"):  # by the call itself
        stream_async(lambda cancel: s.stream([], GREEDY, cancel=cancel))


def test_what_is_closed_between_two_events_has_the_result_so_far():
    s = Session(FakeModel(), FakeTokenizer())

    def begin(cancel):
        stream = s.stream([1], GREEDY, cancel=cancel)
        next(stream)
        s.close()  # as another thread may, or whoever closes the model
        return stream

    result = asyncio.run(generate_async(begin))
    assert (result.finish_reason, result.completion_tokens) == ("interrupted", 1)
