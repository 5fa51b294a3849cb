"""The options that control a generation: names, defaults, ranges.

One frozen dataclass is the only list of them; the command line makes its flags
from :func:`option_table`.  Importing this module loads no numpy.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, SupportsIndex, TypeVar, cast

from llmgen.errors import UsageError
from llmgen.sampling.checks import CHECKS, MAX_INT, SAMPLER_NAMES, checked_number, flag
from llmgen.sampling.interfaces import Constraint, Processor

T = TypeVar("T")
Held = TypeVar("Held", covariant=True)
Given = TypeVar("Given", contravariant=True)

_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Option:
    """What the command line needs to know about one field."""

    name: str
    flag: str
    default: Any
    low: float | None
    high: float | None
    help: str


def _number(default: int | float | None, low: float, high: float, text: str) -> Any:
    """A field holding a number from ``low`` to ``high`` (or None, if that is the default)."""
    return field(default=default, metadata={"low": low, "high": high, "help": text})


def _other(default: Any, text: str) -> Any:
    """A field whose values are checked by a function."""
    return field(default=default, metadata={"help": text})


def _in_python(default: Any, text: str) -> Any:
    """A field that cannot be given on the command line or in a file."""
    return field(default=default, metadata={"help": text, "in_python": True})


class _Option(Protocol[Held, Given]):
    """For type checkers: a field that accepts several types and holds one of them."""

    def __get__(self, params: object, kind: object = None) -> Held: ...
    def __set__(self, params: object, value: Given) -> None: ...


def _with_names_checked(params: type[T]) -> type[T]:
    """Let the class itself refuse an unknown option, and say which name it has here."""
    made: Any = params.__init__

    @functools.wraps(made)
    def __init__(self: T, *args: Any, **options: Any) -> None:
        for name in options:
            if name not in params.__dataclass_fields__:  # type: ignore[attr-defined]
                raise unknown_option(name)
        made(self, *args, **options)

    params.__init__ = __init__  # type: ignore[assignment,method-assign]
    return params


@_with_names_checked
@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens, and when to stop.

    Every value is checked when the object is made: an unknown name, and a value out of
    range, NaN or of the wrong type raise :class:`UsageError`.  ``temp`` 0 is greedy: the most
    likely token after bias, bans and penalties, whatever the filters say.
    """

    max_tokens: int = _number(
        -1,
        -1,
        MAX_INT,
        "most tokens to generate; 0 means none, -1 until the model ends or the context is full",
    )
    temp: float = _number(0.8, 0, 1e6, "temperature; 0 is greedy")
    dynatemp_range: float = _number(0.0, 0, 1e6, "temperature moves this far up and down; 0 is off")
    dynatemp_exponent: float = _number(1.0, 0, 1e3, "how entropy maps to the dynamic temperature")
    top_k: int = _number(40, 0, MAX_INT, "keep the k most likely; 0 is off")
    top_p: float = _number(0.95, 0, 1, "nucleus; 1 is off")
    min_p: float = _number(0.05, 0, 1, "keep p >= min_p * p_max; 0 is off")
    typical_p: float = _number(1.0, 0, 1, "locally typical sampling; 1 is off")
    top_n_sigma: float = _number(
        -1.0, -1, 1e6, "keep logits within n deviations of the best; 0 or less is off"
    )
    xtc_probability: float = _number(0.0, 0, 1, "how often XTC drops the top choices; 0 is off")
    xtc_threshold: float = _number(
        0.1, 0, 1, "XTC drops tokens at least this likely, but one; over 0.5 is off"
    )
    mirostat: int = _number(0, 0, 2, "1 or 2: that version of Mirostat instead of the filters")
    mirostat_tau: float = _number(5.0, 0, 1e3, "Mirostat's target surprise, in bits")
    mirostat_eta: float = _number(0.1, 0, 1e3, "Mirostat's learning rate")
    repeat_penalty: float = _number(
        1.0, 1e-3, 1e3, "divide the logits of tokens already in the window; 1 is off"
    )
    repeat_last_n: int = _number(
        64, -1, MAX_INT, "the window of the three penalties; 0 is off, -1 the context"
    )
    presence_penalty: float = _number(0.0, -1e3, 1e3, "take this off tokens in the window")
    frequency_penalty: float = _number(0.0, -1e3, 1e3, "take this off for each time a token is in the window")
    dry_multiplier: float = _number(0.0, 0, 1e3, "strength of DRY; 0 is off")
    dry_base: float = _number(1.75, 1, 1e3, "DRY's growth per token of repetition")
    dry_allowed_length: int = _number(2, 1, MAX_INT, "repetitions this long are free")
    dry_penalty_last_n: int = _number(-1, -1, MAX_INT, "DRY's window; 0 is off, -1 the context")
    dry_sequence_breakers: _Option[tuple[str, ...], str | Iterable[str]] = _other(
        ("\n", ":", '"', "*"), "texts that end a repetition for DRY"
    )
    logit_bias: _Option[
        tuple[tuple[int | str, float], ...], Mapping[Any, float] | Iterable[tuple[SupportsIndex | str, float]]
    ] = _other((), "add to the logits of a token id, or of a text's tokens")
    banned_tokens: _Option[tuple[int | str, ...], str | Iterable[SupportsIndex | str]] = _other(
        (), "token ids or texts never to generate"
    )
    samplers: _Option[tuple[str, ...], str | Iterable[str]] = _other(
        SAMPLER_NAMES, "the samplers to use, in order"
    )
    seed: int | None = _number(None, -1, _MAX_SEED, "random seed; same seed, same text; -1 is random")
    stop: _Option[tuple[str, ...], str | Iterable[str]] = _other(
        (), "texts that end the answer, never printed"
    )
    stop_token_ids: _Option[tuple[int, ...], Iterable[SupportsIndex]] = _other(
        (), "further token ids that end the answer"
    )
    ignore_eos: bool = _other(False, "never generate an end-of-generation token")
    min_tokens: int = _number(0, 0, MAX_INT, "no end-of-generation or stop token before this many")
    timeout: float | None = _number(None, 0, 1e9, "stop after this many seconds")
    context_full: Literal["stop", "shift"] = _other("stop", "stop, or shift: drop the oldest half and go on")
    context_keep: int = _number(
        0, 0, MAX_INT, "first tokens of the context that a shift keeps; begin-of-text always"
    )
    logprobs: int | None = _number(None, 0, 1000, "log-probabilities: the token's, and this many of the best")
    logprobs_mode: Literal["raw", "processed"] = _other(
        "raw", "log-probabilities before (raw) or after (processed) all processors"
    )
    constraint: Constraint | None = _in_python(None, "what may come next, step by step")
    processors: _Option[tuple[Processor, ...], Processor | Iterable[Processor]] = _in_python(
        (), "functions that change the logits before anything else does"
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if "low" in f.metadata:
                value = checked_number(
                    f.name, value, cast(Any, f.default), f.metadata["low"], f.metadata["high"]
                )
            else:
                value = CHECKS[f.name](f.name, value)
            object.__setattr__(self, f.name, value)
        if self.seed == -1:
            object.__setattr__(self, "seed", None)

    def with_(self, **changes: Any) -> SamplingParams:
        """A copy with some options changed; unknown names raise :class:`UsageError`."""
        return replace(self, **changes)

    @property
    def token_limit(self) -> float:
        """The most tokens to generate; infinity if there is no limit."""
        return math.inf if self.max_tokens < 0 else self.max_tokens

    @property
    def greedy(self) -> bool:
        """Whether every token is simply the most likely one."""
        return self.temp == 0


OTHER_NAMES = {
    "temperature": "temp",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "predict": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "reverse_prompt": "stop",
    "repetition_penalty": "repeat_penalty",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
    "repetition_context_size": "repeat_last_n",
    "penalty_present": "presence_penalty",
    "penalty_freq": "frequency_penalty",
    "typical": "typical_p",
    "typ_p": "typical_p",
    "top_nsigma": "top_n_sigma",
    "mirostat_ent": "mirostat_tau",
    "mirostat_lr": "mirostat_eta",
    "dynatemp_exp": "dynatemp_exponent",
    "dry_sequence_breaker": "dry_sequence_breakers",
    "bad_words": "banned_tokens",
    "sampler_order": "samplers",
    "sampling_seq": "samplers",
    "random_seed": "seed",
    "eos_token_id": "stop_token_ids",
    "top_logprobs": "logprobs",
    "n_probs": "logprobs",
}
"""What other programs and libraries call our options."""

_ELSEWHERE = {
    "num_ctx": "the context's length belongs to the model: LLM(path, n_ctx=...)",
    "n_ctx": "the context's length belongs to the model: LLM(path, n_ctx=...)",
    "num_thread": "threads belong to the model: LLM(path, n_threads=...)",
    "n_threads": "threads belong to the model: LLM(path, n_threads=...)",
    "do_sample": "sampling is what temp above 0 does; temp=0 is greedy",
    "num_beams": "a beam search is llm.beams(prompt, n_beams)",
    "n_beams": "a beam search is llm.beams(prompt, n_beams)",
    "n": "several answers to a prompt are llm.samples(prompt, n)",
    "num_return_sequences": "several answers to a prompt are llm.samples(prompt, n)",
    "best_of": "several answers to a prompt are llm.samples(prompt, n)",
    "stream": "an answer as it grows is llm.stream(prompt, params)",
    "max_length": "the prompt does not count here: max_tokens is the most tokens to generate",
}
"""Names that are not sampling options here, and where to find what they mean."""


def option_named(name: str) -> str | None:
    """Our name of an option, given ours or another program's; None if it is neither."""
    return name if name in _NAMES else OTHER_NAMES.get(name)


def unknown_option(name: str) -> UsageError:
    """The error for a name that no option has, with the name that was probably meant."""
    if name in OTHER_NAMES:
        return UsageError(f"{name} is no sampling option here, its name is {OTHER_NAMES[name]}")
    if name in _ELSEWHERE:
        return UsageError(f"{name} is no sampling option; {_ELSEWHERE[name]}")
    near = difflib.get_close_matches(name, [*_NAMES, *OTHER_NAMES], n=1)
    hint = f"did you mean {option_named(near[0])}?" if near else "help(SamplingParams) lists them"
    return UsageError(f"{name} is no sampling option; {hint}")


def checked_params(params: Any, default: SamplingParams | None = None) -> SamplingParams:
    """The options given, or the default ones for None.  Raises :class:`UsageError` for anything else."""
    if params is None:
        return default or SamplingParams()
    if not isinstance(params, SamplingParams):
        raise UsageError(
            f"params must be SamplingParams, not {type(params).__name__}: write SamplingParams(temp=0) or,"
            " with a dict, SamplingParams(**options)"
        )
    return params


def option_table() -> list[Option]:
    """Every option of :class:`SamplingParams` that can be given as text, in order."""
    return [
        Option(
            f.name, flag(f.name), f.default, f.metadata.get("low"), f.metadata.get("high"), f.metadata["help"]
        )
        for f in fields(SamplingParams)
        if "in_python" not in f.metadata
    ]


_NAMES = frozenset(option.name for option in option_table())
