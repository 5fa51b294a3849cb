"""Options that several commands share: how the model is opened, how tokens are chosen.

A command that has them is written with one parameter for the group:

    @model_options
    @sampling_options
    def command(model: ModelArgument, *, engine: EngineOptions, sampling: SamplingParams) -> None: ...

and the decorators replace that parameter by the group's flags.  The sampling flags
come from the one list there is, the fields of :class:`SamplingParams`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from llmgen.cli.common.signatures import option as keyword
from llmgen.cli.common.signatures import parameters_of, with_parameters
from llmgen.engine.speculation.config import MOST_GUESSES, SpeculativeConfig
from llmgen.errors import UsageError, shown
from llmgen.model.decode_config import BUCKETS, MOST_TOGETHER, DecodeConfig
from llmgen.model.kv_config import AUTO, KV_KINDS, KVAutoConfig
from llmgen.model.rope_option import RopeOption
from llmgen.sampling.params import OTHER_NAMES, Option, SamplingParams, option_named, option_table

THREADS_VARIABLE = "LLMGEN_THREADS"
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
_KV_TYPE_HELP = (
    f"kind of the KV cache ({', '.join(KV_KINDS)}), k=KIND,v=KIND for keys and values apart, or auto"
)

_SHORT = {"max_tokens": "-n"}
_METAVAR = {
    "stop": "TEXT",
    "timeout": "SECONDS",
    "logit_bias": "TOKEN=BIAS",
    "banned_tokens": "TOKEN",
    "stop_token_ids": "ID",
    "dry_sequence_breakers": "TEXT",
    "samplers": "NAMES",
    "mirostat": "0|1|2",
    "context_full": "stop|shift",
    "logprobs_mode": "raw|processed",
}
_REPEATABLE = {"stop", "logit_bias", "banned_tokens", "stop_token_ids", "dry_sequence_breakers"}
_USUAL = {
    *("max_tokens", "temp", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty", "seed", "stop", "ignore_eos", "timeout"),
}
_WHEN_OPENED = (
    *("ctx", "threads", "rope-scaling", "decode-plan", "decode-q-chunk", "decode-local-window"),
    "decode-buckets",
    *("kv-type", "kv-budget", "kv-max-delta-nll", "kv-max-ppl-ratio", "kv-max-mean-kl", "kv-probe-tokens"),
    *("kv-probe-steps", "kv-plan", "kv-probe-interval", "kv-strict"),
    *("draft", "lookup", "draft-max", "draft-min-acceptance", "draft-method"),
)
_MOST_DIGITS = 10
_SHOWN_DEFAULT = {"seed": "random, reported"}


_ENGINE_NAMES = {
    **dict.fromkeys(("num-ctx", "n-ctx", "ctx-size", "context-length"), "ctx"),
    **dict.fromkeys(("num-thread", "num-threads", "n-threads"), "threads"),
}


@functools.cache
def _flags_by_other_names() -> dict[str, str]:
    """Every name of an option -> its flag, both without dashes."""
    own = {option.name.replace("_", "-") for option in option_table()}
    others = {other.replace("_", "-"): ours.replace("_", "-") for other, ours in OTHER_NAMES.items()}
    return _ENGINE_NAMES | others | {name: name for name in own}


def own_flag(name: str) -> str:
    """The flag that another program's flag stands for here, both without dashes; an unknown one as it is."""
    return _flags_by_other_names().get(name.replace("_", "-"), name)


@dataclass(frozen=True)
class EngineOptions:
    """How a model is opened; None leaves the choice to the engine."""

    n_ctx: int | None = None
    n_threads: int | None = None
    kv_type: str | KVAutoConfig | None = None
    rope_scaling: str | None = None
    decode_plan: DecodeConfig | None = None

    def given(self) -> dict[str, Any]:
        """The options that the user set, as arguments of ``LLM``."""
        return {name: value for name, value in vars(self).items() if value is not None}


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``engine`` by all options of how a model is opened."""
    options = [*_context_and_threads(), *_cache_options(), *_decode_options()]
    return _expand(command, "engine", options, _engine_options)


def file_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that generates no token."""
    options = [*_context_and_threads(), *_cache_options()]
    return _expand(command, "engine", options, _engine_options)


def cache_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for one that besides says the context and the threads in another way."""
    return _expand(command, "engine", _cache_options(), _engine_options)


def bench_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for one that generates tokens, and says the context and the threads in another way."""
    return _expand(command, "engine", [*_cache_options(), *_decode_options()], _engine_options)


def plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that plans a cache: its kind is always auto."""
    options = [*_context_and_threads(), *_auto_options(), _rope_option(), _bucket_option()]
    return _expand(command, "engine", options, lambda values: _engine_options({**values, "kv_type": AUTO}))


def _context_and_threads() -> list[inspect.Parameter]:
    return [
        _parameter("n_ctx", int, "context length in tokens", "the model's, capped to memory", "-c", "--ctx"),
        _parameter(
            *("n_threads", int, "threads", "usable physical cores", "-t", "--threads"),
            envvar=THREADS_VARIABLE,
        ),
    ]


def _cache_options() -> list[inspect.Parameter]:
    kind = _parameter("kv_type", str, _KV_TYPE_HELP, "f16", "--kv-type", metavar="KIND")
    return [kind, *_auto_options(), _rope_option()]


def _decode_options() -> list[inspect.Parameter]:
    return [
        _parameter(
            *(
                "decode_plan",
                str,
                "how generated tokens attend: none, auto or fixed",
                "auto",
                "--decode-plan",
            ),
            metavar="PLAN",
        ),
        _parameter(
            *("decode_q_chunk", int, "with fixed: tokens that read the keys together", str(MOST_TOGETHER)),
            "--decode-q-chunk",
        ),
        _parameter(
            *(
                "decode_local_window",
                int,
                "with fixed: see only the last N keys and the first 64, roughly",
                "",
            ),
            "--decode-local-window",
            metavar="N",
        ),
        _bucket_option(),
    ]


def _bucket_option() -> inspect.Parameter:
    return _parameter(
        *("decode_buckets", str, "with auto: context lengths up to which the cache is read alike"),
        *(",".join(map(str, BUCKETS)), "--decode-buckets"),
        metavar="N,...",
    )


def _decode_config(values: dict[str, Any]) -> DecodeConfig | None:
    """From the flags, which are taken out of ``values``; None where none of them was given."""
    plan, chunk, local, buckets = (
        values.pop(f"decode_{name}", None) for name in ("plan", "q_chunk", "local_window", "buckets")
    )
    if plan is chunk is local is buckets is None:
        return None
    borders = None if buckets is None else _numbers(buckets)
    return DecodeConfig("auto" if plan is None else plan, chunk, local, borders)


def _numbers(text: str) -> tuple[int, ...]:
    """Read ``512,2048``; what is no number makes DecodeConfig refuse it."""
    try:
        return tuple(int(part[:20]) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--decode-buckets must be context lengths with commas between, such as 512,2048, not {shown(text)}"
        ) from None


def _rope_option() -> inspect.Parameter:
    return _parameter(
        *("rope_scaling", str, "stretch positions to N times the trained context: yarn:N, linear:N, or none"),
        *("as the file says", "--rope-scaling"),
        metavar="KIND",
    )


def _auto_options() -> list[inspect.Parameter]:
    return [_parameter(name, kind, *rest) for name, kind, *rest in _KV_AUTO]


_KV_AUTO: tuple[tuple[Any, ...], ...] = (
    (
        "kv_budget",
        float,
        "with --kv-type auto: the most MB that the cache may take",
        "half of the free",
        "--kv-budget",
    ),
    ("kv_max_delta_nll", float, "with auto: most that -ln p may grow by", "0.05", "--kv-max-delta-nll"),
    ("kv_max_ppl_ratio", float, "with auto: largest ratio of perplexities", "1.05", "--kv-max-ppl-ratio"),
    ("kv_max_mean_kl", float, "with auto: largest mean KL divergence", "0.1", "--kv-max-mean-kl"),
    ("kv_probe_tokens", int, "with auto: prompt tokens that are measured", "64", "--kv-probe-tokens"),
    ("kv_probe_steps", int, "with auto: generated tokens that are measured", "4", "--kv-probe-steps"),
    ("kv_plan", Path, "with auto: file that keeps the results", "in the state folder", "--kv-plan"),
    ("kv_probe_interval", float, "with auto: seconds for which results hold", "3600", "--kv-probe-interval"),
    ("kv_strict", bool, "with auto: refuse if no kind passes", "", "--kv-strict"),
)
"""Parameter, type, help, shown default and flag of what belongs to --kv-type auto."""
_KV_FIELDS = {"kv_budget": "budget_mb", "kv_plan": "plan_file"}


def _engine_options(values: dict[str, Any]) -> EngineOptions:
    values["decode_plan"] = _decode_config(values)
    if values["rope_scaling"] is not None:
        RopeOption.of(values["rope_scaling"])
    auto = {name: values.pop(name) for name, *_ in _KV_AUTO}
    given = {
        _KV_FIELDS.get(name, name[3:]): v for name, v in auto.items() if v is not None and v is not False
    }
    if values["kv_type"] != AUTO:
        if given:
            flag = next(row[-1] for row in _KV_AUTO if auto[row[0]] not in (None, False))
            raise UsageError(f"{flag} goes with --kv-type auto; add that, or leave {flag} out")
        return EngineOptions(**values)
    return EngineOptions(**{**values, "kv_type": KVAutoConfig(**given)})


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``sampling`` by one flag for each of its fields, the usual ones first."""
    options = sorted(option_table(), key=lambda option: option.name not in _USUAL)
    return _expand(command, "sampling", [_sampling_parameter(option) for option in options], _sampling_params)


