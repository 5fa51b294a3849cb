"""Text and token ids: tokenizers, streaming decoder, chat templates, stop strings.

Where to begin reading:

tokenizer.py     text to ids and back, whatever the kind of vocabulary
vocab.py         the vocabulary as the file has it; special.py: its special tokens
pretokenize.py   a text is cut into pieces, which bpe.py, spm.py, unigram.py, plamo.py or rwkv.py turn into tokens
stream.py        ids to text, one at a time; stops.py: stop strings
template.py      chat templates, rendered in a sandbox (sandbox.py) on a budget (budget.py)
provenance.py    which parts of a rendered chat are a user's text, in which no control token is recognized
"""

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
