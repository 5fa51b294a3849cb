"""Text to token ids and back, for every kind of vocabulary in generative GGUF files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from llmgen.errors import TokenizerError, UsageError, kind_of, shown
from llmgen.gguf import GGUFFile
from llmgen.tokenizer.bpe import BytePairModel
from llmgen.tokenizer.kinds import NO_VOCABULARY, Defaults, defaults_of, stated_size
from llmgen.tokenizer.partition import Partition, Span
from llmgen.tokenizer.pieces import piece_bytes
from llmgen.tokenizer.plamo import CheapestPathModel
from llmgen.tokenizer.pretokenizers import DEFAULT, PRE_TOKENIZERS, PreTokenizer
from llmgen.tokenizer.rwkv import LongestMatchModel
from llmgen.tokenizer.special import find_end_tokens, is_delimiter, shown_ids, special_spellings
from llmgen.tokenizer.spm import ScoredMergeModel
from llmgen.tokenizer.stream import StreamDecoder
from llmgen.tokenizer.unicode import replace_surrogates
from llmgen.tokenizer.unigram import UnigramModel
from llmgen.tokenizer.vocab import PREFIX, TokenType, Vocabulary, read_merges, read_text, read_vocabulary


class Model(Protocol):
    """Turns plain text into ids, after special tokens have been cut out."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""


_NO_TEXT = frozenset(map(int, (TokenType.CONTROL, TokenType.UNKNOWN)))
"""Types of tokens without text, as plain ints, because every generated token is looked up."""


