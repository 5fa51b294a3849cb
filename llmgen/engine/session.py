"""A session: one sequence of tokens, its cache, and the answers written on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Never
from weakref import ref

from llmgen.arguments import checked_function, whole_number
from llmgen.engine.completion import Completion
from llmgen.engine.events import GenerationResult
from llmgen.engine.interfaces import ModelLike, TokenizerLike
from llmgen.engine.prompt import Prompt, prompt_ids
from llmgen.engine.request_state import RequestState
from llmgen.engine.requests import Request
from llmgen.engine.scheduler import Scheduler
from llmgen.engine.sequence_state import OnPrompt, Reuse, SequenceState, checked_reuse
from llmgen.engine.speculation.speculator import Speculation
from llmgen.engine.stopping import Cancel, checked_cancel
from llmgen.engine.stream import Callback, GenerationStream
from llmgen.errors import LLMGenError, UsageError
from llmgen.files import path_of
from llmgen.sampling.params import SamplingParams, checked_params


class Session:
    """One sequence in a model's cache.

    A prompt that begins like the tokens in the cache computes only what is new.
    ``reuse`` says how much may be taken from the cache:

    - ``"all"``: everything that matches; right for a conversation.
    - ``"prompt"``: what was computed as prompt, not what was generated.  A
      generated token's cache entry may differ from a prompt token's in the last
      bits, so only this makes an answer independent of earlier calls.
    - ``"none"``: nothing.

    A session runs one generation at a time: another one, and whatever changes the
    tokens, ends it, and whoever goes on reading its events is told so by an error.
    Forks are sessions of their own.  Different sessions may be used from different
    threads.
    """

    def __init__(
        self,
        model: ModelLike,
        tokenizer: TokenizerLike | None = None,
        *,
        reuse: Reuse = "all",
        params: SamplingParams | None = None,
        opened: Callable[[Session], object] = lambda session: None,
        speculation: Speculation | None = None,
    ) -> None:
        """``params`` apply to calls that are given none; ``opened`` is called with this session and its forks.

        ``speculation`` guesses tokens.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._reuse: Reuse = checked_reuse(reuse)
        self._params = checked_params(params)
        self._state = SequenceState(model, model.new_sequence())
        self._speculation = speculation
        self._speculator = speculation.speculator() if speculation else None
        self._stream: ref[GenerationStream] | None = None
        self._closed = False
        self._renew_lock()
        self.owner: object = None
        """What the model belongs to, kept alive as long as the session."""
        self._opened = opened
        opened(self)

    @property
    def tokens(self) -> list[int]:
        """A copy of the last prompt and all tokens after it; a prompt that begins with them continues from here."""
        return list(self._state.tokens)

    @property
    def cached_tokens(self) -> int:
        """How many of :attr:`tokens` are in the cache: usually all but the last."""
        return self._state.cached

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
        on_prompt: OnPrompt | None = None,
    ) -> GenerationStream:
        """Generate after a prompt: a text or token ids (all of it, including what is already in the cache).

        ``cancel`` is a ``threading.Event`` that any thread may set; ``callback``
        is called with each event and can end the answer by returning a true value; the last
        event, however the answer ends, has the text that was held back, so that the texts of all
        events make up the result's.  ``on_prompt`` is called with how many of the prompt's
        tokens are computed and how many there are, before the first piece of 512 and after each.
        Raises :class:`ContextFullError` or :class:`UsageError` at once if the
        prompt cannot be used; the work begins with the first ``next``.
        """
        self._check_open()
        cancel, callback = checked_cancel(cancel), checked_function("callback", callback, "an event")
        on_prompt = checked_function("on_prompt", on_prompt, "two numbers of tokens")
        params = checked_params(params, self._params)
        ids = prompt_ids(prompt, self._model, self._tokenizer)
        n_vocab, n_ctx = int(self._model.config.vocab_size), int(self._model.n_ctx)
        completion = Completion(self._tokenizer, params, ids, n_vocab, n_ctx)
        scheduler = Scheduler(
            self._model,
            slots=1,
            cancel=cancel,
            on_prompt=on_prompt and (lambda request, done, total: on_prompt(done, total)),
            speculation=self._speculation,
        )
        state = RequestState(
            *(Request(ids, params), ids, completion, self._state),
            speculator=self._speculator,
            reuse=self._reuse,
            keeps_sequence=True,
        )
        with self._made_free("another one"):  # what is refused ends nothing
            stream = GenerationStream(scheduler, state, callback)
            self._stream = ref(stream)
            return stream

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
    ) -> GenerationResult:
        """The result of :meth:`stream`, in one call.  Ctrl-C raises KeyboardInterrupt with the ``result`` so far."""
        return self.stream(prompt, params, cancel=cancel, callback=callback).run()

    def reset(self) -> None:
        """Forget all tokens."""
        with self._made_free("reset"):
            self._state.clear()

    def rewind(self, n: int) -> None:
        """Forget the last n tokens, or all if there are fewer.

        If the cache cannot be cut back that far, it is emptied (a sliding window) or
        restored to a checkpoint (a recurrent state), and the next generation computes the rest again.
        """
        n = whole_number("the number of tokens to rewind", n, 0)
        with self._made_free("rewind"):
            self._state.rewind(n)

    def fork(self) -> Session:
        """A second, independent session that continues from the same tokens.

        This also works between two events of a running stream, which continues; the fork has the
        tokens so far.
        """
        self._check_open()
        twin = object.__new__(Session)
        twin.__dict__.update(self.__dict__)
        with self._model.lock:  # another thread may be at work on the cache
            twin._state = self._state.fork()
            twin._speculator = self._speculator.fork() if self._speculator else None
        twin._stream = None
        twin._renew_lock()
        self._opened(twin)
        return twin

    def save(self, path: str | PathLike[str]) -> None:
        """Write the tokens in the cache, and the cache, to a file: all of it or nothing.

        This also works between two events of a running stream; after its first event the cache
        holds only the prompt.  Raises :class:`LLMGenError`.
        """
        self._check_open()
        with self._model.lock:
            self._state.save(path_of(path, "the prompt cache"))

    def load(self, path: str | PathLike[str]) -> None:
        """Continue from a saved file.

        Raises :class:`LLMGenError` with the reason if the file was made with another
        model, KV type or format version, or is damaged; the session is then empty.
        """
        file = path_of(path, "the prompt cache")
        with self._made_free("load"):
            self._state.load(file)

    def close(self) -> None:
        """End a running generation and free the cache."""
        if self._closed:
            return
        self._closed = True
        stream = self._stream() if self._stream else None
        if stream:
            stream.close()
        with self._model.lock:  # a call in another thread may still be using the memory
            self._state.seq.close()
            if self._speculator:
                self._speculator.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Never:
        raise UsageError(
            "a session cannot be copied or pickled: fork() gives a second one, and save() writes it to a file"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise LLMGenError("this session is closed: make a new one")

    @contextmanager
    def _made_free(self, why: str) -> Iterator[None]:
        """End the previous generation, because of ``why``; refuse if another thread is running it.

        No other thread begins one within the block: two would work on the same sequence.
        """
        with self._lock:
            self._check_open()
            stream = self._stream() if self._stream else None
            if stream and not stream.close(by=why):
                raise LLMGenError(
                    "this session is in the middle of a step, in another thread or in a callback: use a session of"
                    " its own for each answer"
                )
            yield

    def _renew_lock(self) -> None:
        """Begin with a lock that nobody holds: a fork has its own, and in a forked process the holder is gone."""
        self._lock = threading.RLock()
