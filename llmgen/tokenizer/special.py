"""Which tokens begin, end and control a text.

Files name some special tokens by id; others are known only by their spelling.  The
spellings and the corrections are those of llama.cpp (src/llama-vocab.cpp), so that a
generation ends where llama.cpp ends it.
"""

from __future__ import annotations

import re

from llmgen.tokenizer.partition import Special
from llmgen.tokenizer.unicode import is_utf8
from llmgen.tokenizer.vocab import TokenType, Vocabulary

END_SPELLINGS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "[e~[",
)
"""Spellings that end a generation wherever they occur."""

THINKING_TAGS = (
    ("<think>", "</think>"),  # DeepSeek, Qwen, GLM and most others
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("<mm:think>", "</mm:think>"),  # MiniMax M3
    ("<think:opensource>", "</think:opensource>"),  # Hunyuan 3
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),  # Kimi VL
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel>thought\n", "<channel|>"),  # Gemma 4
    ("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),  # Apriel
    # The head of a message with thoughts; its end, and the next one's head:
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),  # gpt-oss
    ("<|think|>", "<|end|><|begin|>assistant<|content|>"),  # Solar
    ("to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),  # Muse Glimmer
)
"""The tags around a model's thinking.

Some files call these control tokens, others ordinary ones.  They are part of an answer's text
either way, since without them the thinking could not be told from the rest.
"""

BEGUN_BY_TEMPLATES = tuple(closing for _, closing in THINKING_TAGS[:6])
"""The closing tags of those whose opening tag a template may write, so that the model does not."""

ANSWER_HEADS = ("<|channel|>final<|message|>", "<|content|>", "to=user<|message|>")
"""What an answer without thoughts begins with (gpt-oss, Solar, Muse Glimmer)."""

ANSWER_TAGS = (("<answer>", "</answer>"), ("<response>", "</response>"))
"""Tags that some models put around their answers: Hunyuan A13B, Granite 3.2 and 3.3 when they think.

Their chat templates name them.  In the answers of other models they are text.
"""

_PARTS_OF_TAGS = ("<|channel>", "<channel|>", "<|begin|>", "<|content|>", "<|eom|>")
"""Tokens of tags above that are several tokens; see ``_ALWAYS_SHOWN`` for gpt-oss."""

_TOOL_CALL = re.compile(
    "[<\\[].*(tool[_\u2581](calls?|sep)|tools_(prefix|suffix)|function_call|python_tag|_ACTION|TOOL_CALLS"
    "|ARGS|CALL_ID|arg_(key|value)).*[>\\]]",
    re.DOTALL,
)
"""Spellings of the marks around the parts of a tool call, of all families."""

# Fill-in-the-middle tokens: the keys (an older one last), whether a model that writes one
# is done, and the spellings.
_INFILL = (
    (
        ("fim_pre", "prefix"),
        False,
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim\u2581begin\uff5c> <PRE> \u2581<PRE> "
        "<|code_prefix|> <|prefix|>",
    ),
    (
        ("fim_suf", "suffix"),
        False,
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <\uff5cfim\u2581hole\uff5c> <SUF> \u2581<SUF> "
        "<|code_suffix|> <|suffix|>",
    ),
    (
        ("fim_mid", "middle"),
        False,
        "<|fim_middle|> <fim-middle> <fim_middle> <\uff5cfim\u2581end\uff5c> <MID> \u2581<MID> "
        "<|code_middle|> <|middle|>",
    ),
    (("fim_pad",), True, "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]"),
    (("fim_rep",), True, "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"),
    (("fim_sep",), True, "<|file_sep|>"),
)

_BRACKETS = frozenset("<>[]{}|\uff5c")

# gpt-oss: parts of a message's head, which a program must see.
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


def find_end_tokens(vocab: Vocabulary, eos_id: int | None) -> frozenset[int]:
    """Every token that ends a generation; corrects ``vocab.types`` on the way."""
    ends = {id for id in map(vocab.find, END_SPELLINGS) if id is not None}
    vocab.types[list(ends)] = TokenType.CONTROL.value
    for keys, is_end, spellings in _INFILL:
        id = _infill_id(vocab, keys, spellings)
        if is_end and id is not None:
            ends.add(id)
    _show(vocab, *_ALWAYS_SHOWN)
    ends.update(id for id in (eos_id, vocab.special_id("eot"), vocab.special_id("eom")) if id is not None)
    return frozenset(_without_exceptions(vocab, ends))


