"""From logits to a token, in a fixed order.

1. Processors: the caller's own functions, each given the logits of the one before.
2. The constraint: tokens that it does not allow are removed.
3. Bias: logit bias, bans, ignore_eos, min_tokens.
4. The samplers of ``SamplingParams.samplers``, by default llama.cpp's order:
   penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature.
   Under ``mirostat`` the two that change logits, then temperature, then Mirostat.
   Under ``temp`` 0 the two that change logits, then the most likely token.
5. The distribution: softmax over the candidates that are left.
6. The token: the first, by rising id, whose cumulative probability exceeds a uniform
   draw, which depends only on the seed and the position of the token (see rng.py).

Everything but the processors is one compiled call (see backends/cpu/sampling.py).

The windows of penalties and DRY include the prompt, even the template's part, as in llama.cpp's
server and command line (``init_sampler`` in tools/server/server-context.cpp).  An
end-of-generation token is never penalized, though: in a conversation each turn ends with
one, and if it were penalized, answers would grow longer and longer.

Mirostat (Basu et al. 2020, arXiv:2007.14966) holds the surprise near a target.  ``mu`` is the
largest surprise allowed, in bits, and starts at 2 * tau.  As in llama.cpp, and unlike the
paper, the surprise is that under the distribution after the cut.

Edge cases: a logit of NaN or +inf is an error, and so is a mask that leaves no token;
of equal logits the lower token id comes first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgen.backends.cpu.sampling import Chain, Repeats
from llmgen.errors import UsageError, kind_of
from llmgen.sampling.bias import banned_next, resolve_bans, resolve_bias, vocabulary_ids
from llmgen.sampling.breakers import Breakers
from llmgen.sampling.history import History
from llmgen.sampling.interfaces import Processor
from llmgen.sampling.logits import Candidates, check_finite
from llmgen.sampling.params import SamplingParams
from llmgen.sampling.rejection import Guess, judge
from llmgen.sampling.rng import LANE_ACCEPT, LANE_GUESS, LANE_TOKEN, LANE_XTC, random_seed, uniform
from llmgen.sampling.scores import TokenLogprob, TokenScore
from llmgen.sampling.stages import stages
from llmgen.tokenizer.interfaces import TokenizerLike

Floats = NDArray[np.float32]
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token; ``score`` where log-probabilities were asked for."""

    token_id: int
    score: TokenScore | None = None


