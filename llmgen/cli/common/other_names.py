"""The names that other programs have for our options."""

from __future__ import annotations

import functools

from llmgen.sampling.params import OTHER_NAMES, option_table

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