def _infill_id(vocab: Vocabulary, keys: tuple[str, ...], spellings: str) -> int | None:
    """The id by key, else by the first spelling in the vocabulary, which becomes a control token."""
    # The older key wins, as in llama.cpp.
    for key in reversed(keys):
        id = vocab.special_id(key)
        if id is not None:
            return id
    for spelling in spellings.split():
        id = vocab.find(spelling)
        if id is not None:
            vocab.types[id] = TokenType.CONTROL.value
            return id
    return None


def _show(vocab: Vocabulary, *spellings: str) -> None:
    for id in map(vocab.find, spellings):
        if id is not None:
            vocab.types[id] = TokenType.USER_DEFINED.value


def _without_exceptions(vocab: Vocabulary, ends: set[int]) -> set[int]:
    """Drop spellings that mean something else in families with other tokens that end a turn."""
    spelled = {vocab.raw[id].decode("utf-8", "replace"): id for id in ends}
    calls = spelled.keys() & {"<|call|>", "<|calls|>"}
    if calls and "<|end|>" in spelled and spelled.keys() & {"<|return|>", "<|flush|>"}:
        # gpt-oss, Solar: <|end|> ends a message, not the turn.
        ends.discard(spelled["<|end|>"])
        _show(vocab, "<|end|>")
    if "</s>" in spelled and spelled.keys() & {"<|tool_response>", "<|plamo:eos|>"}:
        # Gemma 4, PLaMo: </s> is text, as in HTML.
        ends.discard(spelled["</s>"])
        vocab.types[spelled["</s>"]] = TokenType.NORMAL.value
    return ends


def shown_ids(vocab: Vocabulary) -> frozenset[int]:
    """The control tokens that are part of an answer's text: the marks of thinking and of tool calls.

    Without them a program could not tell thoughts and calls from the answer.
    """
    marks = (*(mark for pair in THINKING_TAGS for mark in pair), *_PARTS_OF_TAGS)
    ids = {id for id in map(vocab.find, marks) if id is not None}
    for id in vocab.of_type(TokenType.CONTROL):
        if _TOOL_CALL.fullmatch(vocab.raw[id].decode("utf-8", "replace")):
            ids.add(id)
    return frozenset(ids)


def special_spellings(vocab: Vocabulary) -> list[Special]:
    """The tokens that are recognised in a text by their spelling."""
    strips = _strips(vocab)
    raw, ids, types = vocab.raw, vocab.ids, vocab.types.tolist()
    specials = []
    for id in vocab.of_type(TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN):
        if ids.get(raw[id]) == id and is_utf8(raw[id]):
            control = types[id] != int(TokenType.USER_DEFINED)
            guarded = control or _is_fenced(raw[id])
            specials.append(Special(raw[id].decode(), id, control, guarded, id in strips))
    return specials


def _is_fenced(raw: bytes) -> bool:
    """Whether the spelling is like ``<|im_start|>``: never text, whatever type the file gives it.

    Files that call their turn tokens user-defined would let a message begin another turn.
    """
    text = raw.decode("utf-8", "replace").replace("\uff5c", "|")
    return text.startswith("<|") and text.endswith("|>")


def is_delimiter(text: str) -> bool:
    """Whether a spelling looks like a delimiter, such as ``<start_of_turn>`` or ``[INST]``.

    Vocabularies call runs of white space and ordinary words user-defined too; in a template
    these are just text.
    """
    return len(text) > 2 and not text.isspace() and not _BRACKETS.isdisjoint(text)


def _strips(vocab: Vocabulary) -> frozenset[int]:
    """Tokens that remove the white space after them.

    Files do not say so; Phi-3 is the only generative family known to need it.
    """
    name = vocab.metadata.get("general.name")
    if not isinstance(name, str) or not any(part in name.lower() for part in ("phi-3", "phi3")):
        return frozenset()
    ids = set(vocab.of_type(TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN))
    if (end := vocab.find("</s>")) is not None:
        ids.add(end)
    return frozenset(ids.difference(map(vocab.find, ("<unk>", "<s>", "<|endoftext|>"))))
