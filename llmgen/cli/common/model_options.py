"""How a model is opened: the context, threads, KV cache and attention, as flags."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgen.cli.common.options import THREADS_VARIABLE, flag_parameter, with_options
from llmgen.cli.common.other_names import own_flag
from llmgen.errors import UsageError, shown
from llmgen.model.decode_config import BUCKETS, MOST_TOGETHER, DecodeConfig
from llmgen.model.kv_config import AUTO, KV_KINDS, KVAutoConfig
from llmgen.model.rope_option import RopeOption

_KV_TYPE_HELP = (
    f"kind of the KV cache ({', '.join(KV_KINDS)}), k=KIND,v=KIND for keys and values apart, or auto"
)
_WHEN_OPENED = (
    *("ctx", "threads", "rope-scaling", "decode-plan", "decode-q-chunk", "decode-local-window"),
    *("decode-buckets", "load"),
    *("kv-type", "kv-budget", "kv-max-delta-nll", "kv-max-ppl-ratio", "kv-max-mean-kl", "kv-probe-tokens"),
    *("kv-probe-steps", "kv-plan", "kv-probe-interval", "kv-strict"),
    *("draft", "lookup", "draft-max", "draft-min-acceptance", "draft-method"),
)


@dataclass(frozen=True)
class EngineOptions:
    """How a model is opened; None leaves the choice to the engine."""

    n_ctx: int | None = None
    n_threads: int | None = None
    kv_type: str | KVAutoConfig | None = None
    rope_scaling: str | None = None
    decode_plan: DecodeConfig | None = None
    load: str | None = None

    def given(self) -> dict[str, Any]:
        """The options that the user set, as arguments of ``LLM``."""
        return {name: value for name, value in vars(self).items() if value is not None}


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``engine`` by all options of how a model is opened."""
    options = [*_context_and_threads(), *_cache_options(), *_decode_options()]
    return with_options(command, "engine", options, _engine_options)


def file_options(command: Callable[..., None]) -> Callable[..., None]:
    """As :func:`model_options`, for a command that generates no token."""
    options = [*_context_and_threads(), *_cache_options()]
    return with_options(command, "engine", options, _engine_options)


def cache_options(command: Callable[..., None]) -> Callable[..., None]:
    """As :func:`file_options`, for a command with other options for the context and the threads."""
    return with_options(command, "engine", _cache_options(), _engine_options)


def bench_options(command: Callable[..., None]) -> Callable[..., None]:
    """As :func:`model_options`, for a command with other options for the context and the threads."""
    return with_options(command, "engine", [*_cache_options(), *_decode_options()], _engine_options)


def plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """As :func:`model_options`, for a command that plans a cache: its kind is always auto."""
    options = [*_context_and_threads(), *_auto_options(), _rope_option(), _bucket_option()]
    return with_options(
        command, "engine", options, lambda values: _engine_options({**values, "kv_type": AUTO})
    )


def _context_and_threads() -> list[inspect.Parameter]:
    context, threads = "the model's, capped to memory", "usable physical cores"
    return [
        flag_parameter("n_ctx", int, "context length in tokens", context, "-c", "--ctx"),
        flag_parameter("n_threads", int, "threads", threads, "-t", "--threads", envvar=THREADS_VARIABLE),
    ]


def _cache_options() -> list[inspect.Parameter]:
    return [
        flag_parameter("kv_type", str, _KV_TYPE_HELP, "f16", metavar="KIND"),
        *_auto_options(),
        _rope_option(),
    ]


def _decode_options() -> list[inspect.Parameter]:
    plan = "how generated tokens attend: none, auto or fixed"
    together = "with fixed: tokens that read the keys together"
    window = "with fixed: see only the last N keys and the first 64, roughly"
    load = "where weights lie: in the mapped file, in a copy in large pages of memory, or whichever is faster"
    return [
        flag_parameter("decode_plan", str, plan, "auto", metavar="PLAN"),
        flag_parameter("decode_q_chunk", int, together, str(MOST_TOGETHER)),
        flag_parameter("decode_local_window", int, window, "", metavar="N"),
        _bucket_option(),
        flag_parameter("load", str, load, "auto", metavar="mmap|memory|auto"),
    ]


def _bucket_option() -> inspect.Parameter:
    help = "with auto: context lengths up to which the cache is read alike"
    return flag_parameter("decode_buckets", str, help, ",".join(map(str, BUCKETS)), metavar="N,...")


def _decode_config(values: dict[str, Any]) -> DecodeConfig | None:
    """The configuration that the flags give, which are taken out of ``values``; None where none was given."""
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
    help = "stretch positions to N times the trained context: yarn:N, linear:N, or none"
    return flag_parameter("rope_scaling", str, help, "as the file says", metavar="KIND")


def _auto_options() -> list[inspect.Parameter]:
    return [flag_parameter(*row) for row in _KV_AUTO]


_KV_AUTO: tuple[tuple[str, Any, str, str], ...] = (
    ("kv_budget", float, "with --kv-type auto: the most MB that the cache may take", "half of the free"),
    ("kv_max_delta_nll", float, "with auto: most that -ln p may grow by", "0.05"),
    ("kv_max_ppl_ratio", float, "with auto: largest ratio of perplexities", "1.05"),
    ("kv_max_mean_kl", float, "with auto: largest mean KL divergence", "0.1"),
    ("kv_probe_tokens", int, "with auto: prompt tokens that are measured", "64"),
    ("kv_probe_steps", int, "with auto: generated tokens that are measured", "4"),
    ("kv_plan", Path, "with auto: file that keeps the results", "in the state folder"),
    ("kv_probe_interval", float, "with auto: seconds for which results hold", "3600"),
    ("kv_strict", bool, "with auto: refuse if no kind passes", ""),
)
"""Parameter, type, help and shown default of what belongs to --kv-type auto."""
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
            name = next(name for name, value in auto.items() if value not in (None, False))
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} goes with --kv-type auto; add that, or leave {flag} out")
        return EngineOptions(**values)
    return EngineOptions(**{**values, "kv_type": KVAutoConfig(**given)})


def flag_of_opening(name: str) -> str | None:
    """The flag, without dashes, that ``name`` has when a model is opened, such as ``ctx`` for ``num_ctx``."""
    flag = own_flag(name.replace("_", "-"))
    return flag if flag in _WHEN_OPENED else None
