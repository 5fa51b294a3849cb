"""A session: one sequence of tokens, its cache, and the answers written on it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from weakref import ref

from llmgen.errors import LLMGenError, UsageError
from llmgen.generation.cached import CachedTokens, Reuse
from llmgen.generation.events import GenerationResult
from llmgen.generation.interfaces import ModelLike, TokenizerLike
from llmgen.generation.params import SamplingParams
from llmgen.generation.prompt import Prompt, prompt_ids
from llmgen.generation.stopping import Cancel, Interruptible, turn
from llmgen.generation.stream import Callback, GenerationStream
from llmgen.generation.writer import Writer


class Session:
    """One sequence in a model's cache.

    A prompt that begins like the tokens in the cache computes only what is new.
    ``reuse`` says how much may be taken from the cache:

    - ``"all"``: everything that matches; right for a conversation.
    - ``"prompt"``: what was computed as prompt, not what was generated.  A
      generated token's cache entry may differ from a prompt token's in the last
      bits, so only this makes an answer independent of earlier calls.
    - ``"none"``: nothing.

    A session runs one generation at a time: starting another ends the one
    before it.  Different sessions may be used from different threads.
    """

    def __init__(
        self,
        model: ModelLike,
        tokenizer: TokenizerLike | None = None,
        *,
        reuse: Reuse = "all",
        params: SamplingParams | None = None,
    ) -> None:
        """``params`` hold for calls that bring none."""
        self._model = model
        self._tokenizer = tokenizer
        self._reuse: Reuse = reuse
        self._params = params or SamplingParams()
        self._cache = CachedTokens(model, model.new_sequence())
        self._stream: ref[GenerationStream] | None = None
        self._closed = False
        self.owner: object = None
        """Kept alive as long as the session: what the model belongs to."""

    @property
    def tokens(self) -> list[int]:
        """The last prompt and all tokens generated after it (a copy); what follows it is a prompt to go on with."""
        return list(self._cache.tokens)

    @property
    def cached_tokens(self) -> int:
        """How many of :attr:`tokens` are in the cache: usually all but the last."""
        return self._cache.cached

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
    ) -> GenerationStream:
        """Generate after a prompt: a text or token ids (the whole, also what is in the cache already).

        ``cancel`` is a ``threading.Event`` that any thread may set; ``callback``
        is called with each event and ends the answer by returning a true value; the last
        event, at whatever ending, has the text that was held back, so that all texts
        together are the result's.
        Raises :class:`ContextFullError` or :class:`UsageError` at once where the
        prompt cannot be used; the work begins with the first ``next``.
        """
        self._make_free()
        params = params or self._params
        ids = prompt_ids(prompt, self._model, self._tokenizer)
        n_vocab, n_ctx = int(self._model.config.vocab_size), int(self._model.n_ctx)
        writer = Writer(self._tokenizer, params, ids, n_vocab, n_ctx)
        calls = Interruptible(self._model, cancel, params.timeout)
        stream = GenerationStream(self._cache, ids, self._reuse, writer, calls, callback)
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
        """The same in one call.  Ctrl-C raises KeyboardInterrupt with the ``result`` so far."""
        return self.stream(prompt, params, cancel=cancel, callback=callback).run()

    def reset(self) -> None:
        """Forget all tokens."""
        self._make_free()
        self._cache.clear()

    def rewind(self, n: int) -> None:
        """Forget the last n tokens; all, where there are fewer.

        Where the cache cannot be cut back that far (a sliding window), it is
        emptied, and the next generation computes its prompt anew.
        """
        self._make_free()
        if n < 0:
            raise UsageError(f"rewind takes a number of tokens from 0 up, not {n}")
        self._cache.rewind(n)

    def fork(self) -> Session:
        """A second session that goes on from the same tokens, independently."""
        self._make_free()
        twin = object.__new__(Session)
        twin.__dict__.update(self.__dict__)
        twin._cache = self._cache.fork()
        twin._stream = None
        return twin

    def save(self, path: str | PathLike[str]) -> None:
        """Write the tokens in the cache, and the cache, to a file: all of it or nothing.

        Also between two events of a running stream; after its first one the cache
        holds just the prompt.  Raises :class:`LLMGenError`.
        """
        if self._closed:
            raise LLMGenError("this session is closed: make a new one")
        with turn(self._model):
            self._cache.save(Path(path))

    def load(self, path: str | PathLike[str]) -> None:
        """Go on from a saved file.

        Refused with the reason (:class:`LLMGenError`) where the file was made by another
        model, KV type or format version, or is damaged; the session is empty then.
        """
        self._make_free()
        self._cache.load(Path(path))

    def close(self) -> None:
        """End a running generation and give the cache back."""
        if self._closed:
            return
        self._closed = True
        stream = self._stream() if self._stream else None
        if stream:
            stream.close()
        with turn(self._model):  # a call in another thread may still be using the memory
            self._cache.seq.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_free(self) -> None:
        """End the generation before; refuse where that is at work in another thread."""
        if self._closed:
            raise LLMGenError("this session is closed: make a new one")
        stream = self._stream() if self._stream else None
        if stream and not stream.close():
            raise LLMGenError("this session is generating in another thread: use one session for each")
