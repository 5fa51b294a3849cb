"""A loaded model as a resource: opening it, what its file says, sessions and streams over it, closing it."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Literal, Never, Self

from llmgen import hub
from llmgen.api_decode import KeptReadings
from llmgen.api_kv import resolved
from llmgen.api_speculation import OpenDraft
from llmgen.arguments import checked_function
from llmgen.backends.cpu.memory import available_bytes
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.weight_memory import Load
from llmgen.engine.kv_plan import Plan
from llmgen.engine.prompt import Prompt, prompt_ids
from llmgen.engine.sequence_state import OnPrompt, Reuse
from llmgen.engine.session import Session
from llmgen.engine.sessions import Sessions
from llmgen.engine.speculation.config import SpeculativeConfig, speculative_config
from llmgen.engine.speculation.speculator import Speculation
from llmgen.engine.stopping import Cancel
from llmgen.engine.stream import Callback, GenerationStream
from llmgen.errors import LLMGenError, UsageError
from llmgen.gguf import GGUFFile, check_model
from llmgen.model import archs
from llmgen.model.decode_config import DecodeConfig
from llmgen.model.decoder import Decoder
from llmgen.model.kv_config import KVAutoConfig, KVCacheConfig
from llmgen.sampling.params import SamplingParams, checked_params
from llmgen.tokenizer import ChatTemplate, Tokenizer
from llmgen.tokenizer.model_text import ModelText

KVType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "nf4", "fp32", "fp16", "q8", "q4", "auto"]
"""One kind for keys and values, or auto; a KVCacheConfig has one for each."""

DecodePlanName = Literal["none", "auto", "fixed"]

_log = logging.getLogger(__name__)


class _Resources:
    """What has to be closed, in a safe order; shared by an LLM and its finalizer."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.model: Model | None = None
        self.sessions: Sessions | None = None
        self.draft: OpenDraft | None = None
        self.readings: KeptReadings | None = None
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
        if self.draft is not None:
            self.draft.close()
        if self.model is not None:
            self.model.close()
        if self.readings is not None:
            try:
                self.readings.save()
            except LLMGenError as error:  # found on the way, and will be again
                _log.debug("how the cache is read fastest is not kept: %s", error)
        self.file.close()


