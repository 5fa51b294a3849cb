"""Several named runs in one options file: ``llmgen run --config runs.yaml``.

The table ``runs`` maps a name to the options of a run.  Options outside of it are defaults
for every run, and what is typed holds for all.  All runs are checked first and then carried
out one after the other; if one fails, the others still run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from llmgen import __version__
from llmgen.cli.common import exits
from llmgen.cli.common.config import RUNS, Given, Origin, given
from llmgen.cli.common.help import ARGUMENTS
from llmgen.cli.common.loading import cache_kinds, local_window, reading
from llmgen.cli.run.answers import SEPARATOR
from llmgen.cli.terminal.output import note, print_json, say
from llmgen.errors import UsageError
from llmgen.sampling.params import SamplingParams, option_table
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.engine import GenerationResult


def head(given: Given, llm: LLM, sampling: SamplingParams, result: GenerationResult) -> dict[str, Any]:
    """What a run's JSON begins with, so that the run can be repeated; for a single run only what its cache was like.

    Name, version, model and all options in effect, under their names in an options file;
    ``fingerprint`` distinguishes models of the same name.
    """
    if given.run is None:
        length = result.prompt_tokens + result.completion_tokens
        return {**cache_kinds(llm), **local_window(llm.model), **reading(llm.model, length)}
    used = {
        "ctx": llm.n_ctx,
        "kv-type": llm.model.layout.kv_type,
        **sampling_values(sampling),
        "seed": result.seed,
    }
    return {
        **_head(given.run, {**given.options, **used}),
        "fingerprint": llm.model.fingerprint,
        **local_window(llm.model),
    }


def _head(name: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": __version__, "model": options.get("model"), "options": options}


def sampling_values(sampling: SamplingParams) -> dict[str, Any]:
    """All sampling options that have a value, as an options file would hold them."""
    values = {option.flag.removeprefix("--"): getattr(sampling, option.name) for option in option_table()}
    values["samplers"] = ";".join(sampling.samplers)
    values["logit-bias"] = [f"{token}={bias}" for token, bias in sampling.logit_bias]
    return {key: value for key, value in values.items() if value not in (None, (), [])}


def perform(context: typer.Context, path: Path, values: dict[str, Any]) -> int:
    """Carry out the runs of a file; returns the exit code.  Raises UsageError if any of them cannot be parsed."""
    runs = _checked(path, values)
    contexts = {name: _parsed(context, path, values, name) for name in runs}
    codes: list[int] = []
    for name, inner in contexts.items():
        if codes and not inner.params.get("json") and not inner.params.get("print_config"):
            print(SEPARATOR, flush=True)
        note(f"run {visible(name)}")
        codes.append(_carried_out(name, inner))
        if codes[-1] == exits.INTERRUPTED:
            note(f"ended in run {len(codes)} of {len(contexts)}")
            return exits.INTERRUPTED
    failed = sum(code not in (exits.DONE, exits.TIMEOUT) for code in codes)
    if failed:
        say(f"{failed} of {len(codes)} runs failed")
        return exits.FAILED
    return max(codes)


def _checked(path: Path, values: dict[str, Any]) -> Mapping[str, Any]:
    """The table of runs."""
    runs = values[RUNS]
    if (
        not isinstance(runs, Mapping)
        or not runs
        or not all(isinstance(run, Mapping) for run in runs.values())
    ):
        raise UsageError(
            f"{path}: {RUNS} must hold a name and its options for each run, such as sky: {{temp: 0}}"
        )
    if not all(isinstance(key, str) for name, run in runs.items() for key in (name, *run)):
        raise UsageError(
            f"{path}: the names of runs and of their options must be texts; put quotes around numbers"
        )
    return runs


def _parsed(context: typer.Context, path: Path, values: dict[str, Any], name: str) -> Any:
    """A run's context: the typed arguments, with this run's options as defaults."""
    arguments = [*context.meta[ARGUMENTS]]
    try:
        return context.command.make_context(
            context.info_name, arguments, parent=context.parent, obj=Origin(name, values)
        )
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise UsageError(f"{path}: run {visible(name)}: {exits.describe(error)[0]}") from None


def _carried_out(name: str, context: typer.Context) -> int:
    """Carry out one run and return its exit code; an error is printed and ends only this run."""
    try:
        with context:
            context.command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:
        raise
    except Exception as error:
        message, code = exits.describe(error)
        say(f"error: run {visible(name)}: {visible(message)}")
        if context.params.get("json"):
            print_json({**_head(name, given(context)), "error": message})
        return code
    return exits.DONE
