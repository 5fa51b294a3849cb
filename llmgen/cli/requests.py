"""The lines of a batch's input: from JSON to requests, and a sentence about each that is wrong.

A line is a text (the prompt), or an object with ``prompt`` (a text or a list of token
ids) or ``messages``, with ``system``, ``id`` (anything; it comes back with the answer),
and any sampling option, which holds for this line only.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmgen.cli.journal import line_hash
from llmgen.errors import LLMGenError, UsageError
from llmgen.generation.params import SamplingParams, option_table

if TYPE_CHECKING:
    from llmgen import LLM

_MOST_BYTES = 64 << 20
_OWN_KEYS = ("prompt", "messages", "system", "id")


@dataclass(frozen=True)
class Line:
    """A line of the input that is not blank: its number from 0, its hash, its bytes."""

    number: int
    digest: str
    data: bytes


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a JSONL file that are not blank; ``number`` counts them all, as an editor does."""
    with open(path, "rb") as file:
        number = 0
        while data := file.readline(_MOST_BYTES + 1):
            if len(data) > _MOST_BYTES:
                raise UsageError(
                    f"line {number + 1} of {path} has over {_MOST_BYTES >> 20} MB, more than any context takes;"
                    " is it one JSON object per line?"
                )
            if number == 0:
                data = data.removeprefix(b"\xef\xbb\xbf")
            if data.strip():
                yield Line(number, line_hash(data.strip()), data)
            number += 1


def identity(line: Line) -> dict[str, Any]:
    """What an answer's line begins with: the input line's number from 1, and its id where it has one."""
    found: dict[str, Any] = {"line": line.number + 1}
    try:
        values = json.loads(line.data)
    except (ValueError, RecursionError):
        return found
    return {**found, "id": values["id"]} if isinstance(values, dict) and "id" in values else found


def parse(
    line: Line, llm: LLM, sampling: SamplingParams, raw: bool, system: str | None
) -> tuple[list[int], SamplingParams]:
    """The prompt's tokens and the options of a line.  Raises LLMGenError with the reason where it is wrong."""
    values = _object(line)
    options = {key.replace("-", "_"): value for key, value in values.items() if key not in _OWN_KEYS}
    known = {option.name for option in option_table()}
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known | set(_OWN_KEYS)), n=1)
            hint = f"did you mean {near[0]}?" if near else "`llmgen batch --help` lists the options"
            raise UsageError(f"{key!r} is not a key of a line; {hint}")
    return _tokens(values, llm, raw, system), sampling.with_(**options) if options else sampling


def _object(line: Line) -> dict[str, Any]:
    try:
        values = json.loads(line.data)
    except RecursionError:
        raise UsageError("the line is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"the line is not UTF-8 text (byte {error.start})") from None
    except ValueError as error:
        raise UsageError(f"the line is not JSON: {error}") from None
    if isinstance(values, str):
        return {"prompt": values}
    if not isinstance(values, dict):
        raise UsageError("the line must be a JSON object with prompt or messages, or a text")
    return values


def _tokens(values: dict[str, Any], llm: LLM, raw: bool, system: str | None) -> list[int]:
    prompt, messages = values.get("prompt"), values.get("messages")
    system = values.get("system", system)
    if (prompt is None) == (messages is None):
        raise UsageError("the line must have prompt or messages, one of them")
    if system is not None and not isinstance(system, str):
        raise UsageError("system must be a text")
    if isinstance(prompt, list):
        if not all(type(token) is int for token in prompt):
            raise UsageError("prompt must be a text or a list of token ids")
        return llm.prompt_ids(prompt)
    if messages is None:
        if not isinstance(prompt, str):
            raise UsageError("prompt must be a text or a list of token ids")
        if raw or llm.chat_template is None:
            if system is not None:
                raise UsageError("system needs a chat template, which is not used here; leave it out")
            return llm.prompt_ids(prompt)
        messages = [{"role": "user", "content": prompt}]
    elif not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UsageError("messages must be a list of objects with role and content")
    briefing = [] if system is None else [{"role": "system", "content": system}]
    return llm.prompt_ids(llm.encode_chat([*briefing, *messages]))


def failure(error: LLMGenError) -> dict[str, Any]:
    """What an answer's line has in place of an answer."""
    return {"error": str(error)}
