"""A command's help: options in panels by purpose, the values they take, examples."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from llmgen.cli.common.completion import parse_for_completion

ARGUMENTS = "llmgen.arguments"
"""The key under which a context keeps the arguments that were typed."""
_PANELS = {
    "Model": ("n_ctx", "n_threads", "threads", "kv_type", "template", "think"),
    "Prompt": ("file", "system", "system_file", "raw", "parse_special", "no_stdin", "prompt_cache"),
    "Sampling": (
        *("max_tokens", "temp", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"),
        *("presence_penalty", "frequency_penalty", "seed", "stop", "ignore_eos", "timeout"),
    ),
    "Output": (
        *("output", "overwrite", "restart", "slots", "samples", "json", "stats", "no_markdown"),
        *("resume", "open", "no_save", "quiet", "verbose", "help"),
    ),
    "Advanced": (),
}
"""Panel -> the parameters in it; the last one takes the rest."""

EXAMPLES = {
    "run": (
        'llmgen run smollm2 "Why is the sky blue?"',
        'llmgen run smollm2 -f report.txt "Summarize this report."',
        'git diff | llmgen run smollm2 "Write a commit message for this:"',
        'llmgen run smollm2 --raw --temp 0 -n 40 "Once upon a time"',
        'llmgen run smollm2 --json "Say hello." | jq -r .text',
    ),
    "chat": (
        "llmgen chat smollm2",
        'llmgen chat smollm2 --system "Answer in one sentence."',
        "llmgen chat smollm2 --resume",
    ),
    "chats": (
        "llmgen chats",
        "llmgen chats search banana bread",
        "llmgen chats export 1 -o recipe.md",
    ),
    "batch": (
        "llmgen batch smollm2 prompts.jsonl -o answers.jsonl",
        "llmgen batch smollm2 prompts.jsonl --temp 0 -n 100 > answers.jsonl",
        'printf \'"Hello"\\n"Good night"\\n\' | llmgen batch smollm2 -',
    ),
    "quantize": (
        "llmgen quantize model-f16.gguf Q4_K_M -o model-q4.gguf",
        "llmgen quantize model-f16.gguf Q8_0 -o model-q8.gguf --check wiki.txt",
    ),
    "perplexity": (
        "llmgen perplexity smollm2 wiki.txt",
        "llmgen perplexity smollm2 wiki.txt -c 2048 --stride 512",
    ),
    "bench": (
        "llmgen bench smollm2",
        "llmgen bench smollm2 -p 512,2048 -n 128 -t 1,2",
    ),
    "inspect": (
        "llmgen inspect smollm2",
        "llmgen inspect model.gguf --tensors",
        "llmgen show smollm2 --json",
    ),
    "tokenize": (
        'llmgen tokenize smollm2 "How many tokens?"',
        'llmgen tokenize smollm2 --decode "504 3575 282"',
    ),
    "list": ("llmgen list", "llmgen list --all", "llmgen ls --json"),
    "rm": ("llmgen rm smollm2", "llmgen rm -y hf.co/OWNER/REPO:Q4_K_M"),
    "alias": ("llmgen alias fast hf.co/OWNER/REPO:Q4_K_M", "llmgen alias", "llmgen alias --remove fast"),
    "ps": ("llmgen ps", "llmgen ps --json"),
    "pull": ("llmgen pull smollm2", "llmgen pull hf.co/OWNER/REPO:Q4_K_M"),
    "warmup": ("llmgen warmup smollm2",),
    "plan": ("llmgen plan smollm2", "llmgen plan smollm2 -c 8192 --kv-budget 100"),
}

_KINDS = {
    r"<int>|INTEGER(?: RANGE)?": "N",
    r"<float>|FLOAT(?: RANGE)?": "X",
    r"<str>": "TEXT",
    r"<path>|PATH|<file>": "FILE",
}
_DEFAULT = re.compile(r"\[default: [^\]]*\]+")
_RANGE = re.compile(r"; x[<>]=?-?\d+|; -?\d+<=?x(?:<=?\d+)?|\s*\[x[<>]=?-?\d+\]|\s*\[-?\d+<=?x(?:<=?\d+)?\]")
_LEFT = 30  # columns of what is typed
_GAP = "\0"  # a blank at which no line breaks


class Command(TyperCommand):
    """A command with this help; it keeps the arguments that were typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        if ctx.resilient_parsing:
            return parse_for_completion(self, ctx, args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # the parser does not say whose option lacks a value
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, _usage(self))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_panels(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if ctx.parent is None or ctx.parent.parent is None:  # else it is one of a group's
            _write_examples(str(self.name), formatter)


class LightGroup(TyperGroup):
    """A group whose line can be completed at once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        rest = parse_for_completion(self, ctx, args)
        ctx._protected_args, ctx.args = rest[:1], rest[1:]
        return list(ctx.args)


class Group(LightGroup):
    """A group of commands with this help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_panels(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(str(self.name), formatter)


def _usage(command: Any) -> str:
    """What follows the command's name: ``[OPTIONS] MODEL [PROMPT]``."""
    names = []
    for parameter in _arguments(command.params):
        name = _argument(parameter)
        names.append(name if parameter.required else f"[{name}]")
    return " ".join(["[OPTIONS]", *names])


def _write_panels(command: Any, context: Any, formatter: Any) -> None:
    """Write the arguments, and the options in their panels."""
    parameters = command.get_params(context)
    _section(formatter, "Arguments", [(_argument(p), _help(p, context)) for p in _arguments(parameters)])
    options = [p for p in parameters if p.param_type_name == "option" and p.get_help_record(context)]
    if not any(option.name in _PANELS["Sampling"] for option in options):  # the others have few
        _section(formatter, "Options", [_row(p, context) for p in options])
        return
    for panel, found in _in_panels(options).items():
        _section(formatter, panel, [_row(p, context) for p in found])


def _write_examples(name: str, formatter: Any) -> None:
    """Write some command lines to begin with."""
    if name in EXAMPLES:
        with formatter.section("Examples"):
            for line in EXAMPLES[name]:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _in_panels(options: list[Any]) -> dict[str, list[Any]]:
    """The options by panel, each panel in the order of the table."""
    places = {name: (panel, i) for panel, names in _PANELS.items() for i, name in enumerate(names)}
    rest = (list(_PANELS)[-1], len(places))
    found: dict[str, list[Any]] = {panel: [] for panel in _PANELS}
    for option in sorted(options, key=lambda option: places.get(option.name, rest)[1]):
        found[places.get(option.name, rest)[0]].append(option)
    return found


def _arguments(parameters: Iterable[Any]) -> list[Any]:
    return [p for p in parameters if p.param_type_name == "argument" and not getattr(p, "hidden", False)]


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _row(option: Any, context: Any) -> tuple[str, str]:
    """What is typed, and what it means."""
    typed = str(option.get_help_record(context)[0])
    for pattern, kind in _KINDS.items():
        typed = re.sub(pattern, kind, typed)
    return re.sub(r"[\[<]([\w.-]+(?:\|[\w.-]+)+)[\]>]", r"\1", typed), _help(option, context)


def _help(parameter: Any, context: Any) -> str:
    record = parameter.get_help_record(context)
    text = str(record[1]) if record else str(parameter.help or "")
    text = _RANGE.sub("", text.replace("  [required]", ""))
    return re.sub(r"default: \((.*?)\)([\];])", r"default: \1\2", text)


def _section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    """Rows in two columns; no word and no default value is broken."""
    if not rows:
        return
    indent = formatter.current_indent + 2
    left = min(_LEFT, max(len(typed) for typed, _ in rows) + 2)
    width = max(20, formatter.width - indent - left)
    with formatter.section(title):
        for typed, text in rows:
            lines = _wrapped(text, width)
            if len(typed) > left - 2:
                lines.insert(0, "")
            first, *others = lines or [""]
            formatter.write(f"{'':{indent}}{typed:{left}}{first}".rstrip() + "\n")
            for line in others:
                formatter.write(f"{'':{indent + left}}{line}\n")


def _wrapped(text: str, width: int) -> list[str]:
    def joined(found: re.Match[str]) -> str:
        shown = found.group()
        return shown.replace(" ", _GAP) if len(shown) <= width else shown

    lines = textwrap.wrap(
        _DEFAULT.sub(joined, " ".join(text.split())), width, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_GAP, " ") for line in lines]
