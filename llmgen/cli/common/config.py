"""Options from a file: ``--config FILE``, and a user's defaults in the platform's folder.

The file is TOML or YAML.  Its keys are the long names of options (``max-tokens`` or
``max_tokens``) and of arguments (``model``, ``prompt``); a table named like a command
holds keys for that command only, and ``runs`` holds named runs (see ``manifest.py``).
What is typed wins over the environment, that over ``--config``, and that over the user's
defaults.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from llmgen.cli.common.other_names import own_flag
from llmgen.cli.common.signatures import option, parameters_of, with_parameters
from llmgen.errors import UsageError
from llmgen.files import read_bounded
from llmgen.visible import visible

VARIABLE = "LLMGEN_CONFIG"
COMMANDS = ("run", "chat", "batch", "bench")
_NAMES = ("config.toml", "config.yaml", "config.yml")
RUNS = "runs"
_OWN = {"config", "print_config", "help"}
_MOST_BYTES = 1 << 20
_MOST_VALUES = 20_000
_GIVEN = "given"


@dataclass
class Origin:
    """Where a command's options come from: the context's ``obj``.

    ``run`` is the name of the current run if the file has several, ``values`` is the content
    of that file, and ``sources`` maps an option's name to the file that set it.
    """

    run: str | None = None
    values: dict[str, Any] | None = None
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """The options that were set, wherever from, and the name of the run if there is one."""

    run: str | None
    options: dict[str, Any]


Perform = Callable[[typer.Context, Path, dict[str, Any]], int]
"""Carries out the runs of an options file and returns the exit code."""


def configurable(command: Callable[..., None], perform: Perform | None = None) -> Callable[..., None]:
    """Give a command ``--config`` and ``--print-config``; to be applied last.

    A parameter ``given`` of the command is set to its :class:`Given`.  ``perform`` carries out a file
    of several runs, which other commands refuse.
    """
    own = parameters_of(command, without=_GIVEN)
    takes_given = _GIVEN in inspect.signature(command).parameters
    added = [
        option("config", _config_option(perform), None),
        option("print_config", _PRINT),
        option("context", typer.Context, inspect.Parameter.empty),
    ]

    @with_parameters(command, [*own, *added])
    def configured(
        *args: Any, context: typer.Context, config: Path | None, print_config: bool, **values: Any
    ) -> None:
        if print_config:
            print("\n".join(_in_effect(context)))
            return
        if takes_given:
            values[_GIVEN] = Given(origin(context).run, given(context))
        command(*args, **values)

    return configured


def origin(context: typer.Context) -> Origin:
    """Where the options of this command come from."""
    if not isinstance(context.obj, Origin):
        context.obj = Origin()
    return context.obj


def _load(perform: Perform | None, context: typer.Context, path: Path | None) -> Path | None:
    """Make the files' values the parser's defaults; called before other options are read.

    A file with several runs is carried out here, each run with a context of its own.
    """
    if context.resilient_parsing:  # the shell asks for completions
        return path
    state = origin(context)
    if path is not None and state.values is None:
        state.values = read_file(path)
        if RUNS in state.values:
            if perform is None:
                raise UsageError(
                    f"{path}: {RUNS} holds named runs, which `llmgen run` takes, not {context.info_name}"
                )
            raise typer.Exit(perform(context, path, state.values))
    found: dict[str, Any] = {}
    default = user_file()
    if default is not None:
        found |= _noted(state, default, _values(context, default, read_file(default), is_default=True))
    if path is not None:
        found |= _noted(state, path, _values(context, path, dict(state.values or {}), run=state.run))
    context.default_map = {**(context.default_map or {}), **found}
    return path


def _noted(state: Origin, file: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The values; their source is recorded."""
    state.sources |= dict.fromkeys(values, str(file))
    return values


def _config_option(perform: Perform | None) -> Any:
    def load(context: typer.Context, value: Path | None) -> Path | None:
        return _load(perform, context, value)

    option = typer.Option(
        "--config",
        metavar="FILE",
        callback=load,
        is_eager=True,
        help="Options from a TOML or YAML file; what is typed wins.",
    )
    return Annotated[Path | None, option]


_PRINT = Annotated[
    bool,
    typer.Option("--print-config", help="Print the options in effect and where each comes from, then exit."),
]


