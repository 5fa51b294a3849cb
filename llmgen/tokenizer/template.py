"""Chat templates: from a conversation to a prompt in the format that the model was trained on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llmgen.errors import TemplateError, UsageError, kind_of, shown
from llmgen.gguf import GGUFFile
from llmgen.tokenizer.adapt import adapt_messages
from llmgen.tokenizer.budget import Budget, Deadline, OverBudget, Stopped
from llmgen.tokenizer.kinds import bos_and_eos
from llmgen.tokenizer.plain import Message, plain, plain_messages
from llmgen.tokenizer.provenance import Part, split_by_origin
from llmgen.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

    from llmgen.tokenizer.sandbox import Sandbox

MAX_SOURCE = 100_000
"""Characters in a template; the longest known one has 17,000."""

_MOST_DATE = 1000
_WIDE = re.compile(r"\d{3,}")

_MOST_WORDS = 300

_KEY = "tokenizer.chat_template"
_PROBE = "qzjxkwv"
"""A word that no template contains; it shows what a template does with a text."""

_LISTS = ("tools", "documents")
_ALWAYS_THERE = frozenset(
    ["messages", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"]
)
"""Names that every template is given and need not read."""


class TemplateRefusal(TemplateError):
    """The template itself refused the conversation, in its own ``words``."""

    def __init__(self, words: str) -> None:
        """``words`` as the template gave them to ``raise_exception``, of any length."""
        self.words = _words(words) or "(it does not say why)"
        super().__init__(f"the chat template refuses this conversation: {self.words}")


class ChatTemplate:
    """A Jinja2 template in a sandbox, with limits on time and size.

    A template sees ``messages``, ``bos_token``, ``eos_token``, ``add_generation_prompt``,
    ``tools`` and ``documents`` (none unless given), and every other keyword of
    :meth:`render`; and the functions ``raise_exception(message)``, which becomes a
    :class:`TemplateRefusal`, and ``strftime_now(format)``.  All other failures are
    :class:`~llmgen.errors.TemplateError` too.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "<s>",
        eos_token: str = "</s>",
        *,
        name: str | None = None,
        stops: tuple[str, ...] = (),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """``now`` is the clock of ``strftime_now``; a fixed one makes such templates repeatable.

        ``stops`` are texts that end an answer, for formats in which no token does.
        """
        if not isinstance(source, str):
            raise UsageError(f"a chat template must be a Jinja text, not {kind_of(source)}")
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.name = name
        self.stops = stops
        self._now = now

    def render(self, messages: Iterable[Message], add_generation_prompt: bool = True, **kw: Any) -> str:
        """The prompt as text, as the template writes it."""
        plain_kw, deadline = plain(kw), Deadline()
        talk = self._fitted(messages, plain_kw, deadline)
        return self._run(talk, add_generation_prompt, plain_kw, deadline)

    def render_parts(
        self,
        messages: Iterable[Message],
        add_generation_prompt: bool = True,
        *,
        guarded: Iterable[str] = (),
        **kw: Any,
    ) -> list[Part]:
        """The prompt cut into parts ``(text, is_data)``: what came out of the messages is data.

        ``guarded``: the spellings that must not be taken for tokens inside data.  Joined,
        the parts are what :meth:`render` gives, except if a template behaves differently over
        such a spelling in a message; see :mod:`llmgen.tokenizer.provenance`.
        """
        plain_kw, deadline = plain(kw), Deadline()
        talk = self._fitted(messages, plain_kw, deadline)

        def run(messages: Any, tools: Any) -> str:
            return self._run(messages, add_generation_prompt, plain_kw | tools, deadline)

        tools = {name: plain_kw[name] for name in _LISTS if name in plain_kw}
        known = self.source + self.bos_token + self.eos_token + repr(plain_kw)
        return split_by_origin(run, talk, tools, known, list(guarded))

    def fit_system(self, messages: Iterable[Message], **kw: Any) -> tuple[list[dict[str, Any]], str | None]:
        """Adapt the system message to the template.

        Returns the conversation unchanged and None if the template accepts it.  If the
        template refuses or omits the system message, its text is put in front of the first
        user message, and the second value is a sentence that tells the user so.  Raises the
        template's own refusal if that does not help either.
        """
        plain_kw, deadline = plain(kw), Deadline()
        talk = self._fitted(messages, plain_kw, deadline)
        if not talk or talk[0].get("role") != "system":
            return talk, None
        try:
            probe = [talk[0] | {"content": _PROBE}, *talk[1:]]
            if _PROBE in self._run(probe, True, plain_kw, deadline).lower():
                return talk, None
            reason = "leaves the system message out"
        except TemplateRefusal as refusal:
            reason = f"refuses a system message ({refusal.words})"
            merged = _merge_system(talk)
            if merged is None:
                raise
            try:
                self._run(merged, True, plain_kw, deadline)
            except TemplateError:
                raise refusal from None
        else:
            merged = _merge_system(talk)
            if merged is None:
                return talk, None
        return merged, f"the chat template {reason}, so its text was put in front of the first user message"

    def _fitted(
        self, messages: Iterable[Message], kw: dict[str, Any], deadline: Deadline
    ) -> list[dict[str, Any]]:
        """The conversation as plain data, with tool calls and contents in the form that the template can read."""
        return adapt_messages(
            lambda changed: self._run(changed, True, kw, deadline), plain_messages(messages)
        )

    @cached_property
    def reads(self) -> frozenset[str]:
        """Every name that the template may read, such as ``enable_thinking``.

        Includes variables that it sets only sometimes.  Raises TemplateError if it cannot be
        compiled.
        """
        from jinja2.meta import find_undeclared_variables

        assert self._compiled is not None  # raises if it cannot be compiled
        return frozenset(find_undeclared_variables(self._sandbox.parse(self.source)))

    def check_keywords(self, keywords: Mapping[str, Any]) -> None:
        """Raise UsageError for a keyword that the template never reads."""
        for name in sorted(keywords.keys() - self.reads - _ALWAYS_THERE):
            if name in _LISTS:
                raise UsageError(
                    f"this model's chat template reads no {name}, so the model would never see them;"
                    f" leave {name} out, or describe them in a message"
                )
            near = difflib.get_close_matches(name, self.reads - _ALWAYS_THERE, n=1)
            hint = f"did you mean {near[0]}?" if near else "leave it out"
            raise UsageError(f"this model's chat template does not read a keyword {name!r}; {hint}")

    # ---- rendering ------------------------------------------------------------------

    @cached_property
    def _sandbox(self) -> Sandbox:
        from llmgen.tokenizer.sandbox import Sandbox

        return Sandbox()

    @cached_property
    def _compiled(self) -> Template:
        """The template, compiled when it is first used."""
        from jinja2 import TemplateSyntaxError

        if len(self.source) > MAX_SOURCE:
            raise TemplateError(
                f"the chat template has {len(self.source):,} characters, expected at most {MAX_SOURCE:,}; "
                "give another one"
            )
        if not is_jinja(self.source):
            raise TemplateError(
                f"the chat template {shown(self.source, _MOST_WORDS)} has no Jinja in it, so the model would see no"
                " message; give a template's text (a file's path goes to LLM(chat_template=...))"
            )
        try:
            return self._sandbox.from_string(self.source)
        except TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template has an error in line {error.lineno}: {error.message}; give another one"
            ) from error
        except Exception as error:
            raise _failure(error) from error

    def _run(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool,
        kw: dict[str, Any],
        deadline: Deadline,
    ) -> str:
        template = self._compiled
        names = {
            "tools": None,
            "documents": None,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "raise_exception": _refuse,
            "strftime_now": self._date,
            "add_generation_prompt": add_generation_prompt,
            "messages": messages,
        }
        budget = Budget(_characters(messages) + _characters(kw), deadline)
        self._sandbox.start(budget, [messages, *kw.values()])
        out: list[str] = []
        try:
            for text in template.generate(names | kw):
                budget.output(text)
                out.append(text)
        except (Stopped, TemplateRefusal):
            raise
        except Exception as error:
            raise _failure(error) from error
        return "".join(out)

    def _date(self, format: object) -> str:
        text = str(format)
        # the system's formatter makes texts of any size from a width such as %999999999Y
        if len(text) > _MOST_DATE or _WIDE.search(text):
            raise OverBudget("it asked for a date with a format that is too long or too wide")
        return self._now().strftime(text)