class Tokenizer:
    """Turns text into token ids and ids into text.  Make one with :meth:`from_gguf`.

    ``warnings`` has sentences for the user about settings of the file that are unknown or
    impossible.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Read the tokenizer from the metadata of a model file.  Raises TokenizerError."""
        kind = read_text(metadata, "model")
        if kind is None:
            raise TokenizerError(
                f"the file has no {PREFIX}model, expected the kind of its tokenizer; "
                "it holds no vocabulary, use it with token ids only or get a complete file"
            )
        self.kind: str = kind
        self.pre: str | None = read_text(metadata, "pre")
        self.warnings: list[str] = []
        self._vocab: Vocabulary | None = None
        self.bos_id: int | None = None
        self.eos_id: int | None = None
        self.unk_id: int | None = None
        self.add_bos = self.add_eos = False
        self.adds_space_prefix = self.puts_space_in_front = False
        self.eog_ids: frozenset[int] = frozenset()
        self.n_vocab = stated_size(metadata)
        self._pieces: dict[int, bytes] = {}
        self._shown_pieces: dict[int, bytes] = {}
        self._guarded: tuple[str, ...] = ()
        self._delimiters: tuple[str, ...] = ()
        if kind not in NO_VOCABULARY:
            self._load(metadata, defaults_of(kind))

    @classmethod
    def from_gguf(cls, file: str | os.PathLike[str] | GGUFFile) -> Tokenizer:
        """The tokenizer of a model file, or of a file with only a vocabulary.

        Reads no tensor.  An open file stays open.  The tokenizer's ``warnings`` are issued as
        Python warnings too.  Raises ModelFileError for a file that is not GGUF, TokenizerError
        for an inconsistent vocabulary.
        """
        if isinstance(file, GGUFFile):
            tokenizer = cls(file.metadata)
        else:
            with GGUFFile.open(file) as opened:
                tokenizer = cls(opened.metadata)
        for sentence in tokenizer.warnings:
            warnings.warn(sentence, stacklevel=2)
        return tokenizer

    def _load(self, metadata: Mapping[str, Any], kind: Defaults) -> None:
        vocab = read_vocabulary(metadata, self.kind)
        vocab.warnings = self.warnings
        self._vocab = vocab
        self.n_vocab = len(vocab)
        pre = self._find_pre()
        self._byte_level = self.kind == "gpt2" and pre.byte_level
        self.bos_id = vocab.special_id("bos", kind.bos_id)
        self.eos_id = vocab.special_id("eos", kind.eos_id)
        self.unk_id = vocab.special_id("unknown", kind.unk_id)
        self.add_bos = self._adds("bos", self.bos_id, kind.add_bos or pre.add_bos, kind, pre.always_bos)
        self.add_eos = self._adds("eos", self.eos_id, kind.add_eos, kind)
        self.adds_space_prefix = vocab.flag("add_space_prefix", kind.space_prefix) and kind.space_prefix
        self._model = self._make_model(vocab, pre)
        self.puts_space_in_front = self.adds_space_prefix or (
            isinstance(self._model, UnigramModel) and self._model.puts_space_in_front
        )
        self.eog_ids = find_end_tokens(vocab, self.eos_id)
        self._shown_ids = shown_ids(vocab)
        specials = special_spellings(vocab)
        self._partition = Partition(specials)
        self._guarded = tuple(special.text for special in specials if special.guarded)
        self._delimiters = tuple(s.text for s in specials if not s.guarded and is_delimiter(s.text))

    def _find_pre(self) -> PreTokenizer:
        """The row of the table; warns about an unknown name."""
        if self.kind not in ("gpt2", "gemma4"):
            return PreTokenizer(())
        name = "gemma4" if self.kind == "gemma4" else self.pre
        if name is None:
            self.warnings.append(
                f"the file names no {PREFIX}pre, so text is cut by the default rules: "
                "answers may be worse than the model's best; get a newer conversion of the model"
            )
        elif name not in PRE_TOKENIZERS:
            self.warnings.append(
                f"{PREFIX}pre names {shown(name)}, which llmgen does not know, so text is cut by the default "
                "rules: answers may be worse than the model's best; a newer llmgen may know it"
            )
        return PRE_TOKENIZERS.get(name or "default", DEFAULT)

    def _adds(self, name: str, id: int | None, default: bool, kind: Defaults, always: bool = False) -> bool:
        """Whether a text gets a BOS or EOS."""
        assert self._vocab is not None
        asked = (self._vocab.flag(f"add_{name}_token", default) or always) and kind.surrounds
        if asked and id is None:
            self.warnings.append(
                f"{PREFIX}add_{name}_token is true, but the file names no {name.upper()} token: none is added"
            )
        return asked and id is not None

    def _make_model(self, vocab: Vocabulary, pre: PreTokenizer) -> Model:
        makers: dict[str, Callable[[], Model]] = {
            "gpt2": lambda: BytePairModel(vocab, self._merges(), pre),
            "gemma4": lambda: BytePairModel(vocab, self._merges(), pre),
            "llama": lambda: ScoredMergeModel(vocab, self.unk_id),
            "rwkv": lambda: LongestMatchModel(vocab, self.unk_id),
            "t5": lambda: UnigramModel(vocab, self.unk_id),
            "plamo2": lambda: CheapestPathModel(vocab),
        }
        return makers[self.kind]()

    def _merges(self) -> list[bytes]:
        assert self._vocab is not None
        merges = read_merges(self._vocab.metadata)
        if merges is None and self.pre != "kimi-k2":
            raise TokenizerError(
                f"the file has no {PREFIX}merges, expected those of its {shown(self.kind)} tokenizer; "
                "convert the model again, or get it from elsewhere"
            )
        return merges or []

    @property
    def has_text(self) -> bool:
        """Whether there is a vocabulary; without one only token ids can be used."""
        return self._vocab is not None

    @property
    def guarded_spellings(self) -> tuple[str, ...]:
        """Spellings that must not become tokens inside the text of a message, whatever the template."""
        return self._guarded

    def guarded_for(self, template: str) -> tuple[str, ...]:
        """The same and the user-defined tokens that occur in a template's source.

        Such a token may begin a turn, which a message must not be able to do.
        """
        return (*self._guarded, *(text for text in self._delimiters if text in template))

    def _need(self) -> Vocabulary:
        if self._vocab is None:
            raise TokenizerError(
                f"the model has no vocabulary ({PREFIX}model is {shown(self.kind)}), so it knows no text; "
                "give it token ids"
            )
        return self._vocab

    # Text to ids

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The token ids of a text, the same as llama.cpp's ``llama_tokenize``.

        ``add_special``: with the BOS and EOS that the file asks for.  ``parse_special``:
        the spelling of a control token becomes that token.  If the text itself spells out a
        BOS, there are two; see :meth:`encode_prompt`.  Lone surrogates count as U+FFFD.
        """
        self._need()
        ids = self._encode(text, parse_special, ())
        return self._surround(ids) if add_special else ids

    def encode_prompt(self, text: str, parse_special: bool = False) -> list[int]:
        """The ids to start a generation with: as :meth:`encode`, but never two BOS or EOS tokens."""
        self._need()
        return self._surround(self._encode(text, parse_special, ()), once=True)

    def encode_parts(
        self, parts: Sequence[tuple[str, bool]], add_special: bool = True, guarded: Iterable[str] = ()
    ) -> list[int]:
        """The ids of a conversation given in parts, each with whether it is data.

        Control tokens are recognised only outside data, and so are the spellings ``guarded``
        (see :meth:`guarded_for`) and the delimiters that occur in the parts without data.
        Apart from that the parts are one text, and a token may span their boundaries.  BOS
        is added if the file asks for it and the text does not begin with it; EOS never is,
        since the conversation continues.
        """
        self._need()
        text, data = _join(parts)
        written = "\0".join(part for part, is_data in parts if not is_data)
        ids = self._encode(text, True, data, frozenset((*guarded, *self.guarded_for(written))))
        return self._surround(ids, once=True, end=False) if add_special else ids

    def encode_fragment(self, text: str) -> list[int]:
        """The ids of a text in the middle of another one.

        Nothing is added, not even the space that some vocabularies put in front of a text,
        and the spelling of a control token becomes that token.
        """
        self._need()
        return self._encode(text, True, (), begins=False)

    def cut_control(self, text: str) -> list[str | int]:
        """The text cut at the spellings of control tokens, which become ids; nothing else changes."""
        self._need()
        parts = self._partition.cut(replace_surrogates(text), True)
        return [
            self.token_bytes(part).decode("utf-8", "replace")
            if isinstance(part, int) and not self.is_control(part)
            else part
            for part in parts
        ]

    def _encode(
        self,
        text: str,
        control: bool,
        data: Sequence[Span],
        guarded: Collection[str] = (),
        *,
        begins: bool = True,
    ) -> list[int]:
        """``begins``: whether this is the beginning of a text, in front of which a space may be added."""
        if not isinstance(text, str):
            raise UsageError(f"the text is {kind_of(text)}, expected a str; decode bytes first")
        text = replace_surrogates(text)
        out: list[int] = []
        # a space is added after a special token too
        needs_space = self.adds_space_prefix and begins
        for part in self._partition.cut(text, control, data, guarded):
            if isinstance(part, int):
                out.append(part)
                needs_space = self.adds_space_prefix
            else:
                if not begins and not out and isinstance(self._model, UnigramModel):
                    out += self._model.encode(part, begins=False)
                else:
                    out += self._model.encode(" " + part if needs_space else part)
                needs_space = False
        return out

    def _surround(self, ids: list[int], once: bool = False, end: bool = True) -> list[int]:
        """The ids with the BOS and EOS that the file asks for; ``once``: unless they are there already."""
        if self.add_bos and self.bos_id is not None and not (once and ids[:1] == [self.bos_id]):
            ids = [self.bos_id, *ids]
        if end and self.add_eos and self.eos_id is not None and not (once and ids[-1:] == [self.eos_id]):
            ids = [*ids, self.eos_id]
        return ids

    # Ids to text

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of a sequence of ids, the inverse of :meth:`encode` as far as possible.

        The BOS, EOS and space that ``encode`` adds around a text are removed; other control
        tokens print as their spelling.  ``skip_special`` leaves these out, except for thinking
        tags such as ``<think>``.  Bytes that are not UTF-8 become U+FFFD.
        """
        if not isinstance(ids, Iterable) or isinstance(ids, (bytes, bytearray)):
            raise UsageError(f"token ids must be a list of whole numbers, not {kind_of(ids)}")
        decoder = self.stream_decoder(skip_special)
        return "".join([*(decoder.push(id) for id in ids), decoder.finish()])

    def stream_decoder(self, skip_special: bool = False, continuation: bool = False) -> StreamDecoder:
        """A decoder that takes ids one at a time; its texts, joined, are what :meth:`decode` gives.

        ``continuation``: the ids continue a prompt instead of beginning a text, so a leading
        space belongs to the text, and BOS and EOS are tokens like any other.
        """
        self._need()
        return StreamDecoder(self, skip_special, continuation)

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token prints as; they need not be whole characters."""
        piece = self._pieces.get(id)
        if piece is None:
            piece = self._pieces[id] = piece_bytes(self._check(id), id, self._byte_level)
        return piece

    def shown_bytes(self, id: int) -> bytes:
        """The same in generated text, which leaves out control tokens, but for marks of thinking and tool calls."""
        piece = self._shown_pieces.get(id)
        if piece is None:
            is_hidden = self.is_control(id) and id not in self._shown_ids
            piece = self._shown_pieces[id] = b"" if is_hidden else self.token_bytes(id)
        return piece

    def token_text(self, id: int) -> str:
        """The spelling of a token in the vocabulary, as ``Ġthe`` or ``▁the``."""
        return self._check(id).raw[id].decode("utf-8", "replace")

    def is_control(self, id: int) -> bool:
        """Whether the token has no text: a control token, or the one for unknown text."""
        return int(self._check(id).types[id]) in _NO_TEXT

    def _check(self, id: int) -> Vocabulary:
        vocab = self._need()
        if not 0 <= id < len(vocab):
            raise TokenizerError(f"token id {id} is not in the vocabulary, expected 0 to {len(vocab) - 1}")
        return vocab


def _join(parts: Sequence[tuple[str, bool]]) -> tuple[str, list[Span]]:
    """One text, and where in it the data is."""
    clean = [(replace_surrogates(text), is_data) for text, is_data in parts]
    spans: list[Span] = []
    position = 0
    for text, is_data in clean:
        if is_data:
            spans.append((position, position + len(text)))
        position += len(text)
    return "".join(text for text, _ in clean), spans