class LoadedModel:
    """A model file, its tokenizer and its sessions, from :meth:`__init__` to :meth:`close`."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        kv_type: KVType | KVCacheConfig | KVAutoConfig = "f16",
        rope_scaling: str | None = None,
        decode_plan: DecodePlanName | DecodeConfig = "auto",
        load: Load = "auto",
        chat_template: str | PathLike[str] | ChatTemplate | None = None,
        params: SamplingParams | None = None,
        draft: str | PathLike[str] | None = None,
        lookup: bool = False,
        speculation: SpeculativeConfig | None = None,
        progress: Any = None,
        kv_report: Any = None,
    ) -> None:
        """Load the model at a path (of a split model, the first part) or with a name, as on the command line.

        A known name, such as ``smollm2``, and a place on the hub (``OWNER/REPO:TYPE``) or a URL are fetched
        where the model is not here yet.
        ``n_ctx`` is the context length in tokens (default: the model's, capped
        to memory), ``n_threads`` the number of threads (default: usable physical
        cores), ``kv_type`` the kind of numbers that the key-value cache holds, for keys and
        values apart as a :class:`KVCacheConfig`; ``"auto"`` or a :class:`KVAutoConfig` measures
        the model and chooses, see :attr:`kv_plan`.  ``rope_scaling``, such as ``"yarn:4"``, ``"linear:2"`` or
        ``"none"``, maps positions beyond the trained context into it, in place of the file's way.
        ``decode_plan`` says how generated tokens attend to a long context, see :class:`DecodeConfig`.
        ``load`` says where the weights lie while they are used: in the mapped file ("mmap"), in a copy in large
        pages of memory, from which they are read faster ("memory", Linux only), or "auto", which starts mapped and
        moves gradually while tokens are generated, if half of the free memory holds them and that is faster.
        ``chat_template`` replaces the file's main one: a Jinja text, the path of a Jinja file, or the name of
        one of the file's further templates or of a built-in format.  ``params`` apply to every call that is given
        none.  ``draft``, the path or name of a smaller model with the same vocabulary, and ``lookup``
        guess tokens, so that one run gives several of them; the text stays the same.
        ``speculation`` has further options of that.  ``progress`` is called while kernels are
        compiled, ``kv_report`` with each candidate of "auto" that is about to be measured (None: another program
        is measuring, and this one waits).
        Raises :class:`LLMGenError`.
        """
        started = time.perf_counter()
        self.params = checked_params(params)
        guessing = speculative_config(draft, lookup, speculation)
        progress = checked_function("progress", progress, "two numbers of kernels")
        kv_report = checked_function("kv_report", kv_report, "kinds and two numbers")
        file = GGUFFile.open(
            hub.locate(path, available_bytes, check_model, archs.runs) if isinstance(path, str) else path
        )
        self._resources = _Resources(file)
        self._finalizer = weakref.finalize(self, self._resources.close)
        try:
            self._text = text = ModelText(file, chat_template, self._resources.check_open)
            if chat_template is not None:
                text.check_choice()  # a wrong one is refused before the model is loaded
            if guessing is not None:
                self._resources.draft = OpenDraft(guessing, file)
            kinds, n_ctx, self.kv_plan = resolved(
                *(file, lambda: text.working_tokenizer, n_ctx, n_threads, kv_type, kv_report, progress),
                rope_scaling,
            )
            self._model = Model.load(
                *(file, n_ctx, n_threads, kinds, progress),
                rope_scaling=rope_scaling,
                decode_plan=decode_plan,
                load=load,
            )
        except BaseException:
            self._finalizer()
            raise
        self._resources.model = self._model
        self._resources.readings = KeptReadings.of(self._model, kv_type)
        if self._resources.readings is not None:
            self._resources.readings.load()
        self._speculation = self._open_speculation(progress)
        # what the finalizer holds must not lead back to this object
        self._sessions = Sessions(self._model, lambda: text.working_tokenizer, self.params, self._speculation)
        self._resources.sessions = self._sessions
        _log.debug(
            "loaded %s in %.3f s: %s, context %d, %d threads, KV cache %s, kernels for %s",
            *(file.path, time.perf_counter() - started, self._model.config.architecture, self._model.n_ctx),
            *(self._model.n_threads, self._model.kv_type, self._model.kernel_level),
        )

    def _open_speculation(self, progress: Any) -> Speculation | None:
        if self._resources.draft is None:
            return None
        try:
            return self._resources.draft.speculation(self._model, progress)
        except BaseException:
            self._finalizer()
            raise

    # -- what the file says

    @property
    def config(self) -> Decoder:
        """The model's dimensions: architecture, n_layers, n_embd, vocab_size, context_length ..."""
        return self._model.config

    kv_plan: Plan | None
    """Why the KV cache has its kind, if that was chosen by measuring (``kv_type="auto"``)."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's metadata as Python values; large arrays are read when they are used."""
        self._check_open()
        return self._resources.file.metadata

    @property
    def model(self) -> Model:
        """The loaded model, for callers that drive it themselves."""
        self._check_open()
        return self._model

    @property
    def draft_model(self) -> Model | None:
        """The loaded draft model, which guesses tokens for :attr:`model`; None where there is none."""
        self._check_open()
        return None if self._resources.draft is None else self._resources.draft.model

    @property
    def n_ctx(self) -> int:
        """The context length in tokens."""
        return int(self._model.n_ctx)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.  Raises :class:`TokenizerError` if the file has none that llmgen can use."""
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
        return self.tokenizer.decode(ids)

    def session(self, reuse: Reuse = "all") -> Session:
        """A session with its own cache: for conversations with several turns, rewinding, forking, saving.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Never:
        raise UsageError(
            "an LLM cannot be copied or sent to another process: open the file there, or begin the process by fork"
        )

    # -- inside

    def _check_open(self) -> None:
        self._resources.check_open()

    def prompt_ids(self, prompt: Prompt, *, parse_special: bool = False) -> list[int]:
        """The token ids that :meth:`generate` makes of a prompt; refused if the model cannot take them."""
        self._check_open()
        tokenizer = self.tokenizer if isinstance(prompt, str) else None
        return prompt_ids(prompt, self._model, tokenizer, parse_special=parse_special)

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
