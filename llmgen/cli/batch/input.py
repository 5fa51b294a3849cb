"""The lines of a batch's input: from JSON to requests, or an error for each bad line.

A line is a text (the prompt), or an object with ``prompt`` (a text or a list of token
ids) or ``messages``, with ``system``, ``id`` (anything; it comes back with the answer),
what the chat template reads (``tools``, ``documents``, ``template_kwargs``), and any
sampling option, which holds for this line only.  OpenAI's names work too.
"""

from __future__ import annotations

import difflib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from llmgen.cli.batch.journal import line_hash
from llmgen.cli.common.model_options import flag_of_opening
from llmgen.cli.common.sampling_options import id_or_text
from llmgen.cli.common.templates import fitted
from llmgen.cli.common.texts import decoded
from llmgen.errors import LLMGenError, UsageError
from llmgen.files import is_at
from llmgen.sampling.params import OTHER_NAMES, SamplingParams, option_named, option_table
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.tokenizer import ChatTemplate

_MOST_BYTES = 16 << 20
_MOST_PIPED = 1 << 30
_DEEPEST = 100  # levels of brackets; no message needs that many
_TEMPLATE_KEYS = ("tools", "documents", "template_kwargs")
_ID_KEYS = ("custom_id", "id")
_OWN_KEYS = ("prompt", "messages", "system", *_ID_KEYS, *_TEMPLATE_KEYS)
_NEEDLESS: dict[str, tuple[Any, str]] = {
    "n": (1, "several answers are as many lines"),
    "stream": (False, "a line's answer is written when it is complete"),
}
"""OpenAI keys that may only have the value that is implied anyway, and why."""


@dataclass(frozen=True)
class Line:
    """A non-blank line of the input: its number from 0, its hash, its bytes."""

    number: int
    digest: str
    data: bytes