def user_file() -> Path | None:
    """The file with the user's defaults: $LLMGEN_CONFIG (empty: none), else the user's config.toml or .yaml."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(os.path.expanduser(chosen)) if chosen else None
    import platformdirs

    folder = Path(platformdirs.user_config_dir("llmgen", appauthor=False))
    return next((folder / name for name in _NAMES if (folder / name).is_file()), None)


def read_file(path: Path) -> dict[str, Any]:
    """The keys and values of a TOML or YAML file.  Raises UsageError."""
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise UsageError(f"the options file {path} must end in .toml, .yaml or .yml")
    try:
        with open(path, "rb") as file:
            data = read_bounded(file, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read the options file {path}: {error.strerror or error}") from error
    if data is None:
        raise UsageError(
            f"the options file {path} has more than {_MOST_BYTES} bytes; is it a file of options?"
        )
    try:
        text = data.decode("utf-8-sig")
        values = _read_toml(text) if path.suffix == ".toml" else _read_yaml(text)
    except (ValueError, RecursionError) as error:  # also tomllib's and YAML's own errors
        reason = " ".join(str(error).split()) or "nested too deeply"
        raise UsageError(f"the options file {path} cannot be read: {reason}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UsageError(f"the options file {path} must hold names and values, such as max-tokens: 64")
    return values


def _read_toml(text: str) -> Any:
    import tomllib  # here, because completion must be instant

    return tomllib.loads(text)


def _read_yaml(text: str) -> Any:
    """YAML with plain values only; a repeated key, which YAML allows, is an error."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses files with far too many values: each takes 0.1 ms."""

        n_values = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.n_values += 1
            if self.n_values > _MOST_VALUES:
                raise ValueError(f"it has more than {_MOST_VALUES} names and values")
            return super().compose_node(parent, index)

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError("a name must be a text, not a list or a mapping")
            if key.value in seen:
                raise ValueError(f"{key.value} is there twice")
            seen.add(key.value)
        return dict(yaml.SafeLoader.construct_mapping(loader, node, deep=True))

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text, Loader) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _values(
    context: typer.Context,
    path: Path,
    values: dict[str, Any],
    is_default: bool = False,
    run: str | None = None,
) -> dict[str, Any]:
    """A file's values for this command, by the parser's names; empties ``values``."""
    command = str(context.info_name)
    runs = values.pop(RUNS, None)
    if runs is not None and is_default:
        raise UsageError(
            f"{path}: {RUNS} holds named runs, which are no defaults; give their file to `llmgen run --config`"
        )
    tables = {name: values.pop(name) for name in COMMANDS if isinstance(values.get(name), Mapping)}
    for name, table in tables.items():
        _refuse_unknown(path, f"[{name}] ", table, _options(context, name))
    own = _options(context, command)
    everywhere = set(own) | {key for name in COMMANDS for key in _options(context, name)}
    if is_default:  # it is for all commands: each takes the options it has
        _refuse_unknown(path, "", values, everywhere)
        values = {key: value for key, value in values.items() if _plain(key) in own}
    for key in values:
        if _plain(key) not in own and _plain(key) in everywhere:
            raise UsageError(
                f"{path}: {visible(key)} is not an option of {command}; put it into a table of its command"
            )
    _refuse_unknown(path, "", values, own)
    parts = [values, tables.get(command, {})]
    if run is not None:
        _refuse_unknown(path, f"[{RUNS}.{visible(run)}] ", runs[run], own)
        parts.append(runs[run])
    merged: dict[str, tuple[str, Any]] = {}
    for part in parts:
        _refuse_twice(path, part)
        merged |= {_plain(key): (key, value) for key, value in part.items()}
    return {
        own[plain].name: _checked(path, key, value, own[plain], context)
        for plain, (key, value) in merged.items()
        if value is not None
    }


def _plain(key: str) -> str:
    return own_flag(key.replace("_", "-"))


def _options(context: typer.Context, name: str) -> dict[str, Any]:
    """The options of a command by their names in a file."""
    command: Any = context.command
    if name != context.info_name:
        group: Any = context.parent.command if context.parent else None
        command = group.commands.get(name) if group is not None and hasattr(group, "commands") else None
    return {_key(p): p for p in getattr(command, "params", ()) if p.name not in _OWN}


