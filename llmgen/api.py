"""The Python API: one class that joins a model file, its tokenizer and its sessions."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from llmgen import hub
from llmgen.backends.cpu.model import Model
from llmgen.engine.aio import stream_async
from llmgen.engine.batch import MAX_SLOTS, Batch, generate_all
from llmgen.engine.beams import Beam, BeamOptions, BeamSearch
from llmgen.engine.cached import OnPrompt, Reuse
from llmgen.engine.events import GenerationEvent, GenerationResult
from llmgen.engine.prompt import Prompt, check_prompt, prompt_ids
from llmgen.engine.requests import Answer, Request
from llmgen.engine.session import Session
from llmgen.engine.sessions import Sessions
from llmgen.engine.stopping import Cancel
from llmgen.engine.stream import Callback, GenerationStream
from llmgen.errors import LLMGenError, UsageError
from llmgen.gguf import GGUFFile
from llmgen.model.decoder import Decoder
from llmgen.sampling.params import SamplingParams, checked_params, option_named
from llmgen.sampling.rng import random_seed
from llmgen.tokenizer import ChatTemplate, Tokenizer, encode_chat, rendering_within
from llmgen.tokenizer.model_text import ModelText
from llmgen.tokenizer.plain import Message

Prompts = list[str] | list[list[int]] | list[Prompt] | tuple[Prompt, ...] | Sequence[Sequence[int]]
"""Several of them; not ``Sequence[Prompt]``, which a text would be, too."""
KVType = Literal["f16", "f32"]

_log = logging.getLogger(__name__)


class _Resources:
    """What has to be closed, in an order that is safe; shared by an LLM and its finalizer."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.model: Model | None = None
        self.sessions: Sessions | None = None
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise LLMGenError("this LLM is closed, and an open one is needed: make a new one")

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.sessions is not None:
            self.sessions.close()
        if self.model is not None:
            self.model.close()
        self.file.close()


