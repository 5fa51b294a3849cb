"""From logits to a token, in one stated order.

1. Bias: logit bias, bans, ignore_eos, min_tokens.
2. The samplers of ``SamplingParams.samplers``, by default llama.cpp's order:
   penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature.
   Under ``mirostat`` the two that change logits, then temperature, then Mirostat.
   Under ``temp`` 0 the two that change logits, then the most likely token.
3. The distribution: softmax over the candidates that are left.
4. The token: the first, by rising id, whose cumulative probability exceeds a uniform
   draw, which depends on the seed and the number of the token only (see rng.py).

All of it is one compiled call where the kernels apply (see native.py); the functions of
filters.py, mirostat.py, penalties.py and dry.py say the same in numpy, and serve where
they do not.

The windows of penalties and DRY hold the prompt, too, template and all, as in llama.cpp's
server and command line (``init_sampler`` in tools/server/server-context.cpp).  An
end-of-generation token is never penalized, though: in a conversation each turn ends with
one, and with a penalty on it answers would grow longer and longer.

Edge values: a logit of NaN or +inf is an error, as is a vocabulary that is masked
whole; of equal logits the lower token id comes first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgen.errors import LLMGenError, UsageError
from llmgen.sampling import filters, mirostat, native, penalties
from llmgen.sampling.candidates import Candidates, Weights, broken_logits
from llmgen.sampling.dry import Breakers, dry, longest_counted
from llmgen.sampling.history import History
from llmgen.sampling.logprobs import score
from llmgen.sampling.params import SamplingParams
from llmgen.sampling.rng import LANE_TOKEN, LANE_XTC, random_seed, uniform
from llmgen.sampling.scores import TokenScore
from llmgen.tokenizer.interfaces import TokenizerLike

Stage = Callable[[Candidates], Candidates]

_CHANGES_LOGITS = ("penalties", "dry")
_OFF = 2.0  # a threshold of XTC under which nothing is


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token; ``score`` where log-probabilities were asked for."""

    token_id: int
    score: TokenScore | None = None