def guessing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``guessing`` by --draft, --lookup and what belongs to them."""
    options = [
        _parameter(
            *("draft", str, "a smaller model with the same vocabulary, which guesses tokens", "", "--draft"),
            metavar="MODEL",
        ),
        _parameter(
            "lookup",
            bool,
            "guess what followed the same words before, in the prompt or the answer",
            "",
            "--lookup",
        ),
        _parameter(
            *("draft_max", int, "most tokens to guess at a step", str(MOST_GUESSES), "--draft-max"),
            metavar="N",
        ),
        _parameter(
            *("draft_min_acceptance", float, "pause where a smaller share of the guesses is right", "0"),
            *("--draft-min-acceptance",),
            metavar="SHARE",
        ),
        _parameter(
            *("draft_method", str, "coupled keeps the text, reject only its distribution", "coupled"),
            *("--draft-method",),
            metavar="coupled|reject",
        ),
    ]
    return _expand(command, "guessing", options, lambda values: _guessing(**values))


def _guessing(
    draft: str | None,
    lookup: bool,
    draft_max: int | None,
    draft_min_acceptance: float | None,
    draft_method: str | None,
) -> SpeculativeConfig | None:
    """Make the options of guessing from the flags; None where nothing is to be guessed."""
    further = {"k_max": draft_max, "min_acceptance": draft_min_acceptance, "method": draft_method}
    given: dict[str, Any] = {name: value for name, value in further.items() if value is not None}
    if draft_max is not None:
        given["k"] = min(SpeculativeConfig.k, draft_max)
    config = SpeculativeConfig(draft=draft, lookup=lookup, **given)
    if given and not config.guesses:
        flag = next(flag for name, flag in _GUESSING_FLAGS.items() if name in given)
        raise UsageError(f"{flag} belongs to guessing; add --draft MODEL or --lookup, or leave it out")
    return config if config.guesses else None


_GUESSING_FLAGS = {
    "k_max": "--draft-max",
    "min_acceptance": "--draft-min-acceptance",
    "method": "--draft-method",
}


def _sampling_parameter(option: Option) -> inspect.Parameter:
    flags = [flag for flag in (_SHORT.get(option.name), option.flag) if flag]
    shown, metavar, kind = _shown_default(option), _METAVAR.get(option.name), _kind(option)
    if option.name in _REPEATABLE:
        help = f"{option.help} (repeatable)"
        return _parameter(option.name, _LISTS[kind], help, shown, *flags, metavar=metavar)
    return _parameter(option.name, kind, option.help, shown, *flags, metavar=metavar)


def _kind(option: Option) -> type:
    """The type of one value of an option: bool, int, float or str."""
    if isinstance(option.default, bool):
        return bool
    if option.low is not None:
        return int if option.name in ("seed", "logprobs") or isinstance(option.default, int) else float
    return int if option.name == "stop_token_ids" else str


_LISTS: dict[type, Any] = {int: list[int], str: list[str]}


def _shown_default(option: Option) -> str:
    """The default as the help shows it; empty where there is none."""
    if option.name in _SHOWN_DEFAULT:
        return _SHOWN_DEFAULT[option.name]
    if option.default in (None, ()) or isinstance(option.default, bool):
        return ""
    if isinstance(option.default, tuple):
        return "; ".join(option.default) if option.name == "samplers" else " ".join(map(repr, option.default))
    return str(option.default) if not isinstance(option.default, float) else f"{option.default:g}"


def _sampling_params(values: dict[str, Any]) -> SamplingParams:
    """Make sampling parameters from the flags that were given."""
    given = {name: value for name, value in values.items() if value not in (None, [])}
    if "logit_bias" in given:
        given["logit_bias"] = [_bias(text) for text in given["logit_bias"]]
    if "banned_tokens" in given:
        given["banned_tokens"] = [id_or_text(text) for text in given["banned_tokens"]]
    return SamplingParams(**given)


def flag_of_opening(name: str) -> str | None:
    """The flag, without dashes, that ``name`` has when a model is opened, such as ``ctx`` for ``num_ctx``."""
    flag = own_flag(name.replace("_", "-"))
    return flag if flag in _WHEN_OPENED else None


def find_option(name: str) -> Option:
    """The sampling option of that name, ours or another program's, as ``/set`` takes it.  Raises UsageError."""
    options = {option.name: option for option in option_table()}
    field = name.removeprefix("--").replace("-", "_")
    ours = option_named(field)
    if ours is not None:
        return options[ours]
    if (flag := flag_of_opening(field)) is not None:
        raise UsageError(f"{name} is chosen when a model is opened (--{flag}), not later")
    near = difflib.get_close_matches(field, [*options, *OTHER_NAMES], n=2)
    known = list(dict.fromkeys(option_named(one) or one for one in near))
    hint = f"did you mean {' or '.join(known)}?" if known else "/show lists them"
    raise UsageError(f"there is no option {name!r}; {hint}")


