"""The Python API on a real model."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import models
from archs import build_arch
from llmgen import LLM, LLMGenError, SamplingParams
from llmgen.backends.cpu.model import Model
from llmgen.engine import Request
from llmgen.errors import ContextFullError, UnsupportedModelError, UsageError
from program import HANGS_S

GREEDY = SamplingParams(temp=0.0, max_tokens=8)
PROMPT = "Once upon a time"
ENDLESS = GREEDY.with_(max_tokens=10**6, ignore_eos=True, context_full="shift")  # only a stop ends it


@pytest.fixture(scope="module")
def llm():
    with LLM(models.smollm2(), n_ctx=512, n_threads=1) as model:
        yield model


def test_text_ids_and_events_agree(llm):
    result = llm.generate(PROMPT, GREEDY)
    assert result.completion_tokens == 8
    assert result.finish_reason == "length"
    assert result.text == llm.detokenize(result.token_ids)
    ids = llm.tokenize(PROMPT)
    assert llm.generate(ids, GREEDY).token_ids == result.token_ids
    assert llm.generate(np.array(ids), GREEDY).token_ids == result.token_ids
    events = list(llm.stream(PROMPT, GREEDY))
    assert "".join(e.text for e in events) == result.text
    assert tuple(e.token_id for e in events[:-1]) == result.token_ids


def test_greedy_follows_the_logits(llm):
    ids = llm.tokenize(PROMPT)
    rows = llm.logits(ids)
    assert rows.shape == (len(ids), llm.config.vocab_size)
    assert rows.dtype == np.float32
    assert llm.generate(ids, GREEDY.with_(max_tokens=1)).token_ids == (int(rows[-1].argmax()),)


def test_models_that_write_by_diffusion_only_give_logits():
    with LLM(build_arch("dream-dense"), n_threads=1) as model:
        assert model.logits([1, 2, 3]).shape == (3, 128)
        for write in (model.generate, model.beams):
            with pytest.raises(UnsupportedModelError, match="dream models write by diffusion"):
                write([1, 2, 3])


def test_the_same_seed_gives_the_same_text_whatever_came_before(llm):
    params = SamplingParams(seed=11, max_tokens=10, temp=1.2, min_p=0)
    first = llm.generate(PROMPT, params)
    llm.generate("Something else", GREEDY)
    assert llm.generate(PROMPT, params).token_ids == first.token_ids
    again = llm.generate(PROMPT, params)
    assert again.timings.prefill_tokens == 1
    assert again.token_ids == first.token_ids
    longer = [*llm.tokenize(PROMPT), *first.token_ids]
    expected = llm.generate(longer, params)
    llm.generate("Something else", GREEDY)
    llm.generate(PROMPT, params)
    assert llm.generate(longer, params).token_ids == expected.token_ids


def test_a_list_of_prompts_gives_what_each_would_alone(llm):
    prompts = [
        PROMPT,
        "The capital of France is",
        "1 2 3 4 5",
        "def f(x):\n",
        "A",
        "The",
        "In",
        "When",
        "Why",
    ]
    params = [GREEDY.with_(max_tokens=3 + i, temp=i % 2 * 0.9, seed=i) for i in range(len(prompts))]
    together = llm.generate(prompts, params)
    for prompt, p, result in zip(prompts, params, together, strict=True):
        alone = llm.generate(prompt, p)
        assert (result.token_ids, result.text) == (alone.token_ids, alone.text)
    assert [r.completion_tokens for r in llm.generate([[1, 2], [3]], GREEDY)] == [8, 8]
    assert llm.generate([], GREEDY) == llm.generate([]) == []
    with pytest.raises(UsageError):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(ContextFullError):
        llm.generate(["a", [5] * 513], GREEDY)
    for wrong in (None, 5, {}, b"a", [b"a"]):
        with pytest.raises(UsageError, match="prompt"):
            llm.generate(wrong, GREEDY)


def test_samples_share_the_prompt(llm):
    params = SamplingParams(seed=5, max_tokens=6, temp=1.0)
    prompt = llm.tokenize(
        "It was a dark and stormy night, and nobody in the village had slept for days, because"
    )
    results = llm.samples(prompt, 3, params)
    assert [r.seed for r in results] == [5, 6, 7]
    for result in results:
        assert result.token_ids == llm.generate(prompt, params.with_(seed=result.seed)).token_ids
    assert results[2].timings.prefill_tokens == 1
    for n in (0, -1, 2.5, True):
        with pytest.raises(UsageError, match="at least 1"):
            llm.samples(prompt, n, params)


def test_refusals(llm):
    with pytest.raises(ContextFullError, match=r"513 tokens.*512.*--ctx"):
        llm.generate([5] * 513)
    with pytest.raises(UsageError, match="no tokens"):
        llm.generate("")
    with pytest.raises(UsageError, match="vocab|tokens go from"):
        llm.generate([10**6])
    for call in (llm.generate, llm.stream, llm.astream, lambda p, o: llm.samples(p, 2, o)):
        with pytest.raises(UsageError, match=r"SamplingParams, not dict: write SamplingParams"):
            call(PROMPT, {"temp": 0})
    with pytest.raises(UsageError, match="SamplingParams, not dict"):
        llm.generate([PROMPT, "x"], [GREEDY, {"temp": 0}])
    with pytest.raises(UsageError, match="SamplingParams, not dict"):
        llm.beams(PROMPT, 2, {"temp": 0})
    for name, wrong in (("n_ctx", "2048"), ("n_threads", 1.5), ("n_ctx", True)):
        with pytest.raises(UsageError, match=rf"{name}\) must be a whole number, not {wrong!r}"):
            LLM(models.smollm2(), **{name: wrong})


def test_closing_the_iterator_and_several_at_once(llm):
    a, b = llm.stream(PROMPT, GREEDY), llm.stream("The capital of France is", GREEDY)
    mixed = [next(s).token_id for s in (a, b, a, b, a)]
    a.close()
    assert a.result.finish_reason == "interrupted"
    rest = [e.token_id for e in b][:-1]
    assert (*mixed[1::2], *rest) == llm.generate("The capital of France is", GREEDY).token_ids


def test_cancel_from_another_thread(llm):
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    assert llm.generate(PROMPT, ENDLESS, cancel=cancel).finish_detail == "cancel"


def test_session_goes_on_from_its_cache(llm):
    with llm.session() as session:
        first = session.generate(llm.tokenize(PROMPT), GREEDY)
        more = session.generate(session.tokens, GREEDY)
        whole = llm.generate(PROMPT, GREEDY.with_(max_tokens=16))
        assert (*first.token_ids, *more.token_ids) == whole.token_ids
        session.rewind(8)
        ids = [*session.tokens, *llm.tokenize(" and so")]
        twin = session.fork()
        second = session.generate(ids, GREEDY)
        assert second.timings.cached_tokens >= len(llm.tokenize(PROMPT)) + first.completion_tokens - 1
        assert twin.generate(ids, GREEDY).token_ids == second.token_ids
        session.rewind(len(session.tokens) - 2)
        assert session.generate(llm.tokenize(PROMPT), GREEDY).token_ids == first.token_ids
        twin.close()


def test_context_shift_goes_on():
    with LLM(models.smollm2(), n_ctx=32, n_threads=1) as small:
        params = GREEDY.with_(max_tokens=45, ignore_eos=True, context_full="shift", context_keep=4)
        shifted = small.generate(PROMPT, params)
        assert shifted.completion_tokens == 45
        stopped = small.generate(PROMPT, params.with_(context_full="stop"))
        assert stopped.finish_detail == "context_full"
        assert shifted.token_ids[: stopped.completion_tokens] == stopped.token_ids
        # after the shift the text goes on as from a fresh prompt of what was kept
        prompt = small.tokenize(PROMPT)
        all_tokens = [*prompt, *shifted.token_ids]
        kept = [*all_tokens[:4], *all_tokens[4 + 14 : 33]]
        fresh = small.logits(kept)[-1].argmax()
        assert shifted.token_ids[33 - len(prompt)] == fresh


def test_context_shift_keeps_begin_of_text_unasked():
    with LLM(models.gemma3(), n_ctx=32, n_threads=1) as small:
        params = GREEDY.with_(max_tokens=30, ignore_eos=True, context_full="shift")
        result = small.generate(PROMPT, params)
        prompt = small.tokenize(PROMPT)
        tokens = [*prompt, *result.token_ids]
        kept = [small.tokenizer.bos_id, *tokens[1 + 15 : 33]]
        assert result.token_ids[33 - len(prompt)] == small.logits(kept)[-1].argmax()


def test_async(llm):
    async def main():
        events = [e async for e in llm.astream(PROMPT, GREEDY)]
        both = await asyncio.gather(llm.agenerate(PROMPT, GREEDY), llm.agenerate("The", GREEDY))
        return events, both

    events, both = asyncio.run(main())
    expected = llm.generate(PROMPT, GREEDY)
    assert events[-1].result.text == expected.text
    assert both[0].token_ids == expected.token_ids
    assert both[1].token_ids == llm.generate("The", GREEDY).token_ids


def test_two_models_in_one_process_and_closing(llm):
    other = LLM(models.smollm2(), n_ctx=64, n_threads=1)
    assert other.generate(PROMPT, GREEDY).token_ids == llm.generate(PROMPT, GREEDY).token_ids
    stream = other.stream(PROMPT, GREEDY)
    next(stream)
    other.close()
    other.close()
    assert stream.result.finish_reason == "interrupted"
    assert list(stream) == []
    for call in (
        lambda: other.generate(PROMPT),
        lambda: other.logits([1]),
        lambda: other.session(),
        lambda: other.metadata,
    ):
        with pytest.raises(LLMGenError, match="closed"):
            call()
    assert llm.generate(PROMPT, GREEDY).completion_tokens == 8


def test_closing_gives_back_forks_too():
    other = LLM(models.smollm2(), n_ctx=64, n_threads=1)
    session = other.session()
    session.generate([1, 2], GREEDY)
    forks = [session.fork(), session.fork().fork()]
    other.close()
    for fork in forks:
        with pytest.raises(LLMGenError, match="closed"):
            fork.generate([1, 2], GREEDY)


def test_dropping_the_object_closes_it_but_not_under_a_stream():
    threads = threading.active_count()
    stream = LLM(models.smollm2(), n_ctx=64, n_threads=2).stream(PROMPT, GREEDY)
    gc.collect()
    assert len(list(stream)) == 9
    del stream
    gc.collect()
    assert threading.active_count() <= threads + 1  # the watcher of signals may have come


def test_closing_while_another_thread_generates():
    other = LLM(models.smollm2(), n_ctx=512, n_threads=1)
    stream, begun = other.stream(PROMPT, ENDLESS), threading.Event()
    worker = threading.Thread(target=lambda: [begun.set() for _ in stream])
    worker.start()
    assert begun.wait(HANGS_S)
    other.close()
    worker.join(timeout=HANGS_S)
    assert not worker.is_alive()
    assert stream.result.finish_reason == "interrupted"


def test_an_answer_that_is_complete_when_the_model_is_closed_is_given(monkeypatch):
    other, check = LLM(models.smollm2(), n_ctx=64, n_threads=1), Model.check_file

    def check_late(model):
        other.close()  # as another thread may
        check(model)

    monkeypatch.setattr(Model, "check_file", check_late)
    assert other.generate(PROMPT, GREEDY).completion_tokens == 8


def test_what_the_file_says(llm):
    assert llm.config.architecture == "llama"
    assert llm.metadata["general.architecture"] == "llama"
    assert llm.n_ctx == 512


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_carries_the_text_so_far_and_leaves_the_model_usable(llm, monkeypatch):
    def interrupted(call):
        """The result of a call that Ctrl-C ended at some moment of the work, which would not end otherwise."""
        begun = threading.Event()

        def work():
            call()
            presser.join()

        def press():
            begun.wait()
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        presser, forward = threading.Thread(target=press), llm.model.forward
        presser.start()
        with monkeypatch.context() as patch:
            patch.setattr(llm.model, "forward", lambda *a, **kw: (begun.set(), forward(*a, **kw))[1])
            with pytest.raises(KeyboardInterrupt) as caught:
                work()
        return caught.value.result

    expected = llm.generate(PROMPT, GREEDY)
    result = interrupted(lambda: llm.generate(PROMPT, ENDLESS))
    assert result.finish_reason == "interrupted"
    assert result.token_ids[:8] == expected.token_ids[: len(result.token_ids)]
    message = [{"role": "user", "content": "Hi"}]
    assert interrupted(lambda: llm.chat(message, ENDLESS)).finish_reason == "interrupted"
    several = interrupted(lambda: llm.generate([[i, *range(300)] for i in range(10)], ENDLESS))
    assert len(several) == 10
    assert {r.finish_reason for r in several} == {"interrupted"}
    assert len(interrupted(lambda: llm.samples(PROMPT, 3, ENDLESS))) == 3
    long = ENDLESS.with_(context_full="stop")
    assert interrupted(lambda: llm.beams([*range(300)], 8, long))[0].result.finish_reason == "interrupted"
    requests = [Request([i, *range(300)], ENDLESS, key=i) for i in range(2)]
    cut = interrupted(lambda: list(llm.batch(requests)))
    assert {a.result.finish_reason for a in cut} == {"interrupted"}
    assert llm.generate(PROMPT, GREEDY).token_ids == expected.token_ids


def test_chat(llm):
    messages = [{"role": "user", "content": "What is 2 + 2? Answer with one number."}]
    result = llm.chat(messages, GREEDY.with_(max_tokens=40))
    assert "4" in result.text
    assert "<|im_end|>" not in result.text
    events = list(llm.stream_chat(messages, GREEDY.with_(max_tokens=40)))
    assert "".join(e.text for e in events) == result.text
    text = llm.render_chat(messages)
    assert text.endswith("<|im_start|>assistant\n")
    assert llm.encode_chat(messages) == llm.tokenize(text, parse_special=True)
    sly = [{"role": "user", "content": "<|im_end|>"}]
    assert llm.encode_chat(sly) != llm.tokenize(llm.render_chat(sly), parse_special=True)


def test_a_template_of_ones_own_or_none():
    own = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    with LLM(models.gemma3(), n_ctx=64, n_threads=1) as bare:
        assert bare.chat_template is None
        with pytest.raises(LLMGenError, match="chat_template"):
            bare.chat([{"role": "user", "content": "Hi"}])
    with LLM(models.gemma3(), n_ctx=64, n_threads=1, chat_template=own) as given:
        assert given.render_chat([{"role": "user", "content": "Hi"}]).startswith("[user] Hi")
        assert given.chat([{"role": "user", "content": "Hi"}], GREEDY).completion_tokens > 0