class Sampler:
    """Chooses the tokens of one sequence.

    It owns the state of sampling: the tokens so far (prompt included,
    for the penalties), the number of the next draw, Mirostat's ``mu``, and the
    constraint's position.  Only :meth:`sample` and :meth:`accept` change it.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        *,
        prompt_ids: Iterable[int] = (),
        eog_ids: Collection[int] = (),
        tokenizer: TokenizerLike | None = None,
        seed: int | None = None,
        n_ctx: int = 0,
    ) -> None:
        """``seed`` replaces that of ``params``; with neither, a random one is drawn.

        ``tokenizer`` is needed for biases and bans given as text and for DRY's
        breakers.  ``n_ctx`` is the window that -1 stands for (0: everything).
        """
        self.params = params
        self.n_vocab = n_vocab
        chosen = seed if seed is not None else params.seed
        self.seed = random_seed() if chosen is None else chosen
        self.step = 0
        self.mu = 2 * params.mirostat_tau
        self.sampling_s = 0.0
        self._lane = LANE_TOKEN
        self._n_ctx = n_ctx or -1
        self._eog = vocabulary_ids(eog_ids, n_vocab)
        self._ends = frozenset(self._eog.tolist())
        self._stop_ids = vocabulary_ids(params.stop_token_ids, n_vocab)
        self._bias = resolve_bias(params, n_vocab, self._eog, tokenizer)
        self._banned_sequences = [
            [*map(self._noted, ids[:-1]), ids[-1]] for ids in resolve_bans(params, n_vocab, tokenizer)
        ]
        self._constraint = None if params.constraint is None else params.constraint.fork()
        self._breakers: Breakers | None = None
        self._repeats: Repeats | None = None
        if params.dry_multiplier > 0:
            if params.dry_sequence_breakers and tokenizer:
                self._breakers = Breakers(params.dry_sequence_breakers, tokenizer.token_bytes)
            flags = np.zeros(n_vocab, dtype=np.uint8)
            self._repeats = Repeats(params.dry_multiplier, params.dry_base, flags)
        self.history = History()
        for token in prompt_ids:
            self._remember(token)
        self._chain = self._new_chain()

    def _new_chain(self) -> Chain:
        tokens, bias = self._bias
        return Chain(
            self.n_vocab,
            stages(self.params, self._n_ctx),
            greedy=self.params.greedy,
            tokens=tokens,
            bias=bias,
        )

    def sample(self, logits: Floats, guess: Guess | None = None) -> Choice:
        """Choose the next token from float32 [n_vocab] (not changed) and remember it.

        A ``guess`` is judged by rejection sampling; greedy choices do not depend on guesses.
        Raises :class:`UsageError` for anything but such an array, :class:`LLMGenError` if a
        logit is NaN or +inf, or all are -inf.
        """
        p = self.params
        started = time.perf_counter()
        processed = self._processed(logits)
        token, share = self._choose(processed)
        if guess is not None and not p.greedy:
            draws = self._uniform(LANE_ACCEPT), self._uniform(LANE_TOKEN)
            token, share = judge(self._left(processed), guess, *draws)
        score = None
        if p.logprobs is not None:
            candidates = Candidates(None, logits) if p.logprobs_mode == "raw" else self._left(processed)
            score = candidates.score(token, p.logprobs)
        if p.mirostat and not p.greedy:
            surprise = -math.log2(max(share, 1e-300))
            self.mu -= p.mirostat_eta * (surprise - p.mirostat_tau)
        self.accept(token)
        self.sampling_s += time.perf_counter() - started
        return Choice(token, score)

    def distribution(self, logits: Floats) -> Candidates:
        """The candidates after every stage; a token is drawn from the softmax of their logits."""
        logits = self._processed(logits)
        self._choose(logits)
        return self._left(logits)

    def best(self, logits: Floats, k: int) -> list[TokenLogprob]:
        """The k most likely of :meth:`distribution`, with their log-probabilities there."""
        return self.distribution(logits).best(k)

    def accept(self, token: int) -> None:
        """Remember the token of this step, however it was chosen."""
        self._remember(token)
        if self._constraint is not None:
            self._constraint.accept(token)
        self.step += 1

    def fork(self) -> Sampler:
        """An independent copy: same seed, same tokens so far."""
        twin = copy(self)
        twin.history = self.history.copy()
        twin._breakers = copy(self._breakers)
        twin._repeats = copy(self._repeats)
        twin._constraint = None if self._constraint is None else self._constraint.fork()
        twin._chain = twin._new_chain()
        return twin

    def guessing(self, independent: bool) -> Sampler:
        """A copy that chooses guesses, from the logits of another model.

        It draws the same random numbers, so that both often choose the same token, unless its draws are
        to be ``independent``.  Processors are left out: they are the caller's own, and see each token once.
        """
        twin = self.fork()
        if self.params.processors or self.params.logprobs is not None:
            twin.params = self.params.with_(processors=(), logprobs=None)
        twin._lane = LANE_GUESS if independent else LANE_TOKEN
        return twin

    def guess(self, logits: Floats) -> Guess:
        """Choose a guess from float32 [n_vocab] and remember it."""
        token = self.sample(logits).token_id
        if self.params.greedy or self._lane == LANE_TOKEN:
            return Guess(token)
        return Guess(token, self._left(logits))

    def _choose(self, logits: Floats) -> tuple[int, float]:
        """The token, and its probability after every stage."""
        p = self.params
        if self._repeats is not None:
            self._repeats.since = self._breakers.since if self._breakers else len(self.history)
        return self._chain.choose(
            logits,
            0.0 if p.greedy else self._uniform(self._lane),
            mu=self.mu,
            xtc=p.xtc_probability > 0 and self._uniform(LANE_XTC) < p.xtc_probability,
            allowed=self._allowed(),
            masked=self._masked(),
            history=self.history.tokens if self._chain.looks_back else None,
            repeats=self._repeats,
        )

    def _uniform(self, lane: int) -> float:
        return uniform(self.seed, self.step, lane)

    def _left(self, logits: Floats) -> Candidates:
        """What the last choice was made from."""
        return Candidates(*self._chain.left(logits))

    def _processed(self, logits: Floats) -> Floats:
        """The logits after the processors; refuses anything but a row of logits."""
        if not _is_row(logits, self.n_vocab) or logits.dtype != _FLOAT32:
            raise UsageError(
                f"logits must be one row, an array float32 [{self.n_vocab}], not {_described(logits)}"
            )
        for processor in self.params.processors:
            logits = self._changed(processor, logits)
        return logits

    def _changed(self, processor: Processor, logits: Floats) -> Floats:
        """The logits that a processor makes of these."""
        tokens = self.history.tokens
        found = processor(np.where(tokens < 0, ~tokens, tokens), logits.copy())
        name = getattr(processor, "__name__", type(processor).__name__)
        if not _is_row(found, self.n_vocab) or found.dtype.kind != "f":
            raise UsageError(
                f"the processor {name} must return an array float32 [{self.n_vocab}], not {_described(found)}"
            )
        if np.isnan(found).any() or found.max(initial=-np.inf) == np.inf:
            check_finite(logits[logits != -np.inf])  # if the model is to blame, say so
            raise UsageError(f"the processor {name} made logits that are NaN or +inf: -inf rules a token out")
        return np.asarray(found, dtype=np.float32)

    def _allowed(self) -> NDArray[np.bool_] | None:
        """What the constraint allows."""
        allowed = None if self._constraint is None else self._constraint.allowed()
        if allowed is not None and not (_is_row(allowed, self.n_vocab) and allowed.dtype == np.bool_):
            raise UsageError(
                f"the constraint {type(self._constraint).__name__} must allow tokens by an array bool"
                f" [{self.n_vocab}] or None, not {_described(allowed)}"
            )
        return allowed

    def _masked(self) -> NDArray[np.int64] | None:
        """Distinct tokens that may not come next: the ends of banned sequences, and endings before ``min_tokens``."""
        masked = None
        if self._banned_sequences:
            masked = banned_next(self.history.tokens, self._banned_sequences)
            masked = masked[masked < self.n_vocab]
        if self.step < self.params.min_tokens:
            endings = np.union1d(self._eog, self._stop_ids)
            masked = endings if masked is None else np.union1d(masked, endings)
        return masked

    def _noted(self, token: int) -> int:
        """A token as the history has it: one that ends a generation as a negative number, which is never penalized."""
        return ~token if token in self._ends else token

    def _remember(self, token: int) -> None:
        self.history.append(self._noted(token))
        if self._breakers:
            self._breakers.push(token)
            if self._repeats is not None and 0 <= token < self.n_vocab:
                self._repeats.breakers[token] = self._breakers.inside(token)


def _is_row(found: object, n_vocab: int) -> bool:
    return isinstance(found, np.ndarray) and found.shape == (n_vocab,)


def _described(found: object) -> str:
    if isinstance(found, np.ndarray):
        return f"an array {found.dtype} {list(found.shape)}"
    return kind_of(found)