class LLM:
    """A loaded model.

    Answers depend on the prompt, the options and the seed only, not on earlier
    calls; a prompt that begins like the one before it is nevertheless computed
    only where it is new.  Several objects can live in one process, and one
    object can be used from several threads.  :meth:`close`, leaving a ``with``
    block, or dropping the object gives memory and threads back.

    Ctrl-C during a generation raises ``KeyboardInterrupt``, whose ``result`` is what
    the call would have returned, as far as it came: with ``finish_reason``
    ``interrupted`` and the text so far.  Only what the main thread runs is ended.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        kv_type: KVType = "f16",
        chat_template: str | PathLike[str] | ChatTemplate | None = None,
        params: SamplingParams | None = None,
        progress: Any = None,
    ) -> None:
        """Load the model at a path (of a split model, the first part), or of a name as on the command line.

        A known name, such as ``smollm2``, is fetched where the model is not here yet.
        ``n_ctx`` is the context length in tokens (default: the model's, capped
        to memory), ``n_threads`` the number of threads (default: usable physical
        cores), ``kv_type`` the type of the key-value cache.  ``chat_template``
        replaces the file's main one: a Jinja text, the path of a Jinja file, or the name of one of
        the file's further templates or of a built-in format.  ``params`` hold for every call
        that brings none.  Raises :class:`LLMGenError`.
        """
        started = time.perf_counter()
        self.params = checked_params(params)
        file = GGUFFile.open(hub.locate(path) if isinstance(path, str) else path)
        self._resources = _Resources(file)
        self._finalizer = weakref.finalize(self, self._resources.close)
        try:
            self._text = text = ModelText(file, chat_template, self._resources.check_open)
            if chat_template is not None:
                text.check_choice()  # a wrong one is refused before the model is loaded
            self._model = Model.load(
                file, n_ctx=n_ctx, n_threads=n_threads, kv_type=kv_type, progress=progress
            )
        except BaseException:
            self._finalizer()
            raise
        self._resources.model = self._model
        # what the finalizer holds must not lead back to this object
        self._sessions = Sessions(self._model, lambda: text.working_tokenizer, self.params)
        self._resources.sessions = self._sessions
        _log.debug(
            "loaded %s in %.3f s: %s, context %d, %d threads, KV cache %s, kernels for %s",
            *(file.path, time.perf_counter() - started, self._model.config.architecture, self._model.n_ctx),
            *(self._model.n_threads, self._model.kv_type, self._model.kernel_level),
        )

    # -- what the file says

    @property
    def config(self) -> Decoder:
        """The model's dimensions: architecture, n_layers, n_embd, vocab_size, context_length ..."""
        return self._model.config

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's metadata as Python values; large arrays are read when they are used."""
        self._check_open()
        return self._resources.file.metadata

    @property
    def model(self) -> Model:
        """The loaded model, for those who drive it themselves."""
        self._check_open()
        return self._model

    @property
    def n_ctx(self) -> int:
        """The context length in tokens."""
        return int(self._model.n_ctx)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.  Raises :class:`TokenizerError` where the file has none that llmgen can use."""
        return self._text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template: the one that was given, else the file's, else None.

        Raises :class:`TemplateError` where it is not a template that can be used.
        """
        return self._text.template

    # -- text and ids

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Text to token ids."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Token ids to text."""
        return self.tokenizer.decode(list(ids))

    def render_chat(
        self,
        messages: Iterable[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **kw: Any,
    ) -> str:
        """The conversation as the chat template writes it; the arguments are those of :meth:`chat`."""
        given = self._keywords(tools, documents, template_kwargs, kw)
        return self._text.needed_template.render(messages, add_generation_prompt, **given)

    # -- computing

    def logits(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """The logits after each token of a fresh sequence: float32 [n_tokens, n_vocab]."""
        self._check_open()
        checked = check_prompt(ids, self._model)
        seq = self._model.new_sequence()
        try:
            rows = self._model.prefill(seq, checked, logits="all")
            self._model.check_file()
        finally:
            seq.close()
        assert rows is not None
        return rows

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        parse_special: bool = False,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        parse_special: bool = False,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
    ) -> list[GenerationResult]: ...

    def generate(
        self,
        prompt: Any,
        params: Any = None,
        *,
        parse_special: bool = False,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
    ) -> Any:
        """Complete a text, a list of token ids, or each of a list of prompts.

        A list of prompts gives a list of results in the same order, computed up
        to eight at a time; ``params`` may then be a list of the same length.
        See :meth:`Session.stream` for ``cancel`` and ``callback``.
        """
        if not _is_many(prompt):
            return self.stream(
                prompt, params, parse_special=parse_special, cancel=cancel, callback=callback
            ).run()
        prompts = [self.prompt_ids(item, parse_special=parse_special) for item in prompt]
        if callback is not None:
            raise UsageError("callback goes with one prompt, not several: use on_event of Batch for those")
        many = params if isinstance(params, Sequence) else [params] * len(prompts)
        return self._generate_all(prompts, [checked_params(p, self.params) for p in many], cancel)

    def samples(
        self,
        prompt: Prompt,
        n: int,
        params: SamplingParams | None = None,
        *,
        parse_special: bool = False,
        cancel: Cancel | None = None,
    ) -> list[GenerationResult]:
        """``n`` answers to one prompt, with the seeds s, s + 1, ...; the prompt is computed once."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise UsageError(f"samples takes a whole number of answers, at least 1, not {n!r}")
        params = checked_params(params, self.params)
        first = random_seed() if params.seed is None else params.seed
        each = [params.with_(seed=(first + i) % 2**64) for i in range(n)]
        return self._generate_all([self.prompt_ids(prompt, parse_special=parse_special)] * n, each, cancel)

    def beams(
        self,
        prompt: Prompt,
        n_beams: int = 4,
        params: SamplingParams | None = None,
        *,
        length_penalty: float = 1.0,
        early_stopping: bool = False,
        parse_special: bool = False,
        cancel: Cancel | None = None,
    ) -> list[Beam]:
        """The ``n_beams`` best answers that beam search finds, the best first (see :mod:`.beams`).

        Of ``params``, biases, bans, penalties, stops and limits apply; nothing is random.
        """
        options = BeamOptions(n_beams, length_penalty, early_stopping)
        ids = self.prompt_ids(prompt, parse_special=parse_special)
        params = checked_params(params, self.params)
        return BeamSearch(self._model, self._text.working_tokenizer, ids, params, options, cancel).run()

    def batch(
        self,
        requests: Iterable[Request],
        *,
        slots: int = MAX_SLOTS,
        cancel: Cancel | None = None,
        on_event: Callable[[Request, GenerationEvent], object] | None = None,
        on_prompt: Callable[[Request, int, int], object] | None = None,
    ) -> Iterator[Answer]:
        """Answers to many requests as they are done; see :class:`Batch`."""
        self._check_open()
        batch = Batch(
            self._model,
            self._text.working_tokenizer,
            slots=slots,
            cancel=cancel,
            on_event=on_event,
            on_prompt=on_prompt,
            params=self.params,
        )
        return batch.run(requests)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        parse_special: bool = False,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
        on_prompt: OnPrompt | None = None,
    ) -> GenerationStream:
        """The same as events, as they happen; ``on_prompt`` as in :meth:`Session.stream`."""
        ids = self.prompt_ids(prompt, parse_special=parse_special)
        return self._stream_ids(ids, params, cancel, callback, on_prompt)

    def chat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None = None,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
        **kw: Any,
    ) -> GenerationResult:
        """Answer a conversation: a list of dicts with ``role`` and ``content``, or of Pydantic objects.

        ``tools`` are JSON schemas of functions and ``documents`` texts to answer from, for
        models whose chat template knows them.  ``template_kwargs``, or further keywords, are
        what the template reads beside that, such as ``enable_thinking``; one that it never
        reads raises :class:`UsageError`.
        """
        return self.stream_chat(
            messages,
            params,
            tools=tools,
            documents=documents,
            template_kwargs=template_kwargs,
            cancel=cancel,
            callback=callback,
            **kw,
        ).run()

    def stream_chat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None = None,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
        **kw: Any,
    ) -> GenerationStream:
        """The same as events.  The text of messages is never parsed for special tokens."""
        limits = params if isinstance(params, SamplingParams) else self.params
        with rendering_within(limits.timeout, cancel):
            ids = self.encode_chat(
                messages, tools=tools, documents=documents, template_kwargs=template_kwargs, **kw
            )
        stops = self._text.needed_template.stops
        if stops:
            params = checked_params(params, self.params)
            params = params.with_(stop=(*params.stop, *stops))
        return self._stream_ids(ids, params, cancel, callback)

    def encode_chat(
        self,
        messages: Iterable[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **kw: Any,
    ) -> list[int]:
        """The token ids of a conversation, ready for an answer; the arguments are those of :meth:`chat`."""
        self._check_open()
        given = self._keywords(tools, documents, template_kwargs, kw)
        return encode_chat(
            self.tokenizer, self._text.needed_template, messages, add_generation_prompt, **given
        )

    def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        parse_special: bool = False,
    ) -> AsyncGenerator[GenerationEvent, None]:
        """:meth:`stream` for asyncio; the work is done in a thread of its own."""
        return stream_async(
            lambda cancel: self.stream(prompt, params, parse_special=parse_special, cancel=cancel)
        )

    def astream_chat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None = None,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **kw: Any,
    ) -> AsyncGenerator[GenerationEvent, None]:
        """:meth:`stream_chat` for asyncio."""
        given: dict[str, Any] = {"tools": tools, "documents": documents, "template_kwargs": template_kwargs}
        return stream_async(lambda cancel: self.stream_chat(messages, params, cancel=cancel, **given, **kw))

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> GenerationResult:
        """:meth:`generate` of one prompt for asyncio; cancelling the task stops the work."""
        result = None
        async for event in self.astream(prompt, params, parse_special=parse_special):
            result = event.result or result
        assert result is not None
        return result

    def session(self, reuse: Reuse = "all") -> Session:
        """A session with a cache of its own: for conversations that go on, rewinding, forking, saving.

        ``reuse`` as in :class:`Session`.
        """
        self._check_open()
        session = self._sessions.new(reuse)
        session.owner = self
        return session

    # -- the end

    def close(self) -> None:
        """Stop what is running, and give memory and threads back."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._resources.closed

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside

    def _check_open(self) -> None:
        self._resources.check_open()

    def prompt_ids(self, prompt: Prompt, *, parse_special: bool = False) -> list[int]:
        """The token ids that :meth:`generate` makes of a prompt; refused where the model cannot take them."""
        self._check_open()
        tokenizer = self.tokenizer if isinstance(prompt, str) else None
        return prompt_ids(prompt, self._model, tokenizer, parse_special=parse_special)

    def _keywords(
        self,
        tools: Iterable[Mapping[str, Any]] | None,
        documents: Iterable[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> dict[str, Any]:
        """What the chat template is given beside the messages; refuses what it would not look at."""
        for name in more.keys() - self._text.needed_template.reads:
            if (option := option_named(name)) is not None:
                raise UsageError(
                    f"{name} is a sampling option, not one of the chat template's: put it into the second"
                    f" argument, as in chat(messages, SamplingParams({option}=...))"
                )
        return self._text.keywords(tools, documents, template_kwargs, more)

    def _stream_ids(
        self,
        ids: list[int],
        params: SamplingParams | None,
        cancel: Cancel | None,
        callback: Callback | None,
        on_prompt: OnPrompt | None = None,
    ) -> GenerationStream:
        self._check_open()
        session = self._sessions.take()
        try:
            stream = session.stream(ids, params, cancel=cancel, callback=callback, on_prompt=on_prompt)
        except BaseException:
            self._sessions.give_back(session)
            raise
        # through self: an LLM lives as long as its streams
        stream.on_end(lambda: self._sessions.give_back(session))
        return stream

    def _generate_all(
        self, prompts: list[list[int]], params: Sequence[SamplingParams], cancel: Cancel | None
    ) -> list[GenerationResult]:
        self._check_open()
        return generate_all(self._model, self._text.working_tokenizer, prompts, params, cancel)


def _is_many(prompt: Any) -> bool:
    """Whether this is a list of prompts, of which there may be none, rather than a text or a list of token ids."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, (str, bytes, bytearray)):
        return False
    return not prompt or isinstance(prompt[0], (str, Sequence, np.ndarray))
