"""A model that is ready to run: weights bound, programs recorded, kernels compiled, threads at hand."""

from __future__ import annotations

import operator
import os
import threading
import time
import weakref
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from llmgen.backends.cpu.decode_recorder import TokenRecorder
from llmgen.backends.cpu.kernels.layout import MAX_COLUMNS, SAMPLING_KERNELS, TILE_TOKENS
from llmgen.backends.cpu.memory import available_bytes
from llmgen.backends.cpu.prefill_recorder import PromptRecorder
from llmgen.backends.cpu.program import Control, Program, Workspace
from llmgen.backends.cpu.runtime.interrupt import WATCHER
from llmgen.backends.cpu.runtime.library import KernelLibrary, Progress
from llmgen.backends.cpu.runtime.team import KERNELS, ThreadTeam
from llmgen.backends.cpu.runtime.threads import default_threads
from llmgen.backends.cpu.sequence import CacheLayout, Sequence
from llmgen.errors import ContextFullError, Interrupted, LLMGenError, UsageError, shown
from llmgen.gguf import GGUFFile
from llmgen.model.archs import architecture, check_all_read
from llmgen.model.config import MAX_CONTEXT, ModelConfig, read_config
from llmgen.model.weights import Weights

CHUNK = 512
"""Prompt tokens of one run."""
_LOGITS_BYTES = 1 << 26  # logits of a prompt run are kept below this, by running fewer tokens
_MAX_THREADS = 256
_LEAST_CONTEXT = 2048  # tokens: less is not chosen unasked

Wanted = Literal["last", "all", "none"]


