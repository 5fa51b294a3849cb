"""The text side of a model file: its tokenizer and its chat template."""

from __future__ import annotations

import threading
from collections.abc import Callable

from llmgen.errors import TemplateError, TokenizerError
from llmgen.gguf import GGUFFile
from llmgen.tokenizer.template import ChatTemplate, chat_template_from_gguf
from llmgen.tokenizer.tokenizer import Tokenizer


class ModelText:
    """Reads each of them with its first use; from any thread.

    chat_template: takes the place of the file's, as text or as a template;
    check_open: called before the file is read, raises where it is closed.
    """

    def __init__(
        self, file: GGUFFile, chat_template: str | ChatTemplate | None, check_open: Callable[[], None]
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
        """The tokenizer.  Raises TokenizerError where the file has none that llmgen can use."""
        with self._lock:
            if self._tokenizer is None:
                self._check_open()
                self._tokenizer = Tokenizer.from_gguf(self._file)
            return self._tokenizer

    @property
    def working_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None where the file has none that works: token ids do without."""
        try:
            tokenizer = self.tokenizer
        except TokenizerError:
            return None
        return tokenizer if tokenizer.has_text else None

    @property
    def template(self) -> ChatTemplate | None:
        """The chat template, or None where there is none.  Raises TemplateError where it cannot be used."""
        with self._lock:
            if not self._template_known:
                self._check_open()
                self._template = self._find_template()
                self._template_known = True
            return self._template

    @property
    def needed_template(self) -> ChatTemplate:
        """The chat template.  Raises TemplateError where there is none."""
        template = self.template
        if template is None:
            raise TemplateError(
                "this model has no chat template, which a conversation needs: give one"
                " (chat_template=...), or complete plain text with generate"
            )
        return template

    def _find_template(self) -> ChatTemplate | None:
        if self._given is None:
            return chat_template_from_gguf(self._file)
        if isinstance(self._given, ChatTemplate):
            return self._given
        tokenizer = self.tokenizer
        bos, eos = (
            "" if token is None else tokenizer.token_text(token)
            for token in (tokenizer.bos_id, tokenizer.eos_id)
        )
        return ChatTemplate(self._given, bos_token=bos, eos_token=eos)
