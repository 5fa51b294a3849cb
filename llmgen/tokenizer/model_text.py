"""The text side of a model file: its tokenizer and its chat template."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any

from llmgen.errors import TemplateError, TokenizerError, UsageError, kind_of
from llmgen.gguf import GGUFFile
from llmgen.tokenizer.choice import choose_template
from llmgen.tokenizer.plain import plain_list
from llmgen.tokenizer.template import ChatTemplate
from llmgen.tokenizer.tokenizer import Tokenizer


class ModelText:
    """Reads the tokenizer and the template when they are first used; from any thread.

    chat_template: used instead of the file's; a ChatTemplate, or a choice for
    :func:`choose_template`.  check_open: called before the file is read, raises if it is closed.
    """

    def __init__(
        self,
        file: GGUFFile,
        chat_template: str | PathLike[str] | ChatTemplate | None,
        check_open: Callable[[], None],
    ) -> None:
        self._file = file
        self._given = chat_template
        self._check_open = check_open
        self._lock = threading.RLock()
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None
        self._template_known = False

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.  Raises TokenizerError if the file has none that llmgen can use."""
        with self._lock:
            if self._tokenizer is None:
                self._check_open()
                self._tokenizer = Tokenizer.from_gguf(self._file)
            return self._tokenizer

    @property
    def working_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None if the file has no usable one, so that only token ids can be given."""
        try:
            tokenizer = self.tokenizer
        except TokenizerError:
            return None
        return tokenizer if tokenizer.has_text else None

    def check_choice(self) -> None:
        """Raise if the given template cannot be found or read."""
        _ = self.template

    @property
    def template(self) -> ChatTemplate | None:
        """The chat template, or None if there is none.  Raises TemplateError if it cannot be used."""
        with self._lock:
            if not self._template_known:
                self._check_open()
                self._template = self._find_template()
                self._template_known = True
            return self._template

    @property
    def needed_template(self) -> ChatTemplate:
        """The chat template.  Raises TemplateError if there is none."""
        template = self.template
        if template is None:
            raise TemplateError(
                "this model has no chat template, which chat needs; give one"
                " (chat_template=...), or complete plain text with generate"
            )
        return template

    def keywords(
        self,
        tools: Iterable[Any] | None,
        documents: Iterable[Any] | None,
        template_kwargs: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> dict[str, Any]:
        """What the chat template is given besides the messages.

        Raises UsageError for keywords that it never reads, for what is given twice, and for
        malformed tools and documents; empty lists of them are left out.
        """
        if template_kwargs is not None and not isinstance(template_kwargs, Mapping):
            raise UsageError(f"template_kwargs must be a dict, not {kind_of(template_kwargs)}")
        given = dict(template_kwargs or {})
        for name in given:
            if not isinstance(name, str):
                raise UsageError(f"the keywords of template_kwargs must be texts, not {kind_of(name)}")
        lists = {"tools": tools, "documents": documents}
        listed = {name: items for name, items in lists.items() if items is not None}
        for name in (*more, *listed):
            if name in given:
                raise UsageError(f"{name} is given twice, also in template_kwargs; give it once")
        for name in ("messages", "add_generation_prompt"):
            if name in given:
                raise UsageError(f"template_kwargs names {name}, an argument by itself; leave it out there")
        given |= {**more, **listed}
        for name in lists:
            if given.get(name) is not None:
                given[name] = plain_list(name, given[name])
            if name in given and not given[name]:
                del given[name]
        self.needed_template.check_keywords(given)
        return given

    def _find_template(self) -> ChatTemplate | None:
        if isinstance(self._given, ChatTemplate):
            return self._given
        return choose_template(self._file, self._given)
