"""The Python API: one class that joins a model file, its tokenizer and its sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from llmgen.api_chat import ChatCalls
from llmgen.arguments import whole_number
from llmgen.engine.aio import generate_async, stream_async
from llmgen.engine.batch import MAX_SLOTS, Batch, generate_all
from llmgen.engine.beams import Beam, BeamOptions, BeamSearch
from llmgen.engine.events import GenerationEvent, GenerationResult
from llmgen.engine.prompt import Prompt, check_prompt
from llmgen.engine.requests import Answer, Request
from llmgen.engine.sequence_state import OnPrompt
from llmgen.engine.stopping import Cancel
from llmgen.engine.stream import Callback, GenerationStream
from llmgen.errors import UsageError, shown
from llmgen.sampling.params import SamplingParams, checked_params
from llmgen.sampling.rng import random_seed

Prompts = list[str] | list[list[int]] | list[Prompt] | tuple[Prompt, ...] | Sequence[Sequence[int]]
"""Several of them; not ``Sequence[Prompt]``, which a text would be, too."""


class LLM(ChatCalls):
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
        """Complete a text or a list of token ids.

        A list of prompts works, too, and is the same as :meth:`generate_many`.
        See :meth:`Session.stream` for ``cancel`` and ``callback``.
        """
        if not _is_many(prompt):
            return self.stream(
                prompt, params, parse_special=parse_special, cancel=cancel, callback=callback
            ).run()
        if callback is not None:
            raise UsageError("callback goes with one prompt, not several: use on_event of Batch for those")
        return self.generate_many(prompt, params, parse_special=parse_special, cancel=cancel)

    def generate_many(
        self,
        prompts: Prompts | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams | None] | None = None,
        *,
        parse_special: bool = False,
        cancel: Cancel | None = None,
    ) -> list[GenerationResult]:
        """The results of several prompts in the order given, computed up to eight at a time.

        ``params`` are one for all, or a list with one for each prompt.
        """
        if isinstance(prompts, (str, bytes, bytearray)) or not isinstance(prompts, Iterable):
            raise UsageError(
                f"generate_many takes several prompts, not {shown(prompts)}: put it into a list, or use generate"
            )
        ids = [self.prompt_ids(prompt, parse_special=parse_special) for prompt in prompts]
        each = params if isinstance(params, Sequence) else [params] * len(ids)
        return self._generate_all(ids, [checked_params(p, self.params) for p in each], cancel)

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
        n = whole_number("samples (--samples)", n, 1)
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
        requests: Iterable[Request | None],
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
            speculation=self._speculation,
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
        """The events of :meth:`generate`, as they happen; ``on_prompt`` as in :meth:`Session.stream`."""
        ids = self.prompt_ids(prompt, parse_special=parse_special)
        return self._stream_ids(ids, params, cancel, callback, on_prompt)

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

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> GenerationResult:
        """:meth:`generate` of one prompt for asyncio; cancelling the task stops the work."""
        return await generate_async(
            lambda cancel: self.stream(prompt, params, parse_special=parse_special, cancel=cancel)
        )

    def _generate_all(
        self, prompts: list[list[int]], params: Sequence[SamplingParams], cancel: Cancel | None
    ) -> list[GenerationResult]:
        self._check_open()
        return generate_all(
            self._model, self._text.working_tokenizer, prompts, params, cancel, self._speculation
        )


def _is_many(prompt: Any) -> bool:
    """Whether this is a list of prompts, of which there may be none, rather than a text or a list of token ids."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, (str, bytes, bytearray)):
        return False
    return not prompt or isinstance(prompt[0], (str, Sequence, np.ndarray))