def _key(parameter: Any) -> str:
    """The name of an option in a file: its long flag, or the name of an argument."""
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    return _plain((flags or [parameter.name])[0].removeprefix("--"))


def _refuse_unknown(path: Path, where: str, values: Mapping[str, Any], known: Any) -> None:
    for key in values:
        if _plain(str(key)) not in known:
            near = difflib.get_close_matches(_plain(str(key)), sorted(known), n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else "; `--help` lists the options"
            raise UsageError(f"{path}: {where}{visible(key)} is not an option{hint}")


def _refuse_twice(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse an option that is given under two of its names."""
    found: dict[str, str] = {}
    for key in values:
        if (other := found.setdefault(_plain(key), key)) != key:
            raise UsageError(
                f"{path}: {visible(other)} and {visible(key)} are the same option; give one of them"
            )


def _checked(path: Path, key: str, value: Any, parameter: Any, context: typer.Context) -> Any:
    """The value as if it had been typed; a bad one is refused with the file's name."""
    many = getattr(parameter, "multiple", False) or getattr(parameter, "nargs", 1) == -1
    items = _items(value) if many else [value]
    for item in items:
        if not isinstance(item, str | bool | int | float):
            raise UsageError(
                f"{path}: {visible(key)} must be one value{' or a list of them' if many else ''}"
            )
    if _is_flag(parameter) and not isinstance(value, bool):
        raise UsageError(f"{path}: {visible(key)} must be true or false, not {visible(value)!r}")
    if not _is_flag(parameter) and isinstance(value, bool):
        raise UsageError(f"{path}: {visible(key)} takes a value, not {str(value).lower()}")
    if _is_flag(parameter):
        return value
    typed = [str(item) for item in items]
    try:
        parameter.process_value(context, typed if many else typed[0])
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        reason = str(error.message).rstrip(".")  # type: ignore[attr-defined]
        raise UsageError(f"{path}: {visible(key)}: {reason}") from None
    return typed if many else typed[0]


def _items(value: Any) -> list[Any]:
    """The items of a list; those of a mapping (logit-bias) as TOKEN=BIAS."""
    if isinstance(value, Mapping):
        return [f"{token}={bias}" for token, bias in value.items()]
    return value if isinstance(value, list) else [value]


def _is_flag(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))


def given(context: typer.Context) -> dict[str, Any]:
    """The options that were set, wherever from, by their names in a file."""
    return {
        key: context.params.get(parameter.name)
        for key, parameter in _options(context, str(context.info_name)).items()
        if _source(context, parameter) != "default"
    }


def _in_effect(context: typer.Context) -> list[str]:
    """Every option as a line of TOML with its source in a comment; unset options are comments."""
    run = origin(context).run
    rows = [] if run is None else [(f"[{RUNS}.{_toml(run)}]", "a run of the options file")]
    for key, parameter in _options(context, str(context.info_name)).items():
        value, source = context.params.get(parameter.name), _source(context, parameter)
        if value is None or value in ([], ()) or value is False and source == "default":
            shown = _shown_default(parameter)
            rows.append((f"# {key} = {shown}" if shown else f"# {key}", "default"))
        else:
            rows.append((f"{key} = {_toml(value)}", source))
    width = min(60, max(len(left) for left, _ in rows))
    return [f"{visible(left).ljust(width)}  # {visible(source)}" for left, source in rows]


def _source(context: typer.Context, parameter: Any) -> str:
    source = context.get_parameter_source(parameter.name)
    name = source.name if source is not None else "DEFAULT"
    if name == "COMMANDLINE":
        return "command line"
    if name == "ENVIRONMENT":
        return f"${parameter.envvar}"
    if name == "DEFAULT_MAP":
        return origin(context).sources.get(parameter.name, "options file")
    return "default"


def _shown_default(parameter: Any) -> str:
    """The default that the help shows when the real value is decided later."""
    if _is_flag(parameter):
        return "false"
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    text = getattr(parameter, "help", None) or ""
    return text.rpartition("[default: ")[2].removesuffix("]") if "[default: " in text else ""


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value) if isinstance(value, int | float) else json.dumps(str(value), ensure_ascii=False)
