"""Conversations with a loaded model: messages through the chat template, to text, to ids, to answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from llmgen.api_base import LoadedModel
from llmgen.engine.aio import stream_async
from llmgen.engine.events import GenerationEvent, GenerationResult
from llmgen.engine.stopping import Cancel, checked_cancel
from llmgen.engine.stream import Callback, GenerationStream
from llmgen.errors import UsageError
from llmgen.sampling.params import SamplingParams, checked_params, option_named
from llmgen.tokenizer import encode_chat, rendering_within
from llmgen.tokenizer.plain import Message


class ChatCalls(LoadedModel):
    """The calls that take messages."""

    def render_chat(
        self,
        messages: Iterable[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **kw: Any,
    ) -> str:
        """The conversation as the chat template writes it; the arguments are those of :meth:`chat`."""
        given = self._keywords(tools, documents, template_kwargs, kw)
        return self._text.needed_template.render(messages, add_generation_prompt, **given)

    def chat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None = None,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
        **kw: Any,
    ) -> GenerationResult:
        """Answer a conversation: a list of dicts with ``role`` and ``content``, or of Pydantic objects.

        ``tools`` are JSON schemas of functions and ``documents`` texts to answer from, for
        models whose chat template knows them.  ``template_kwargs``, or further keywords, are
        what the template reads beside that, such as ``enable_thinking``; one that it never
        reads raises :class:`UsageError`.
        """
        return self.stream_chat(
            messages,
            params,
            tools=tools,
            documents=documents,
            template_kwargs=template_kwargs,
            cancel=cancel,
            callback=callback,
            **kw,
        ).run()

    def stream_chat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None = None,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        cancel: Cancel | None = None,
        callback: Callback | None = None,
        **kw: Any,
    ) -> GenerationStream:
        """The events of :meth:`chat`, as they happen. The text of messages is never parsed for special tokens."""
        limits = params if isinstance(params, SamplingParams) else self.params
        with rendering_within(limits.timeout, checked_cancel(cancel)):
            ids = self.encode_chat(
                messages, tools=tools, documents=documents, template_kwargs=template_kwargs, **kw
            )
        stops = self._text.needed_template.stops
        if stops:
            params = checked_params(params, self.params)
            params = params.with_(stop=(*params.stop, *stops))
        return self._stream_ids(ids, params, cancel, callback)

    def encode_chat(
        self,
        messages: Iterable[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **kw: Any,
    ) -> list[int]:
        """The token ids of a conversation, ready for an answer; the arguments are those of :meth:`chat`."""
        self._check_open()
        given = self._keywords(tools, documents, template_kwargs, kw)
        return encode_chat(
            self.tokenizer, self._text.needed_template, messages, add_generation_prompt, **given
        )

    def astream_chat(
        self,
        messages: Iterable[Message],
        params: SamplingParams | None = None,
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Iterable[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **kw: Any,
    ) -> AsyncGenerator[GenerationEvent, None]:
        """:meth:`stream_chat` for asyncio."""
        given: dict[str, Any] = {"tools": tools, "documents": documents, "template_kwargs": template_kwargs}
        return stream_async(lambda cancel: self.stream_chat(messages, params, cancel=cancel, **given, **kw))

    def _keywords(
        self,
        tools: Iterable[Mapping[str, Any]] | None,
        documents: Iterable[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> dict[str, Any]:
        """What the chat template is given beside the messages; refuses what it would not look at."""
        for name in more.keys() - self._text.needed_template.reads:
            if (option := option_named(name)) is not None:
                raise UsageError(
                    f"{name} is a sampling option, not one of the chat template's: put it into the second"
                    f" argument, as in chat(messages, SamplingParams({option}=...))"
                )
        return self._text.keywords(tools, documents, template_kwargs, more)
