"""Test doubles for the loop: a model whose logits are a hash of the tokens, a tokenizer of bytes."""

from __future__ import annotations

import codecs
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmgen.engine import SamplingParams, Session
from llmgen.errors import Interrupted

N_VOCAB = 260
EOG = 256  # 257, 258, 259: control tokens without text
NEVER = 3600.0
"""Seconds of a call that ends only when it is stopped."""


@dataclass(frozen=True)
class FakeConfig:
    vocab_size: int = N_VOCAB
    context_length: int = 4096


class FakeSequence:
    def __init__(self, tokens=(), min_truncate=0):
        self.tokens = list(tokens)
        self.min_truncate = min_truncate
        self.closed = False

    @property
    def length(self):
        return len(self.tokens)

    def cut_point(self, n):
        n = min(n, self.length)
        return n if n == self.length or n >= self.min_truncate else 0

    def can_take_back(self, n):
        return self.length >= self.min_truncate

    def truncate(self, n):
        assert n == 0 or self.min_truncate <= n <= len(self.tokens)
        del self.tokens[n:]

    needs_checkpoint = False

    def checkpoint(self):
        raise AssertionError("nothing here needs a checkpoint")

    def clear(self):
        self.tokens.clear()

    def fork(self):
        return FakeSequence(self.tokens, self.min_truncate)

    def become(self, other, common):
        assert not self.closed
        assert not other.closed
        assert self.tokens[:common] == other.tokens[:common]
        self.copied = len(other.tokens) - common
        self.tokens = list(other.tokens)

    def close(self):
        self.closed = True


class FakeModel:
    """Counts what is computed.  ``script`` maps the token history to the token that follows it."""

    def __init__(self, n_ctx=512, script: Callable[[list[int]], int] | None = None):
        self.n_ctx = n_ctx
        self.config = FakeConfig()
        self.script = script
        self.computed = 0
        self.calls: list[tuple[str, int]] = []
        self.sequences: list[FakeSequence] = []
        self.lock = threading.RLock()
        _models.add(self)
        self.min_truncate = 0
        self.slow_s = 0.0
        self.before_call: Callable[[], None] | None = None
        self.at_work = threading.Event()  # set inside every call
        self._cancelled = threading.Event()
        self._view = np.zeros((8, N_VOCAB), dtype=np.float32)

    def new_sequence(self):
        self.sequences.append(FakeSequence(min_truncate=self.min_truncate))
        return self.sequences[-1]

    def prefill(self, seq, ids, logits="last"):
        self._work("prefill", len(ids))
        assert seq.length + len(ids) <= self.n_ctx
        rows = []
        for i in ids:
            seq.tokens.append(int(i))
            rows.append(self.logits(seq.tokens) if logits != "none" else None)
        return {"last": rows[-1], "all": np.array(rows), "none": None}[logits]

    max_prompt_tokens = 512
    max_outputs = 512

    def forward(self, parts, role, read=np.copy):
        assert sum(len(part.ids) for part in parts) <= self.max_prompt_tokens
        if role != "prompt":
            rows = self.generate([(part.seq, part.ids) for part in parts], copy=False)
            wanted = [i >= len(part.ids) - part.n_logits for part in parts for i in range(len(part.ids))]
            return read(rows if all(wanted) else rows[wanted])
        if len(parts) > 1:
            assert all(part.n_logits == 1 for part in parts)
            return read(self.prefill_together([(part.seq, part.ids) for part in parts]))
        [part] = parts
        assert part.n_logits in (0, 1, len(part.ids))
        wanted = {0: "none", 1: "last"}.get(part.n_logits, "all")
        rows = self.prefill(part.seq, part.ids, wanted)
        return None if rows is None else read(np.atleast_2d(rows))

    def prefill_together(self, prompts):
        self._work("together", sum(len(ids) for _, ids in prompts))
        assert 1 <= len(prompts) <= 8
        for seq, ids in prompts:
            assert len(ids)
            assert seq.length + len(ids) <= self.n_ctx
            seq.tokens += map(int, ids)
        return np.array([self.logits(seq.tokens) for seq, _ in prompts])

    def decode(self, seqs, ids):
        return self.generate([(seq, [token]) for seq, token in zip(seqs, ids, strict=True)])

    def generate(self, parts, *, copy=True):
        n = sum(len(ids) for _, ids in parts)
        self._work("decode", n)
        assert 1 <= n <= 8
        assert len({id(seq) for seq, _ in parts}) == len(parts)
        assert all(seq.length + len(ids) <= self.n_ctx and not seq.closed for seq, ids in parts)
        row = 0
        for seq, ids in parts:
            for token in ids:
                seq.tokens.append(int(token))
                self._view[row] = self.logits(seq.tokens)
                row += 1
        rows = self._view[:n]
        return rows.copy() if copy else rows

    def check_file(self):
        pass

    def cancel(self):
        self._cancelled.set()

    def close(self):
        pass

    def logits(self, tokens):
        """float32 [N_VOCAB] that depend on all tokens."""
        if self.script:
            row = np.zeros(N_VOCAB, dtype=np.float32)
            row[self.script(list(tokens))] = 50
            return row
        mixed = 0
        for token in tokens:
            mixed = (mixed * 6364136223846793005 + token + 1442695040888963407) % 2**64
        return (np.random.Generator(np.random.PCG64(mixed)).standard_normal(N_VOCAB) * 3).astype(np.float32)

    def _work(self, kind, n):
        self._cancelled.clear()
        if self.before_call:
            self.before_call()
        self.at_work.set()
        if self.slow_s:
            end = time.monotonic() + self.slow_s
            while time.monotonic() < end:
                if self._cancelled.wait(0.005):
                    raise Interrupted("stopped")
        self.computed += n
        self.calls.append((kind, n))


_models = weakref.WeakSet()


def _renew_locks():
    """In a forked child, as a model does."""
    for model in list(_models):
        model.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


class FakeDecoder:
    def __init__(self):
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token):
        return self._decoder.decode(bytes([token])) if token < 256 else ""

    def finish(self):
        return self._decoder.decode(b"", final=True)


class FakeTokenizer:
    """Token = byte; 256 ends the text."""

    n_vocab = N_VOCAB
    eog_ids = frozenset({EOG})
    bos_id = None
    add_bos = False

    def encode(self, text, add_special=True, parse_special=False):
        return list(text.encode())

    def encode_prompt(self, text, parse_special=False):
        return list(text.encode())

    def encode_fragment(self, text):
        return list(text.encode())

    def cut_control(self, text):
        """The spelling of a control token is ``<257>``."""
        return [
            int(part[1:-1]) if re.fullmatch("<25[789]>", part) else part
            for part in re.split("(<25[789]>)", text)
            if part
        ]

    def decode(self, ids):
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def token_bytes(self, token):
        return bytes([token]) if token < 256 else b""

    def stream_decoder(self, skip_special=False, continuation=False):
        assert skip_special
        assert continuation
        return FakeDecoder()


def says(text: str | bytes, prompt_length: int, then: int = EOG):
    """A script: after a prompt of that many tokens, these bytes, then a token again and again."""
    data = text.encode() if isinstance(text, str) else text

    def script(tokens):
        place = len(tokens) - prompt_length
        return data[place] if place < len(data) else then

    return script


GREEDY = SamplingParams(temp=0.0, max_tokens=20)


def session(model: FakeModel | None = None, **kw: Any) -> Session:
    """A session with a model that needs no file."""
    return Session(model or FakeModel(), FakeTokenizer(), **kw)