def is_jinja(text: str) -> bool:
    """Whether a text has any of Jinja's braces, without which a template cannot contain a message."""
    return any(braces in text for braces in ("{{", "{%"))


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Iterable[Message],
    add_generation_prompt: bool = True,
    **kw: Any,
) -> list[int]:
    """The token ids of a conversation.

    Control tokens are recognised in the template's text, never in the messages; BOS occurs
    once, if the file or the template asks for it.
    """
    guarded = tokenizer.guarded_for(template.source)
    parts = template.render_parts(messages, add_generation_prompt, guarded=guarded, **kw)
    return tokenizer.encode_parts(parts, guarded=guarded)


def chat_template_from_gguf(file: GGUFFile, name: str | None = None) -> ChatTemplate | None:
    """The main chat template of a model file, or the further one called ``name``.

    None if the file has no main one.  Raises TemplateError for an unknown name.
    """
    source = file.metadata.get(_KEY if name is None else f"{_KEY}.{name}")
    if source is None:
        if name is None:
            return None
        names = ", ".join(template_names(file)) or "none"
        raise TemplateError(f"the file has no chat template {name!r}, only: {names}; choose one of these")
    if not isinstance(source, str):
        raise TemplateError(
            f"the chat template in the file is {type(source).__name__}, expected text; give another one"
        )
    bos, eos = bos_and_eos(file.metadata)
    return ChatTemplate(source, bos, eos, name=name)


def template_names(file: GGUFFile) -> list[str]:
    """The names of a file's further chat templates (``tool_use`` and the like), sorted."""
    prefix = _KEY + "."
    return sorted(key.removeprefix(prefix) for key in file.metadata if key.startswith(prefix))


def _refuse(message: object = "") -> None:
    raise TemplateRefusal(str(message))


def _failure(error: Exception) -> TemplateError:
    """Any other exception as a sentence."""
    words = _words(str(error).strip().split("\n")[0]) or type(error).__name__
    if isinstance(error, RecursionError):
        words = "it calls itself endlessly"
    elif type(error).__name__ == "SecurityError":
        words = f"it did something forbidden ({words})"
    return TemplateError(f"the chat template failed: {words}; give another template, or what it asks for")


def _words(text: str) -> str:
    """A template's own words on one line, short enough for a message."""
    return shown(" ".join(text[: 2 * _MOST_WORDS].split()), _MOST_WORDS, quote=False)


def _merge_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The messages with the system text in front of the first user message, None if that is impossible."""
    system, rest = messages[0], [dict(message) for message in messages[1:]]
    for message in rest:
        if message.get("role") == "user":
            texts = [system.get("content"), message.get("content")]
            if not all(isinstance(text, str) for text in texts):
                return None
            message["content"] = "\n\n".join(text for text in texts if text)
            return rest
    return None


def _characters(value: Any) -> int:
    """The characters in all texts of a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_characters(item) + len(key) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list) else 8
