"""Text and token ids: tokenizers, streaming decoder, chat templates, stop strings."""

from __future__ import annotations

from llmgen.tokenizer.stream import StreamDecoder
from llmgen.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