class Sampler:
    """Chooses the tokens of one sequence.

    It owns what sampling has to remember: the tokens so far (prompt included,
    for the penalties), the number of the next draw, Mirostat's ``mu``.  Only
    :meth:`sample` changes it.
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
        self._n_ctx = n_ctx or -1
        self._eog = _vocabulary_ids(eog_ids, n_vocab)
        self._ends = frozenset(self._eog.tolist())
        self._stop_ids = _vocabulary_ids(params.stop_token_ids, n_vocab)
        self._bias = _resolve_bias(params, n_vocab, self._eog, tokenizer)
        self._banned_sequences = [
            [*map(self._noted, ids[:-1]), ids[-1]] for ids in _resolve_bans(params, n_vocab, tokenizer)
        ]
        self._breakers = None
        if params.dry_multiplier > 0 and params.dry_sequence_breakers and tokenizer:
            self._breakers = Breakers(params.dry_sequence_breakers, tokenizer.token_bytes)
        self._repeats: native.Repeats | None = None
        if self._stage("dry") is not None:
            flags = np.zeros(n_vocab, dtype=np.uint8)
            self._repeats = native.Repeats(params.dry_multiplier, params.dry_base, flags)
        self.history = History()
        for token in prompt_ids:
            self._accept(token)
        self._stages = self._chain()
        self._chooser = self._make_chooser()

    def sample(self, logits: NDArray[np.float32]) -> Choice:
        """Choose the next token from float32 [n_vocab] (not changed) and remember it.

        Raises :class:`UsageError` for what is no such array, :class:`LLMGenError` where one
        logit is NaN or +inf, or all are -inf.
        """
        self._check(logits)
        started = time.perf_counter()
        choice = self._choose_at_once(logits) or self._choose_in_steps(logits)
        self._accept(choice.token_id)
        self.step += 1
        self.sampling_s += time.perf_counter() - started
        return choice

    def _choose_in_steps(self, logits: NDArray[np.float32]) -> Choice:
        c = self.distribution(logits)
        token = c.token(self._draw(c))
        return Choice(token, self._score(c, logits, token))

    def _choose_at_once(self, logits: NDArray[np.float32]) -> Choice | None:
        """The same by one compiled call; None where that does not apply: few tokens, no compiler, infinities."""
        p = self.params
        found = self._chooser.choose(
            logits,
            0.0 if p.greedy else uniform(self.seed, self.step, LANE_TOKEN),
            mu=self.mu,
            xtc_threshold=self._xtc_threshold(),
            masked=self._masked(),
            history=self.history.tokens,
            repeats=self._repeats_now(),
        )
        if found is None:
            return None
        token, share = found
        if p.mirostat and not p.greedy:
            observed = -math.log2(max(share, 1e-300))
            self.mu = mirostat.update(self.mu, observed, p.mirostat_tau, p.mirostat_eta)
        if p.logprobs is None:
            return Choice(token)
        left = (
            Candidates(None, logits) if p.logprobs_mode == "raw" else Candidates(*self._chooser.left(logits))
        )
        return Choice(token, score(left, token, p.logprobs))

    def _xtc_threshold(self) -> float:
        """XTC's threshold, or one that switches it off where it is not this step's turn."""
        p = self.params
        if p.xtc_probability <= 0 or uniform(self.seed, self.step, LANE_XTC) >= p.xtc_probability:
            return _OFF
        return p.xtc_threshold

    def _repeats_now(self) -> native.Repeats | None:
        if self._repeats is not None:
            self._repeats.since = self._breakers.since if self._breakers else len(self.history)
        return self._repeats

    def distribution(self, logits: NDArray[np.float32]) -> Candidates:
        """The candidates after every stage; a token is drawn from the softmax of their logits."""
        self._check(logits)
        c = self.biased(Candidates(None, logits))
        _check_peak(c)
        for stage in self._stages:
            c = stage(c)
        return c

    def _check(self, logits: NDArray[np.float32]) -> None:
        """Refuse what is no row of logits: read as one, it would give tokens without meaning."""
        if isinstance(logits, np.ndarray) and logits.shape == (self.n_vocab,) and logits.dtype == np.float32:
            return
        found = f"a {type(logits).__name__}"
        if isinstance(logits, np.ndarray):
            found = f"an array {logits.dtype} {list(logits.shape)}"
        raise UsageError(f"logits must be one row, an array float32 [{self.n_vocab}], not {found}")

    def fork(self) -> Sampler:
        """An independent copy: same seed, same tokens so far."""
        twin = copy(self)
        twin.history = self.history.copy()
        twin._breakers = copy(self._breakers)
        twin._repeats = copy(self._repeats)
        twin._stages = twin._chain()  # the stages are bound to their sampler
        twin._chooser = twin._make_chooser()
        return twin

    def accept(self, token: int) -> None:
        """Remember a token that somebody else has chosen for this step."""
        self._accept(token)
        self.step += 1

    def biased(self, c: Candidates) -> Candidates:
        """Step 1 of the pipeline: bias, bans, and no ending before ``min_tokens``."""
        c = penalties.add_bias(c, *self._bias)
        masked = self._masked()
        return c if masked is None else penalties.add_bias(c, masked, np.full(len(masked), -np.inf))

    def _masked(self) -> NDArray[np.int64] | None:
        """Distinct tokens that may not come next: the ends of banned sequences, and endings before ``min_tokens``."""
        masked = None
        if self._banned_sequences:
            masked = penalties.banned_next(self.history.tokens, self._banned_sequences)
            masked = masked[masked < self.n_vocab]
        if self.step < self.params.min_tokens:
            endings = np.union1d(self._eog, self._stop_ids)
            masked = endings if masked is None else np.union1d(masked, endings)
        return masked

    def _draw(self, c: Candidates) -> int:
        """The index of the chosen candidate."""
        p = self.params
        if p.greedy:
            return int(c.logits.argmax())
        w = Weights(c)
        index = w.pick(uniform(self.seed, self.step, LANE_TOKEN))
        if p.mirostat:
            self.mu = mirostat.update(self.mu, mirostat.surprise(w, index), p.mirostat_tau, p.mirostat_eta)
        return index

    def _score(self, c: Candidates, logits: NDArray[np.float32], token: int) -> TokenScore | None:
        if self.params.logprobs is None:
            return None
        if self.params.logprobs_mode == "raw":
            c = Candidates(None, logits)
        return score(c, token, self.params.logprobs)

    def _noted(self, token: int) -> int:
        """A token as the history has it: one that ends a generation as a negative number, which nothing penalizes."""
        return ~token if token in self._ends else token

    def _accept(self, token: int) -> None:
        self.history.append(self._noted(token))
        if self._breakers:
            self._breakers.push(token)
            if self._repeats is not None and 0 <= token < self.n_vocab:
                self._repeats.breakers[token] = self._breakers.inside(token)

    def _window(self, last_n: int) -> NDArray[np.int64]:
        return penalties.window(self.history.tokens, self._n_ctx if last_n < 0 else last_n)

    def _chain(self) -> list[Stage]:
        """The stages that do something under these options, in order."""
        p = self.params
        if p.greedy or p.mirostat:
            chain = [self._stage(name) for name in p.samplers if name in _CHANGES_LOGITS]
            if not p.greedy:
                chain += [partial(filters.temperature, temp=p.temp), self._mirostat]
        else:
            chain = [self._stage(name) for name in p.samplers]
        return [stage for stage in chain if stage is not None]

    def _make_chooser(self) -> native.Chooser:
        """The same stages for one compiled call."""
        p = self.params
        names = [name for name in p.samplers if self._stage(name) is not None]
        if p.greedy or p.mirostat:
            names = [name for name in names if name in _CHANGES_LOGITS]
        stages = [self._native_stage(name) for name in names]
        if p.mirostat and not p.greedy:
            stages += [("temperature", max(p.temp, filters.LEAST_TEMPERATURE)), (f"mirostat_{p.mirostat}",)]
        tokens, bias = self._bias
        return native.Chooser(self.n_vocab, stages, greedy=p.greedy, tokens=tokens, bias=bias)

    def _native_stage(self, name: str) -> tuple[str, *tuple[float, ...]]:
        """A sampler as the compiled step takes it: its name there, and its parameters."""
        p = self.params
        match name:
            case "penalties":
                last_n = self._n_ctx if p.repeat_last_n < 0 else p.repeat_last_n
                return name, last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
            case "dry":
                last_n = self._n_ctx if p.dry_penalty_last_n < 0 else p.dry_penalty_last_n
                longest = longest_counted(p.dry_base, p.dry_allowed_length)
                return name, last_n, p.dry_allowed_length, -1 if longest is None else longest
            case "min_p":
                return name, math.log(p.min_p)
            case "temperature":
                if p.dynatemp_range > 0:
                    low, high = max(0.0, p.temp - p.dynatemp_range), p.temp + p.dynatemp_range
                    return "dynamic", low, high, p.dynatemp_exponent
                return name, max(p.temp, filters.LEAST_TEMPERATURE)
        option = {"top_k": p.top_k, "typ_p": p.typical_p, "top_p": p.top_p, "top_n_sigma": p.top_n_sigma}
        return name, option.get(name, _OFF)

    def _stage(self, name: str) -> Stage | None:
        """The named sampler with its options, or None where they switch it off."""
        p = self.params
        match name:
            case "penalties":
                on = (p.repeat_penalty, p.presence_penalty, p.frequency_penalty) != (1, 0, 0)
                return self._penalties if on and p.repeat_last_n else None
            case "dry":
                return self._dry if p.dry_multiplier > 0 and p.dry_penalty_last_n else None
            case "top_n_sigma":
                return partial(filters.top_n_sigma, n=p.top_n_sigma) if p.top_n_sigma > 0 else None
            case "top_k":
                return partial(filters.top_k, k=p.top_k) if p.top_k else None
            case "typ_p":
                return partial(filters.typical, p=p.typical_p) if p.typical_p < 1 else None
            case "top_p":
                return partial(filters.top_p, p=p.top_p) if p.top_p < 1 else None
            case "min_p":
                return partial(filters.min_p, p=p.min_p) if p.min_p > 0 else None
            case "xtc":
                return self._xtc if p.xtc_probability > 0 else None
            case "temperature":
                return partial(
                    filters.dynamic_temperature,
                    temp=p.temp,
                    spread=p.dynatemp_range,
                    exponent=p.dynatemp_exponent,
                )
        raise UsageError(f"there is no sampler named {name!r}")

    def _penalties(self, c: Candidates) -> Candidates:
        p = self.params
        recent = self._window(p.repeat_last_n)
        recent = recent[recent >= 0]
        return penalties.repetition(c, recent, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)

    def _dry(self, c: Candidates) -> Candidates:
        p = self.params
        recent = self._window(p.dry_penalty_last_n)
        return dry(c, recent, self._breakers, p.dry_multiplier, p.dry_base, p.dry_allowed_length)

    def _xtc(self, c: Candidates) -> Candidates:
        p = self.params
        return filters.xtc(c, p.xtc_probability, p.xtc_threshold, uniform(self.seed, self.step, LANE_XTC))

    def _mirostat(self, c: Candidates) -> Candidates:
        if self.params.mirostat == 1:
            return mirostat.cut_v1(c, self.mu, self.n_vocab)
        return mirostat.cut_v2(c, self.mu)


def _check_peak(c: Candidates) -> None:
    """Refuses logits of NaN and +inf, and a vocabulary of which nothing is left."""
    peak = c.peak
    if np.isnan(peak) or peak == np.inf:
        raise broken_logits(bool(np.isnan(peak)))
    if peak == -np.inf:
        raise LLMGenError(
            "every token of the vocabulary is masked, so none can be chosen: remove some of the banned"
            " tokens, logit biases, ignore_eos or min_tokens"
        )


def _vocabulary_ids(ids: Collection[int], n_vocab: int) -> NDArray[np.int64]:
    """Sorted distinct ids; those outside the vocabulary can never come up and are left out."""
    return np.array(sorted({i for i in ids if 0 <= i < n_vocab}), dtype=np.int64)


def _ids_of(item: int | str, option: str, n_vocab: int, tokenizer: TokenizerLike | None) -> list[int]:
    """The token ids that a token id or a text stands for."""
    if isinstance(item, int):
        if item >= n_vocab:
            raise UsageError(
                f"{option} names token {item}, but this model's tokens go from 0 to {n_vocab - 1}"
            )
        return [item]
    if tokenizer is None:
        raise UsageError(f"{option} has the text {item!r}, but this model has no tokenizer: give token ids")
    return tokenizer.encode_fragment(item)


def _resolve_bias(
    params: SamplingParams, n_vocab: int, eog: NDArray[np.int64], tokenizer: TokenizerLike | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """logit_bias, single banned ids and ignore_eos as distinct tokens [m] and their bias [m]."""
    total: dict[int, float] = {}
    for item, bias in params.logit_bias:
        for token in _ids_of(item, "logit_bias (--logit-bias)", n_vocab, tokenizer):
            total[token] = total.get(token, 0.0) + bias
    if params.ignore_eos:
        total.update((int(token), -np.inf) for token in eog)
    return np.array(list(total), dtype=np.int64), np.array(list(total.values()), dtype=np.float64)


def _resolve_bans(params: SamplingParams, n_vocab: int, tokenizer: TokenizerLike | None) -> list[list[int]]:
    option = "banned_tokens (--banned-tokens)"
    found = [_ids_of(item, option, n_vocab, tokenizer) for item in params.banned_tokens]
    return [sequence for sequence in found if sequence]
