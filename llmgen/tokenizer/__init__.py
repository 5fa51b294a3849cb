"""Text and token ids: tokenizers, streaming decoder, chat templates, stop strings."""

from __future__ import annotations

from llmgen.tokenizer.budget import rendering_within
from llmgen.tokenizer.builtin import FORMATS, ChatFormat, guess_format
from llmgen.tokenizer.choice import choose_template
from llmgen.tokenizer.provenance import Part
from llmgen.tokenizer.stops import StopMatcher
from llmgen.tokenizer.stream import StreamDecoder
from llmgen.tokenizer.template import (
    ChatTemplate,
    TemplateRefusal,
    chat_template_from_gguf,
    encode_chat,
    template_names,
)
from llmgen.tokenizer.tokenizer import Tokenizer

__all__ = [
    "FORMATS",
    "ChatFormat",
    "ChatTemplate",
    "Part",
    "StopMatcher",
    "StreamDecoder",
    "TemplateRefusal",
    "Tokenizer",
    "chat_template_from_gguf",
    "choose_template",
    "encode_chat",
    "guess_format",
    "rendering_within",
    "template_names",
]