class Model:
    """Runs one model file.  All calls may come from any thread, one at a time.

    Ctrl-C ends a running call of the main thread with KeyboardInterrupt within 0.2 s (or
    with what the application's own handler raises; where it raises nothing, the call goes
    on), ``cancel`` from any thread with Interrupted.  A sequence never holds half a run.
    """

    def __init__(
        self,
        file: GGUFFile,
        config: ModelConfig,
        n_threads: int,
        kv_type: str,
        level: str | None,
        progress: Progress | None,
    ) -> None:
        self.config = config
        self.n_ctx = config.n_ctx
        self.n_threads = n_threads
        self.kv_type = kv_type
        self._file = file
        self._lock = threading.RLock()
        self._closed = self._closing = self._cancelled = False
        self.weights = Weights(file)
        self._chunk = min(CHUNK, -(-self.n_ctx // TILE_TOKENS) * TILE_TOKENS)
        self.layout = CacheLayout(config, self.n_ctx, self._chunk, kv_type)
        self.max_outputs = max(MAX_COLUMNS, min(self._chunk, _LOGITS_BYTES // (4 * config.vocab_size)))
        self._control = Control(self._chunk)
        build = architecture(file)
        token = TokenRecorder(config, self.layout, self._control.address)
        prompt = PromptRecorder(config, self.layout, self._control.address, self._chunk, self.max_outputs)
        for recorder in (token, prompt):
            build(recorder, self.weights, config)
        check_all_read(file, self.weights, config)
        prompt.fuse_residuals()
        self._library = KernelLibrary.for_level(level)
        self._token, self._prompt = Program(token, n_threads), Program(prompt, n_threads)
        needed = [*KERNELS, *SAMPLING_KERNELS, *self._token.plan.kernels, *self._prompt.plan.kernels]
        self._library.require(needed, progress)
        self._workspace = Workspace(self._token, self._prompt)
        self._team = ThreadTeam(n_threads, self._library)
        _models.add(self)

    @classmethod
    def load(
        cls,
        file: GGUFFile,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        kv_type: str = "f16",
        progress: Progress | None = None,
        level: str | None = None,
    ) -> Model:
        """Make a model ready to run.

        n_ctx: tokens of context, by default the model's own as far as half of the memory
        that is free can hold its cache; n_threads: by default $LLMGEN_THREADS, else the
        usable physical cores; kv_type: 'f16' or 'f32'; progress: called while kernels
        are compiled; level: a kernel level below this CPU's best.  The file must stay
        open until ``close``.  Raises UnsupportedModelError, UsageError, KernelError.
        """
        architecture(file)
        config = read_config(file)
        n_ctx = _default_context(config, kv_type) if n_ctx is None else _whole("the context (n_ctx)", n_ctx)
        n_threads = default_threads() if n_threads is None else _whole("threads (n_threads)", n_threads)
        _check_sizes(n_ctx, n_threads)
        return cls(file, replace(config, n_ctx=n_ctx), n_threads, kv_type, level, progress)

    # ---- facts ----------------------------------------------------------------------

    @property
    def kernel_level(self) -> str:
        """How dot products are computed: 'avx512vnni', 'avxvnni', 'avx2' or 'generic'."""
        return self._library.level

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one more token takes, windows not yet full."""
        return self.layout.bytes_per_token

    @cached_property
    def fingerprint(self) -> str:
        """What tells this model from others: see ``cache_file.fingerprint``."""
        from llmgen.backends.cpu.cache_file import fingerprint

        return fingerprint(self._file)

    # ---- running --------------------------------------------------------------------

    def new_sequence(self) -> Sequence:
        """An empty sequence with room for n_ctx tokens."""
        self._check_open()
        return Sequence(self.layout, self.n_ctx)

    def prefill(
        self, seq: Sequence, ids: Tokens[int] | np.ndarray, logits: Wanted = "last"
    ) -> np.ndarray | None:
        """Append prompt tokens to ``seq``.

        Returns the logits of the last token float32 [n_vocab], of all tokens float32
        [n, n_vocab], or None; a copy.  Long prompts run in chunks; a call that is ended
        early leaves the chunks that were complete: ``seq.length`` tells.  Raises
        ContextFullError, Interrupted.
        """
        tokens = self._checked(ids)
        if logits not in ("last", "all", "none"):
            raise UsageError(f"logits is {logits!r}, expected 'last', 'all' or 'none'")
        with self._running():
            self._check_room(seq, len(tokens))
            memory = seq.memory()
            out = np.empty((len(tokens), self.config.vocab_size), np.float32) if logits == "all" else None
            size = min(self._chunk, self.max_outputs) if logits == "all" else self._chunk
            for at in range(0, len(tokens), size):
                part = tokens[at : at + size]
                wanted = {"all": len(part), "none": 0, "last": int(at + size >= len(tokens))}[logits]
                self._run_prompts([(seq, memory, part, wanted)])
                if out is not None:
                    out[at : at + len(part)] = self._logits(self._prompt, wanted)
            return self._logits(self._prompt, 1)[0].copy() if logits == "last" else out

    def prefill_together(self, prompts: list[tuple[Sequence, Tokens[int]]]) -> np.ndarray:
        """Append 1 to 8 short prompts to as many sequences, in one pass; ``max_together`` tokens at most.

        Returns the logits of each one's last token, float32 [len(prompts), n_vocab], a copy:
        those that ``prefill`` gives.  Nothing is committed when the call is ended early.
        """
        parts = [(seq, self._checked(ids)) for seq, ids in prompts]
        total = sum(len(ids) for _, ids in parts)
        if not 1 <= len(parts) <= MAX_COLUMNS or total > self.max_together:
            raise UsageError(
                f"{len(parts)} prompts of {total} tokens in all, expected 1 to {MAX_COLUMNS} of up to "
                f"{self.max_together} tokens"
            )
        self._check_different([seq for seq, _ in parts])
        with self._running():
            for seq, ids in parts:
                self._check_room(seq, len(ids))
            self._run_prompts([(seq, seq.memory(), ids, 1) for seq, ids in parts])
            return self._logits(self._prompt, len(parts)).copy()

    def _run_prompts(self, parts: list[tuple[Sequence, np.ndarray, np.ndarray, int]]) -> None:
        """One run: sequences, their memories, their next tokens, for how many of these logits are wanted."""
        for seq, _, ids, _ in parts:
            seq.touch(seq.length + len(ids))
        self._control.prompts([(ids, seq.length, m.ctypes.data, wanted) for seq, m, ids, wanted in parts])
        self._fill_tables(self._prompt, max(seq.length + len(ids) for seq, _, ids, _ in parts))
        self._run(self._prompt, sum(len(ids) for _, _, ids, _ in parts))
        for seq, _, ids, _ in parts:
            seq.commit(len(ids))

    @property
    def max_together(self) -> int:
        """Tokens that ``prefill_together`` takes: one run of the prompt program."""
        return self._chunk

    def decode(self, seqs: list[Sequence], ids: Tokens[int], *, copy: bool = True) -> np.ndarray:
        """Append one generated token to each of 1 to 8 sequences, in one pass.

        Returns float32 [len(seqs), n_vocab]; without ``copy`` the next call, which may be
        another thread's, overwrites it.  Nothing is committed when the call is ended early.
        """
        tokens = self._checked(ids)
        if not 1 <= len(seqs) <= MAX_COLUMNS or len(seqs) != len(tokens):
            raise UsageError(
                f"{len(seqs)} sequences and {len(tokens)} tokens, expected 1 to {MAX_COLUMNS} of each"
            )
        self._check_different(seqs)
        with self._running():
            for seq in seqs:
                self._check_room(seq, 1)
                seq.touch(seq.length + 1)
            memories = [s.memory() for s in seqs]
            self._control.tokens(tokens, [s.length for s in seqs], [m.ctypes.data for m in memories])
            self._fill_tables(self._token, max(s.length for s in seqs) + 1)
            self._run(self._token, 1)
            for seq in seqs:
                seq.commit(1)
            rows = self._logits(self._token, len(seqs))
            return rows.copy() if copy else rows

    @contextmanager
    def _running(self) -> Iterator[None]:
        """One call at a time, which ``cancel`` and Ctrl-C can end."""
        with self._lock:
            self._check_open()
            self._file.check_whole()
            self._cancelled = False
            self._team.clear_stop()
            with WATCHER.watching(self._team):
                yield

    def cancel(self) -> None:
        """End the call that is running now with Interrupted; from any thread."""
        self._cancelled = True  # first: whoever sees the team stopped asks for it
        self._team.stop()

    def check_file(self) -> None:
        """Raises ModelFileError where the model's file was written to since it was opened."""
        self._file.check_unchanged()

    def close(self) -> None:
        """End a running call with Interrupted, send the threads home, give the memory back."""
        self._closing = True
        self._team.stop()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._team.close()
                self._workspace.close()

    def _checked(self, ids: Tokens[int] | np.ndarray) -> np.ndarray:
        tokens = np.asarray(ids, dtype=np.int64)
        if tokens.ndim != 1 or not len(tokens):
            raise UsageError("no tokens were given, expected at least one")
        bad = tokens[(tokens < 0) | (tokens >= self.config.vocab_size)]
        if len(bad):
            raise UsageError(
                f"token id {bad[0]} is not in the vocabulary, expected 0 to {self.config.vocab_size - 1}"
            )
        return tokens

    def _check_open(self) -> None:
        if self._closing:
            raise LLMGenError("this model is closed; load it again")

    def _check_different(self, seqs: list[Sequence]) -> None:
        if len({id(s) for s in seqs}) != len(seqs):
            raise UsageError("the same sequence was given twice, expected different ones")

    def _check_room(self, seq: Sequence, n: int) -> None:
        if seq.layout is not self.layout:
            raise UsageError(
                "this sequence belongs to another model; make one with new_sequence of this model"
            )
        if n > seq.room():
            raise ContextFullError(
                f"{n} more tokens do not fit: the context holds {self.n_ctx} and {seq.length} are taken; "
                "use a larger context (-c)"
            )

    def _fill_tables(self, program: Program, length: int) -> None:
        for table in program.recorder.tables:
            table.fill(length)

    def _run(self, program: Program, n_tokens: int) -> None:
        if self._closing:
            raise Interrupted("the computation was stopped: the model is being closed")
        n_threads = program.pace.choose(n_tokens)
        table, nbytes, steps = program.table(n_threads, self._workspace, self._library)
        while True:
            start, cpu = time.perf_counter(), time.thread_time()
            if self._team.run(table, nbytes, steps, n_threads):
                break
            # stopped by cancel, or by a signal, whose handler has been called by now and raised nothing
            self._team.clear_stop()
            if self._cancelled or self._closing:
                raise Interrupted("the computation was stopped")
        wall, used = time.perf_counter() - start, time.thread_time() - cpu
        program.pace.report(n_threads, n_tokens, wall, wall - used, self._team.long_waits())

    def _logits(self, program: Program, n: int) -> np.ndarray:
        """The logits of the last run, float32 [n, n_vocab], in place."""
        value = program.recorder.logits_value
        assert value is not None
        first = value.offset
        rows = self._workspace.shared.data[first : first + value.stride * n].view(np.float32)
        return rows.reshape(n, value.stride // 4)[:, : self.config.vocab_size]


def _whole(name: str, value: object) -> int:
    """A whole number of any type; UsageError for anything else."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise UsageError(f"{name} must be a whole number, not {value!r}")


def dry_run(
    file: GGUFFile, n_ctx: int | None = None, kv_type: str = "f16", n_threads: int | None = None
) -> tuple[ModelConfig, CacheLayout]:
    """What ``Model.load`` would make of a file, without kernels, threads or memory.

    The forward pass is recorded once, which checks every tensor's name, shape and type.
    Raises as ``load`` does.
    """
    build = architecture(file)
    config = read_config(file)
    n_ctx = _default_context(config, kv_type) if n_ctx is None else n_ctx
    _check_sizes(n_ctx, default_threads() if n_threads is None else n_threads)
    config = replace(config, n_ctx=n_ctx)
    layout = CacheLayout(config, config.n_ctx, min(CHUNK, config.n_ctx), kv_type)
    weights = Weights(file)
    build(TokenRecorder(config, layout, 0), weights, config)
    check_all_read(file, weights, config)
    return config, layout


def _check_sizes(n_ctx: int, n_threads: int) -> None:
    """Raises UsageError for a context or a number of threads that no model takes."""
    if not 1 <= n_ctx <= MAX_CONTEXT:
        raise UsageError(f"the context is {shown(n_ctx)} tokens, expected 1 to {MAX_CONTEXT} (-c)")
    if not 1 <= n_threads <= _MAX_THREADS:
        raise UsageError(f"{shown(n_threads)} threads were asked for, expected 1 to {_MAX_THREADS} (-t)")


def _default_context(config: ModelConfig, kv_type: str) -> int:
    """The model's own context, halved until its cache takes at most half of the free memory."""
    n_ctx = config.context_length
    free = available_bytes()
    while free is not None and n_ctx > _LEAST_CONTEXT:
        layout = CacheLayout(replace(config, n_ctx=n_ctx), n_ctx, min(CHUNK, n_ctx), kv_type)
        if layout.bytes_for(n_ctx) <= free // 2:
            break
        n_ctx = max(n_ctx // 2, _LEAST_CONTEXT)
    return n_ctx


_models: weakref.WeakSet[Model] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a forked child: a thread that held a lock did not come along."""
    for model in list(_models):
        model._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
