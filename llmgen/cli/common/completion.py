"""What the shell offers after Tab: commands, models, and the values of options; in well under 0.2 s.

Typer works out where the cursor is. It would also convert every value, for which it loads
Pydantic; that takes longer than all the rest, and is left out here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmgen.cli.common.models import complete_model
from llmgen.cli.common.signatures import parameters_of, with_parameters
from llmgen.model.kv_config import AUTO, KV_KINDS

_CHOICES = re.compile(r"[a-z0-9][\w.-]*(?:\|[a-z0-9][\w.-]*)+\Z")
TEMPLATES = ("chatml", "gemma", "llama3", "phi3", "plain")
"""The names in tokenizer/builtin.py, which is too slow to be loaded after Tab."""
QUANTIZED = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1"),
    *("Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4_MOE", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "TQ2_0", "TQ1_0"),
)
"""Those in quantize/mixes.py, likewise."""


@dataclass(frozen=True)
class Item:
    """One thing that is offered, as Typer's shells read it."""

    value: str
    help: str | None = None
    type: str = "plain"


def offering_values(command: Callable[..., Any]) -> Callable[..., Any]:
    """Have a command's parameters offer what their metavar names: ``a|b|c``, or a MODEL."""
    parameters = parameters_of(command)
    for parameter in parameters:
        for info in getattr(parameter.annotation, "__metadata__", ()):
            metavar = getattr(info, "metavar", None)
            if metavar and getattr(info, "autocompletion", None) is None:
                info.autocompletion = _for_metavar(metavar)
    # the annotations are evaluated anew by whoever asks for them, so these have to go along
    return with_parameters(command, parameters)(command)


def _for_metavar(metavar: str) -> Callable[[str], list[str]] | None:
    return one_of(metavar.split("|")) if _CHOICES.match(metavar) else _BY_METAVAR.get(metavar)


def one_of(values: Iterable[str]) -> Callable[[str], list[str]]:
    """A function that completes one of these values."""
    known = list(values)

    def complete(incomplete: str) -> list[str]:
        return [value for value in known if value.startswith(incomplete)]

    return complete


_BY_METAVAR: dict[str, Callable[[str], list[str]]] = {
    "MODEL": complete_model,
    "FILE|NAME": one_of(TEMPLATES),
    "TYPE": one_of(QUANTIZED),
    "KIND": one_of((*KV_KINDS, AUTO)),
}


def parse_for_completion(command: Any, context: Any, args: list[str]) -> list[str]:
    """Parse a line that is being typed: which arguments it has already, none of them converted; returns the rest."""
    parser = command.make_parser(context)
    options, rest, _ = parser.parse_args(args=list(args))
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            value, source = parameter.consume_value(context, options)
            context.set_parameter_source(parameter.name, source)
            context.params[parameter.name] = value
    context.args = rest
    context._opt_prefixes.update(parser._opt_prefixes)
    return list(rest)


def commands_that_begin(incomplete: str, commands: Mapping[str, str]) -> list[Item]:
    """The commands for a beginning, with what they do; no command is loaded for it."""
    return [Item(name, help) for name, help in commands.items() if name.startswith(incomplete)]
