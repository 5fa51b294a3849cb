"""Chat formats for models whose file has no template.

Many conversions of a model have lost its chat template, but not the control tokens that
it was trained with; these tell which format it knows.  The layout of each format is that
of the model family's own published template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmgen.tokenizer.template import ChatTemplate
from llmgen.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChatFormat:
    """A way to write out a conversation."""

    name: str
    description: str
    source: str
    needs: tuple[str, ...] = ()
    """The control tokens that a model must have to know the format."""
    stops: tuple[str, ...] = ()
    """Texts that end an answer, if no token does."""

    def template(self, bos: str = "", eos: str = "") -> ChatTemplate:
        """The format as a template, for a model with these spellings of BOS and EOS."""
        return ChatTemplate(self.source, bos, eos, name=self.name, stops=self.stops)


_CHATML = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_LLAMA3 = """\
{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}<|eot_id|>{% endfor %}
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

_GEMMA = """\
{% for message in messages %}
{% if message.role == 'system' %}
{{ raise_exception('this format has no system message') }}
{% endif %}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content | trim }}<end_of_turn>
{% endfor %}
{% if add_generation_prompt %}
<start_of_turn>model
{% endif %}"""

_PHI3 = """\
{% for message in messages %}<|{{ message.role }}|>
{{ message.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""

_PLAIN = """\
{% for message in messages %}
{% if message.role == 'system' %}
{{ message.content | trim }}

{% else %}
{{ 'Assistant' if message.role == 'assistant' else 'User' }}: {{ message.content | trim }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}Assistant:{% endif %}"""

FORMATS = {
    format.name: format
    for format in (
        ChatFormat("chatml", "ChatML", _CHATML, ("<|im_start|>", "<|im_end|>")),
        ChatFormat(
            "llama3", "Llama 3's format", _LLAMA3, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
        ),
        ChatFormat("gemma", "Gemma's format", _GEMMA, ("<start_of_turn>", "<end_of_turn>")),
        ChatFormat("phi3", "Phi-3's format", _PHI3, ("<|user|>", "<|assistant|>", "<|end|>")),
        ChatFormat("plain", "a plain transcript of User: and Assistant:", _PLAIN, stops=("\nUser:",)),
    )
}
"""By name; the order is that in which :func:`guess_format` tries them."""

_TUNED = re.compile(r"(?i)(?<![a-z])(instruct|chat|it|sft|dpo|rlhf|assistant)(?![a-z])")


def guess_format(tokenizer: Tokenizer, names: Iterable[object] = ()) -> tuple[ChatFormat, str]:
    """The format for a model whose file has no template, and the reason in a few words.

    ``names``: the names in the file's metadata.  Vocabularies of base models have the turn
    tokens too, but untrained, so they count only if a name says that the model was tuned
    for chats; otherwise it understands a plain transcript best.
    """
    plain = FORMATS["plain"]
    known = next(f for f in FORMATS.values() if all(_is_token(tokenizer, text) for text in f.needs))
    if known is plain:
        return plain, "its vocabulary has no tokens that mark turns"
    if any(_TUNED.search(name) for name in names if isinstance(name, str)):
        return known, "its vocabulary has the tokens for that"
    return plain, f"its name does not say that it was tuned for chats; if it was, try --template {known.name}"


def _is_token(tokenizer: Tokenizer, text: str) -> bool:
    return len(tokenizer.encode(text, add_special=False, parse_special=True)) == 1