class Source:
    """The input, opened once: a file as it is now, or a pipe (``-`` is stdin), which is read to its end first.

    A line may have up to 16 MB, and a pipe up to 1 GB, so that an endless one does not fill the disk.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be read, LLMGenError if a pipe's content cannot be stored."""
        is_stdin = str(path) == "-"
        self.name = "stdin" if is_stdin else str(path)
        self._file: BinaryIO = sys.stdin.buffer if is_stdin else open(path, "rb")
        self._start, self._size = 0, _plain_size(self._file)
        if self._size:
            self._start = self._file.tell()  # part of stdin may have been read already
            return
        with self._file as pipe:
            self._file = self._kept(pipe)
            self._size = self._file.tell()

    def lines(self) -> Iterator[Line]:
        """The lines that are not blank; ``number`` counts them all, as an editor does.

        What is added to the file after it was opened is left out.  One iteration at a time.
        """
        for number, data in enumerate(self._split()):
            if content := data.strip():
                yield Line(number, line_hash(content), data)

    def count(self) -> int:
        """The number of non-blank lines."""
        return sum(1 for data in self._split() if data.strip())

    def is_at(self, path: Path) -> bool:
        """Whether ``path`` is the file that is read."""
        return is_at(self._file, path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _kept(self, pipe: BinaryIO) -> BinaryIO:
        """A pipe's content in an unnamed file, because it is read more than once."""
        n_bytes = unfinished = 0
        try:
            file: BinaryIO = tempfile.TemporaryFile()
            while unfinished <= _MOST_BYTES and (
                block := pipe.read(1 << 20)
            ):  # a line too long is the end anyway
                if (n_bytes := n_bytes + len(block)) > _MOST_PIPED:
                    raise UsageError(
                        f"{visible(self.name)} has over {_MOST_PIPED >> 20} MB, and a pipe is read to its end before"
                        " the work begins; write it to a file, which may be longer, and give that"
                    )
                end = block.rfind(b"\n") + 1
                unfinished = len(block) - end + (0 if end else unfinished)
                file.write(block)
            file.flush()
        except OSError as error:
            raise LLMGenError(
                f"cannot keep what {visible(self.name)} holds in a temporary file: {error.strerror or error};"
                " write it to a file and give that, or set TMPDIR"
            ) from error
        return file

    def _split(self) -> Iterator[bytes]:
        """All lines, without byte order marks, which concatenated files may have anywhere."""
        self._file.seek(self._start)
        left, number = self._size - self._start, 0
        while data := self._file.readline(min(_MOST_BYTES + 1, left)):
            left, number = left - len(data), number + 1
            if len(data) > _MOST_BYTES:
                raise UsageError(
                    f"line {number} of {visible(self.name)} has over {_MOST_BYTES >> 20} MB, more than any"
                    " context takes; is it one JSON object per line?"
                )
            yield data.removeprefix(b"\xef\xbb\xbf")


def _plain_size(file: BinaryIO) -> int:
    """The bytes of a regular file; 0 for pipes and devices, some of which have no end."""
    found = os.fstat(file.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def identity(line: Line) -> dict[str, Any]:
    """What an answer's line begins with: the input line's number from 1, and its id if it has one."""
    found: dict[str, Any] = {"line": line.number + 1}
    try:
        values = _loaded(line.data)
    except (ValueError, LLMGenError):
        return found
    for key in _ID_KEYS if isinstance(values, dict) else ():
        if key in values:
            found["id"] = values[key]
    return found


@dataclass
class Reader:
    """Turns lines into requests, given the options that hold for all lines."""

    llm: LLM
    sampling: SamplingParams
    template: ChatTemplate | None
    raw: bool = False
    system: str | None = None
    _said: set[str] = field(default_factory=set)

    def parse(self, line: Line) -> tuple[list[int], SamplingParams]:
        """The prompt's tokens and the options of a line.  Raises LLMGenError if the line is wrong."""
        from llmgen.tokenizer import rendering_within

        values = _object(line)
        options = _options(values)
        sampling = self.sampling.with_(**options) if options else self.sampling
        with rendering_within(sampling.timeout):
            ids, chat = self._tokens(values)
        if chat and self.template is not None and (stops := self.template.stops):
            sampling = sampling.with_(stop=(*sampling.stop, *stops))
        return ids, sampling

    def _tokens(self, values: dict[str, Any]) -> tuple[list[int], bool]:
        """The prompt's tokens, and whether the chat template wrote it."""
        prompt, messages = values.get("prompt"), values.get("messages")
        if (prompt is None) == (messages is None):
            raise UsageError("the line must have prompt or messages, one of them")
        own_system = values.get("system")
        if own_system is not None and not isinstance(own_system, str):
            raise UsageError("system must be a text")
        if messages is None:
            if not isinstance(prompt, str | list):
                raise UsageError("prompt must be a text or a list of token ids")
            if isinstance(prompt, list) or self.raw or self.template is None:
                for key in ("system", *_TEMPLATE_KEYS):
                    if values.get(key) is not None:
                        raise UsageError(f"{key} needs a chat template, which is not used here; leave it out")
                return self.llm.prompt_ids(_checked_ids(prompt)), False
            messages = [{"role": "user", "content": prompt}]
        elif not _is_conversation(messages):
            raise UsageError("messages must be a list of objects with role and content")
        system = values.get("system", self.system)
        briefing = [] if system is None else [{"role": "system", "content": system}]
        more = {key: values[key] for key in _TEMPLATE_KEYS if key in values}
        return self.llm.prompt_ids(self._encode([*briefing, *messages], more)), True

    def _encode(self, messages: list[dict[str, Any]], more: dict[str, Any]) -> list[int]:
        """The conversation's tokens; what the template changes is mentioned once, not for every line."""
        template = self.llm.chat_template  # --raw is for texts; messages still need it
        if template is not None:
            messages = fitted(template, messages, self._said)
        return self.llm.encode_chat(messages, **more)


def _options(values: dict[str, Any]) -> dict[str, Any]:
    """The sampling options of a line; refuses unknown keys, and two keys for one option."""
    options: dict[str, Any] = {}
    for key, value in values.items():
        if key in _OWN_KEYS:
            continue
        if key in _NEEDLESS:
            wanted, reason = _NEEDLESS[key]
            if value != wanted:
                raise UsageError(f"{key} must be {json.dumps(wanted)}, since {reason}; leave it out")
            continue
        name = option_named(key.replace("-", "_"))
        if name is None:
            raise _unknown(key)
        if key == "logprobs" and isinstance(value, bool):  # OpenAI says how many in top_logprobs
            if value:
                options.setdefault(name, 0)
            continue
        if name in options and not (key == "top_logprobs" and values.get("logprobs") is True):
            raise UsageError(f"{name} is there twice; give it once")
        options[name] = _by_ids(value) if name == "logit_bias" else value
    return options


def _by_ids(bias: Any) -> Any:
    """Biases by token: JSON keys are strings, so digits are an id, as on the command line."""
    if not isinstance(bias, dict):
        return bias
    return {id_or_text(key): value for key, value in bias.items()}


def _unknown(key: str) -> UsageError:
    if key == "model":
        return UsageError("model is chosen on the command line, for all lines; leave it out")
    if (flag := flag_of_opening(key)) is not None:
        return UsageError(f"{key} is chosen on the command line (--{flag}), for all lines; leave it out")
    known = [*(option.name for option in option_table()), *OTHER_NAMES, *_OWN_KEYS]
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    hint = (
        f"did you mean {option_named(near[0]) or near[0]}?"
        if near
        else "`llmgen batch --help` lists the options"
    )
    return UsageError(f"{key!r} is not a key of a line; {hint}")


def _object(line: Line) -> dict[str, Any]:
    try:
        values = _loaded(line.data, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise UsageError(f"the line is not JSON: {error.msg} at column {error.colno}") from None
    except ValueError:  # a number of thousands of digits
        raise UsageError("a number in the line has more digits than can be read") from None
    if isinstance(values, str):
        return {"prompt": values}
    if not isinstance(values, dict):
        raise UsageError("the line must be a JSON object with prompt or messages, or a text")
    try:
        json.dumps([values.get(key) for key in _ID_KEYS], allow_nan=False)
    except ValueError:
        raise UsageError("id has a number that JSON cannot hold, such as NaN; give another") from None
    return values


def _loaded(data: bytes, **options: Any) -> Any:
    """The value of a line.  Raises ValueError; UsageError where it is not UTF-8, or too deep to be written again."""
    too_deep = UsageError(f"the line is nested too deeply; at most {_DEEPEST} levels were expected")
    try:
        values = json.loads(decoded(data, "the line"), **options)  # of bytes, it would take more than UTF-8
    except RecursionError:
        raise too_deep from None
    level = [values]
    for _ in range(_DEEPEST):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return values
    raise too_deep


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a repeated key, which JSON allows, is an error."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UsageError(f"{key!r} is there twice; give it once")
        found[key] = value
    return found


def _checked_ids(prompt: str | list[Any]) -> str | list[int]:
    if isinstance(prompt, list) and not all(type(token) is int for token in prompt):
        raise UsageError("prompt must be a text or a list of token ids")
    return prompt


def _is_conversation(messages: object) -> bool:
    """Whether these look like messages; the template decides which roles and contents are allowed."""
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in messages)
    )


def failure(error: LLMGenError) -> dict[str, Any]:
    """What a line has instead of an answer."""
    return {"error": str(error)}
