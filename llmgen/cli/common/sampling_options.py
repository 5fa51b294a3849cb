"""How tokens are chosen: a flag for each field of SamplingParams, and ``/set``, which changes one."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from llmgen.cli.common.model_options import flag_of_opening
from llmgen.cli.common.options import flag_parameter, with_options
from llmgen.errors import UsageError
from llmgen.sampling.params import OTHER_NAMES, Option, SamplingParams, option_named, option_table

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
_MOST_DIGITS = 10
_SHOWN_DEFAULT = {"seed": "random, reported"}


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``sampling`` by one flag for each of its fields, the usual ones first."""
    options = sorted(option_table(), key=lambda option: option.name not in _USUAL)
    return with_options(
        command, "sampling", [_sampling_parameter(option) for option in options], _sampling_params
    )


def _sampling_parameter(option: Option) -> inspect.Parameter:
    flags = [flag for flag in (_SHORT.get(option.name), option.flag) if flag]
    shown, metavar, kind = _shown_default(option), _METAVAR.get(option.name), _kind(option)
    if option.name in _REPEATABLE:
        help = f"{option.help} (repeatable)"
        return flag_parameter(option.name, _LISTS[kind], help, shown, *flags, metavar=metavar)
    return flag_parameter(option.name, kind, option.help, shown, *flags, metavar=metavar)


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
