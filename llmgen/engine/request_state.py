"""A request that a scheduler is working on."""

from __future__ import annotations

import time
from typing import cast

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.completion import Completion
from llmgen.engine.events import Ending, GenerationEvent
from llmgen.engine.requests import Request
from llmgen.engine.sequence_state import Reuse, SequenceState
from llmgen.engine.speculation.speculator import Speculator
from llmgen.engine.stopping import Limits
from llmgen.errors import Interrupted, LLMGenError
from llmgen.model.runs import Part
from llmgen.sampling.rejection import Guess


class RequestState:
    """A request, the answer to it so far, and the sequence that it is computed on.

    It begins *prefilling*: tokens are computed as prompt.  With the logits of the last one it is
    *generating*: the only token that is not computed is the one chosen last.  A shift of the
    context makes it prefilling again.  Where tokens are guessed, a run may also compute some
    of the next ones: it is *ahead* until the answer has reached them, one a step.
    """

    def __init__(
        self,
        request: Request,
        ids: list[int],
        completion: Completion,
        sequence: SequenceState,
        *,
        speculator: Speculator | None = None,
        reuse: Reuse = "prompt",
        keeps_sequence: bool = False,
    ) -> None:
        """``ids``: of the prompt; ``speculator``: guesses tokens.

        ``keeps_sequence``: the sequence, and the speculator, are not to be closed at the end.
        """
        self.request = request
        self.ids = ids
        self.completion = completion
        self.sequence = sequence
        self.speculator = speculator
        self.guesses: list[Guess] = []
        """Tokens that the next run computes after the one chosen last."""
        self.limits = Limits(completion.params.timeout)
        self.error: LLMGenError | None = None
        self.keeps_sequence = keeps_sequence
        self.begun = False
        self.reported = False  # to whoever watches prompts
        self.prompt_done = False
        self._reuse: Reuse = reuse

    @property
    def open(self) -> bool:
        """Whether it has not ended yet."""
        return self.completion.ending is None

    @property
    def prefilling(self) -> bool:
        """Whether tokens are to be computed as prompt."""
        return self.open and (not self.prompt_done or self.sequence.n_missing > 1)

    @property
    def generating(self) -> bool:
        """Whether the token chosen last is to be computed, and another one to be chosen."""
        return self.open and not self.prefilling

    @property
    def ahead(self) -> bool:
        """Whether the next token can be chosen without a run."""
        return self.open and bool(self.sequence.ahead)

    @property
    def wants_token(self) -> bool:
        """Whether the prompt's logits are needed: not after a shift of the context, nor if no token is wanted."""
        return not self.prompt_done and self.completion.rules.by_length(0) is None

    @property
    def goes_together(self) -> bool:
        """Whether its prompt may be computed with others in one run.

        One with a timeout is computed alone, and can be stopped; one of a recurrent model needs a
        checkpoint on the way.
        """
        alone = self.completion.params.timeout is not None or self.sequence.seq.needs_checkpoint
        return self.wants_token and not alone

    def begin(self) -> None:
        """Take the prompt."""
        self.begun = True
        self.completion.cached_tokens = self.sequence.begin(self.ids, self._reuse)
        if self.speculator:
            self.speculator.start_answer()
            self.speculator.begin(self.ids, len(self.ids))

    def end(self, ending: Ending) -> None:
        """End it, unless it has ended already."""
        self.completion.ending = self.completion.ending or ending

    def fail(self, error: LLMGenError) -> None:
        """End it with an error, keeping the answer so far."""
        self.error = error
        self.completion.ending = Ending("interrupted", "error")

    def prefill(self) -> NDArray[np.float32] | None:
        """Compute the next piece of the prompt: float32 [n_vocab] if that completes it and a token is wanted."""
        return self.sequence.prefill(len(self.sequence.tokens) - self.prompt_done, self.wants_token)

    def count_prefill(self, started: float) -> None:
        """Account for a computation of prompt tokens, whole or not, that began at ``started``."""
        if self.prompt_done:  # a shift of the context
            self.completion.decode_s += time.perf_counter() - started
            return
        self.completion.prefill_s += time.perf_counter() - started
        self.completion.prefill_tokens = self.sequence.cached - self.completion.cached_tokens

    def finish_prompt(self, logits: NDArray[np.float32] | None) -> GenerationEvent | None:
        """The prompt is computed: choose the first token from float32 [n_vocab]; None if none is wanted."""
        self.prompt_done = True
        if logits is None:
            self.completion.ending = self.completion.rules.by_length(0)
            return None
        return self.choose(logits)

    def shift(self) -> None:
        """Drop the oldest tokens of a full context; the others are to be computed again, as prompt."""
        self.sequence.shift(self.completion.context_keep)
        if self.speculator:
            self.speculator.begin(self.sequence.tokens, len(self.sequence.tokens) - 1)

    def most_guesses(self, n: int) -> int:
        """How many tokens, up to n, it makes sense to guess: one more is chosen after them."""
        wanted = self.completion.params.token_limit - len(self.completion.tokens)
        return self.sequence.most_guesses(int(min(n, wanted - 1)))

    def part(self) -> Part:
        """What a run of generated tokens computes of this request: the token chosen last, and the guesses."""
        return self.sequence.part(self.guesses)

    def take(self, rows: NDArray[np.float32]) -> GenerationEvent | None:
        """Choose the next token after a run, from the first of float32 [1 + guesses, n_vocab], in place."""
        if not self.guesses:
            return self.choose(rows[0])
        guesses, self.guesses = self.guesses, []
        self.sequence.look_ahead(guesses, rows[1:])
        event = self.choose(rows[0])
        self.sequence.keep_rows()
        return event

    def choose_ahead(self) -> GenerationEvent | None:
        """Choose the next token from what the last run has computed ahead."""
        return self.choose(self.sequence.next_row())

    def choose(self, logits: NDArray[np.float32]) -> GenerationEvent | None:
        """Choose the next token from float32 [n_vocab]; None for one that only ends the answer."""
        guess = self.sequence.ahead[0] if self.sequence.ahead else None
        rejects = self.speculator is not None and self.speculator.rejects
        event = self.completion.step(logits, guess if rejects else None)
        if event:  # however the answer ends, this token is part of it
            self.sequence.tokens.append(cast(int, event.token_id))
        if guess:
            self._judge(guess)
        return event

    def _judge(self, guess: Guess) -> None:
        """Keep the further guesses if this one is the token that was chosen."""
        right = guess.token == self.completion.chosen
        if self.speculator:
            self.speculator.judged(right, len(self.sequence.ahead) - 1)
        if not right or not self.open:
            self.sequence.settle()

    def last_event(self) -> GenerationEvent:
        """The last event, with the result."""
        return self.completion.end(self.speculator.stats(self.completion) if self.speculator else None)

    def release(self) -> None:
        """Nothing more is computed: give back what is not to be kept."""
        if self.keeps_sequence:
            self.sequence.settle()
            return
        self.sequence.seq.close()
        if self.speculator:
            self.speculator.close()


class OwnError:
    """A block in which an error ends one request only; made for each token, so not of a generator."""

    def __init__(self, state: RequestState) -> None:
        self._state = state

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, LLMGenError) and not isinstance(error, Interrupted):
            self._state.fail(error)
            return True
        return False