def changed(params: SamplingParams, name: str, text: str) -> SamplingParams:
    """Return the parameters with one option set from what a user typed, as ``/set temp 0.2`` does."""
    option = find_option(name)
    field, kind = option.name, _kind(option)
    if field not in _REPEATABLE:
        return params.with_(**{field: _value(kind, name, text)})
    values = [_value(kind, name, part) for part in text.replace(",", " ").split()] if kind is int else [text]
    return params.with_(**{field: getattr(_sampling_params({field: values}), field)})


def _value(kind: type, name: str, text: str) -> Any:
    """Read one value of an option."""
    if kind is bool:
        if text not in ("on", "off", "true", "false"):
            raise UsageError(f"{name} is on or off, not {text!r}")
        return text in ("on", "true")
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{name} must be a {'whole ' if kind is int else ''}number, not {text!r}") from None


def _bias(text: str) -> tuple[int | str, float]:
    """Read ``TOKEN=BIAS``, where TOKEN is an id or a text (which may hold an equals sign)."""
    token, equals, bias = text.rpartition("=")
    try:
        value = float(bias)
    except ValueError:
        equals = ""
    if not equals or not token:
        raise UsageError(f"--logit-bias must be TOKEN=BIAS, such as 42=-1.5, not {text!r}")
    return id_or_text(token), value


def id_or_text(text: str) -> int | str:
    """Digits are a token id, anything else is text."""
    if not (text.isascii() and text.isdigit()):
        return text
    if len(text) > _MOST_DIGITS:
        raise UsageError(f"a token id of {len(text)} digits was given; ids have at most {_MOST_DIGITS}")
    return int(text)


def _parameter(
    name: str,
    kind: Any,
    help: str,
    shown: str,
    *flags: str,
    metavar: str | None = None,
    envvar: str | None = None,
) -> inspect.Parameter:
    """A keyword parameter as Typer reads it; None (or False) means that it was not given."""
    text = f"{help[:1].upper()}{help[1:]}" + (f" [default: {shown}]" if shown else "")
    option = typer.Option(*flags, help=text, show_default=False, metavar=metavar, envvar=envvar)
    annotation: Any = Annotated[kind if kind is bool else kind | None, option]
    return keyword(name, annotation, False if kind is bool else None)


def _expand(
    command: Callable[..., None],
    group: str,
    options: Sequence[inspect.Parameter],
    build: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Put the options in place of the parameter ``group``, which gets what ``build`` makes of them."""

    @with_parameters(command, [*parameters_of(command, without=group), *options])
    def expanded(*args: Any, **values: Any) -> None:
        grouped = {option.name: values.pop(option.name) for option in options}
        command(*args, **values, **{group: build(grouped)})

    return expanded
