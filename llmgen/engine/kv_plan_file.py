"""Plans of KV cache kinds in a file, so that a model is measured once in a while and not at every start.

The file is JSON: {"format": "llmgen KV plans", "version": 1, "plans": [entry ...]}, written whole or not at all.
Beside the plans it keeps how generated tokens read the cache (decode_plan_file.py), under "decode".
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgen.engine.kv_plan import Plan
from llmgen.engine.records import record
from llmgen.errors import LLMGenError
from llmgen.files import folder_lock, read_bounded, replacing
from llmgen.hub.state import state_folder
from llmgen.model.kv_config import KVAutoConfig

FORMAT, VERSION = "llmgen KV plans", 1
_MOST_BYTES = 8 << 20
MOST_ENTRIES = 100
"""Of each kind, the latest."""


@dataclass(frozen=True)
class Entry:
    """A plan in the file."""

    key: str
    """A hash of the model's fingerprint, the machine, the context, the gates and a scaling of positions."""
    measured: float
    """When, in seconds since 1970."""
    budget_mb: float | None
    """As it was given."""
    plan: Plan

    @property
    def chosen_bytes(self) -> int:
        """Bytes that the chosen kind takes.  Raises ValueError where it is not among the candidates."""
        for candidate in self.plan.candidates:
            if candidate.kinds == self.plan.chosen:
                return candidate.bytes_per_context
        raise ValueError("the chosen kind is none of the candidates")


def default_file() -> Path:
    """Where plans are kept unless another file is named."""
    return state_folder() / "kv-plans.json"


def plan_key(
    fingerprint: str, machine: str, n_ctx: int, config: KVAutoConfig, rope_scaling: str | None = None
) -> str:
    """What must be equal for a plan to hold."""
    gates = [config.max_delta_nll, config.max_ppl_ratio, config.max_mean_kl]
    parts = [fingerprint, machine, n_ctx, *map(float, gates), config.probe_tokens, config.probe_steps]
    if rope_scaling is not None:
        parts.append(rope_scaling)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def kept(path: Path, key: str, budget: int | None, config: KVAutoConfig) -> Plan | None:
    """The plan of that key if it is there, was measured within the interval, and still holds.

    It does if the same budget was given; where none was, if what was chosen fits into ``budget``.
    Raises LLMGenError for a file that holds no plans.
    """
    for values in read_content(path)["plans"]:
        entry = record(Entry, values)
        if (
            entry.key == key
            and 0 <= time.time() - entry.measured < config.probe_interval
            and entry.budget_mb == config.budget_mb
            and (budget is None or entry.chosen_bytes <= budget)
        ):
            return entry.plan
    return None


@contextmanager
def measuring_alone(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Wait until no other process measures for this file, and be the only one that does for the length of the block.

    The lock of a process that dies is free.  ``waiting`` is called again and again meanwhile.  Raises LLMGenError
    where the file could not be written.
    """
    with _locked(path, "lock", waiting):
        yield


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """The same for the moment in which entries are added to what the file holds, so that none gets lost."""
    with _locked(path, "edit", lambda: None):
        yield


@contextmanager
def _locked(path: Path, ending: str, waiting: Callable[[], None]) -> Iterator[None]:
    if str(path).startswith("~"):  # no home is known: this would be a folder of that name right here
        raise _cannot_write(path, OSError("no home folder is known"))
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(path.with_name(f"{path.name}.{ending}"), waiting))
        except (OSError, ValueError) as error:  # ValueError: no path
            raise _cannot_write(path, error) from error
        yield


def keep(path: Path, key: str, config: KVAutoConfig, plan: Plan) -> None:
    """Put a plan into the file, in place of an earlier one.  Raises LLMGenError if it cannot be written."""
    entry = {
        "key": key,
        "measured": time.time(),
        "budget_mb": config.budget_mb,
        "plan": plan_as_dict(plan),
    }
    with changing(path):
        content = read_content(path)
        plans = [entry, *(other for other in content["plans"] if other["key"] != key)][:MOST_ENTRIES]
        write_content(path, {**content, "plans": plans})


def warn_not_kept(error: LLMGenError) -> None:
    """Warn that what was measured holds for this program only, and why; once, whatever was measured."""
    warnings.warn(f"what was measured is not kept, and will be measured again: {error}", stacklevel=1)


def write_content(path: Path, content: dict[str, Any]) -> None:
    """Replace the file.  Raises LLMGenError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path.resolve()) as file:
            file.write(json.dumps(content, indent=1).encode())
    except OSError as error:
        raise _cannot_write(path, error) from error


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """For JSON."""
    values = dataclasses.asdict(plan)
    values["chosen"] = str(plan.chosen)
    for candidate, entry in zip(plan.candidates, values["candidates"], strict=True):
        entry["kinds"] = str(candidate.kinds)
    return values


def read_content(path: Path) -> dict[str, Any]:
    """What a file holds, its plans checked; no plans if it is not there.  Raises LLMGenError for another file."""
    try:
        if path.exists() and not path.is_file():
            raise _no_plans(path, "it is a folder, a pipe or a device")
        with open(path, "rb") as file:
            data = read_bounded(file, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {"format": FORMAT, "version": VERSION, "plans": []}
    except (OSError, ValueError) as error:
        raise _no_plans(path, getattr(error, "strerror", None) or str(error)) from error
    try:
        found: dict[str, Any] = json.loads(data or b"")
        if found["format"] == FORMAT and found["version"] == VERSION:
            for values in found["plans"]:
                _ = record(Entry, values).chosen_bytes
            return found
    except (ValueError, KeyError, TypeError, RecursionError, LLMGenError) as error:
        raise _no_plans(path, "it is no file of plans, or damaged") from error
    raise _no_plans(path, "it is no file of plans, or one of another version")


def _cannot_write(path: Path, error: OSError | ValueError) -> LLMGenError:
    reason = getattr(error, "strerror", None) or str(error)
    return LLMGenError(f"cannot write the plan file {path}: {reason}; give another one (--kv-plan)")


def _no_plans(path: Path, reason: str) -> LLMGenError:
    return LLMGenError(
        f"cannot use the plan file {path}: {reason}; remove it or give another one (--kv-plan)"
    )
