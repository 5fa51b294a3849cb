"""The sampler with every stage in numpy, in place of the one compiled call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgen.backends.cpu.sampling import unusable
from llmgen.sampling import logits as compiled
from llmgen.sampling.rng import LANE_TOKEN, LANE_XTC
from llmgen.sampling.sampler import Sampler
from llmgen.sampling.scores import TokenLogprob
from naive.sampling import filters, mirostat, penalties
from naive.sampling.candidates import Candidates, Weights, best, log_total
from naive.sampling.dry import dry

Stage = Callable[[Candidates], Candidates]


class NaiveSampler(Sampler):
    """Chooses by the formulas of this folder."""

    def _choose(self, logits: NDArray[np.float32]) -> tuple[int, float]:
        c = Candidates(None, logits)
        if (allowed := self._allowed()) is not None:
            c = c.replace(np.where(allowed, logits, np.float32(-np.inf)))
        c = penalties.add_bias(c, *self._bias)
        if (masked := self._masked()) is not None:
            c = penalties.add_bias(c, masked, np.full(len(masked), -np.inf))
        if not np.isfinite(c.peak):
            raise unusable(c.peak)
        for stage in self._stages():
            c = stage(c)
        self.candidates = c
        w = Weights(c)
        index = int(c.logits.argmax()) if self.params.greedy else w.pick(self._uniform(LANE_TOKEN))
        return c.token(index), float(w.at(index)) / w.total

    def _left(self, logits: NDArray[np.float32]) -> compiled.Candidates:
        return _Scored(self.candidates.ids, self.candidates.logits)

    def _stages(self) -> list[Stage]:
        """The stages that do something under these options, in order."""
        p = self.params
        if p.greedy or p.mirostat:
            chain = [self._stage(name) for name in p.samplers if name in ("penalties", "dry")]
            if not p.greedy:
                cut = partial(mirostat.cut_v1, n_vocab=self.n_vocab) if p.mirostat == 1 else mirostat.cut_v2
                chain += [partial(filters.temperature, temp=p.temp), partial(cut, mu=self.mu)]
            return chain
        return [self._stage(name) for name in p.samplers]

    def _stage(self, name: str) -> Stage:
        p = self.params
        match name:
            case "penalties":
                recent = self._window(p.repeat_last_n)
                return lambda c: penalties.repetition(
                    c, recent[recent >= 0], p.repeat_penalty, p.frequency_penalty, p.presence_penalty
                )
            case "dry":
                recent = self._window(p.dry_penalty_last_n)
                return lambda c: dry(
                    c, recent, self._breakers, p.dry_multiplier, p.dry_base, p.dry_allowed_length
                )
            case "top_n_sigma":
                return partial(filters.top_n_sigma, n=p.top_n_sigma)
            case "top_k":
                return partial(filters.top_k, k=p.top_k)
            case "typ_p":
                return partial(filters.typical, p=p.typical_p)
            case "top_p":
                return partial(filters.top_p, p=p.top_p)
            case "min_p":
                return partial(filters.min_p, p=p.min_p)
            case "xtc":
                u = self._uniform(LANE_XTC)
                return partial(filters.xtc, probability=p.xtc_probability, threshold=p.xtc_threshold, u=u)
        assert name == "temperature"
        return partial(
            filters.dynamic_temperature, temp=p.temp, spread=p.dynatemp_range, exponent=p.dynatemp_exponent
        )

    def _window(self, last_n: int) -> NDArray[np.int64]:
        return penalties.window(self.history.tokens, self._n_ctx if last_n < 0 else last_n)


class _Scored(compiled.Candidates):
    """Candidates whose log-probabilities come from numpy, too."""

    def _best(self, k: int) -> tuple[list[TokenLogprob], float]:
        c = Candidates(self.ids, self.logits)
        total, head = log_total(c), best(c, k)
        return [TokenLogprob(head.token(i), float(head.logits[i]) - total) for i in range(len(head))], total
