"""Adapting messages to what a chat template can read.

Programs keep tool calls as OpenAI's interface returns them: the arguments are a string of
JSON, and the content beside a call is null.  Most templates want the arguments as an
object, a few as a string, and many fail over a null content or write "None".  Content may
also be a list of parts, which older templates print as Python would.

A template does not say what it expects, so it is tried: the conversation is rendered with a
known word in each form, and the form in which the word appears correctly is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from llmgen.errors import TemplateError
from llmgen.tokenizer.budget import Stopped

Messages = list[dict[str, Any]]
Run = Callable[[Messages], str]
"""Renders a conversation."""

_KEY, _WORD = "qzjxkey", "qzjxword"
_OBJECT = {_KEY: _WORD}
_TEXT = json.dumps(_OBJECT)
_PART = "qzjxpart"


def adapt_messages(run: Run, messages: Messages) -> Messages:
    """The conversation with arguments and contents in the form that the template can read.

    What the template reads as it is, or in no form, stays unchanged.
    """
    if not all(isinstance(message, dict) for message in messages):
        return messages  # the template will fail and say why
    messages = _with_fitting_parts(run, messages)
    messages = _with_fitting_arguments(run, messages)
    return _with_fitting_nulls(run, messages)


def _with_fitting_arguments(run: Run, messages: Messages) -> Messages:
    if not any(map(_calls, messages)):
        return messages
    probed = _without_nulls(messages)
    as_object = _rendered(run, _with_arguments(probed, lambda _: _OBJECT))
    as_text = _rendered(run, _with_arguments(probed, lambda _: _TEXT))
    if as_object == as_text:
        return messages
    if as_object is not None and _WORD in as_object and repr(_OBJECT)[:-1] not in as_object:
        return _with_arguments(messages, _parsed)
    if as_text is not None and _TEXT in as_text:
        return _with_arguments(messages, _written)
    return messages


def _with_fitting_nulls(run: Run, messages: Messages) -> Messages:
    if not any(map(_has_null, messages)):
        return messages
    without = _without_nulls(messages)
    given, text = _rendered(run, messages), _rendered(run, without)
    if text is None or (given is not None and given.count("None") <= text.count("None")):
        return messages
    return without


def _with_fitting_parts(run: Run, messages: Messages) -> Messages:
    """Join lists of text parts to one text, a part a line, if the template does not read lists."""
    if not any(map(_has_parts, messages)):
        return messages

    def probe(content: Any) -> str | None:
        changed = [message | {"content": content} if _has_parts(message) else message for message in messages]
        return _rendered(run, _without_nulls(_with_arguments(changed, lambda _: _OBJECT)))

    as_list, as_text = probe([{"type": "text", "text": _PART}]), probe(_PART)
    if as_list is not None and _PART in as_list and repr(_PART) not in as_list:
        return messages
    if as_text is None or _PART not in as_text:
        return messages
    return [
        message | {"content": "\n".join(part["text"] for part in message["content"])}
        if _has_parts(message)
        else message
        for message in messages
    ]


def _rendered(run: Run, messages: Messages) -> str | None:
    """The prompt, None if the template fails or refuses."""
    try:
        return run(messages)
    except Stopped:
        raise
    except TemplateError:
        return None


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """What a message calls: dictionaries with "name" and "arguments"."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    bodies = [call.get("function", call) for call in calls if isinstance(call, dict)]
    return [body for body in bodies if isinstance(body, dict) and "arguments" in body]


def _with_arguments(messages: Messages, change: Callable[[Any], Any]) -> Messages:
    """A copy in which the arguments of every call are changed."""

    def changed(call: Any) -> Any:
        if not isinstance(call, dict):
            return call
        if isinstance(call.get("function"), dict):
            return call | {"function": changed(call["function"])}
        return call | {"arguments": change(call["arguments"])} if "arguments" in call else call

    return [
        message | {"tool_calls": list(map(changed, message["tool_calls"]))} if _calls(message) else message
        for message in messages
    ]


def _parsed(arguments: Any) -> Any:
    """Arguments as an object; what is no JSON object stays as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _written(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _has_null(message: dict[str, Any]) -> bool:
    return message.get("content", None if _calls(message) else "") is None


def _without_nulls(messages: Messages) -> Messages:
    return [message | {"content": ""} if _has_null(message) else message for message in messages]


def _has_parts(message: dict[str, Any]) -> bool:
    """Whether the content is a list of text parts only."""
    content = message.get("content")
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content)
        and all(part.get("type", "text") == "text" for part in content)
    )
