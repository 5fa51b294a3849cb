"""A model that is ready to run: weights bound, programs recorded, kernels loaded, threads started."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llmgen.backends.cpu import cache_file
from llmgen.backends.cpu.binding import Binding
from llmgen.backends.cpu.kernels.sampling_arguments import SAMPLING_KERNELS
from llmgen.backends.cpu.profile import Profile
from llmgen.backends.cpu.program import Control, Program, Workspace
from llmgen.backends.cpu.readings import Readings
from llmgen.backends.cpu.recording import programs_of, record
from llmgen.backends.cpu.run_checks import check_parts, check_room, check_text
from llmgen.backends.cpu.runtime.interrupt import WATCHER
from llmgen.backends.cpu.runtime.library import KernelLibrary, Progress
from llmgen.backends.cpu.runtime.team import KERNELS, ThreadTeam
from llmgen.backends.cpu.sequence import Sequence
from llmgen.backends.cpu.sizes import check_local, checked_layout, chosen_sizes, longest_run, most_outputs
from llmgen.backends.cpu.weight_memory import Load, WeightMemory, check_memory, checked_load
from llmgen.errors import Interrupted, LLMGenError, UsageError
from llmgen.gguf import GGUFFile
from llmgen.model.archs import check_all_read, read_model
from llmgen.model.decode_config import DecodeConfig, DecodePlan
from llmgen.model.decoder import Decoder
from llmgen.model.fingerprint import fingerprint
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.rope_option import check_stretchable, has_own_factors, stretched
from llmgen.model.runs import Part, Role, token_ids
from llmgen.model.weights import Weights

Wanted = Literal["last", "all", "none"]


class Model:
    """Runs one model file.  All calls may come from any thread, one at a time.

    Ctrl-C ends a running call of the main thread with KeyboardInterrupt within 0.2 s (or
    with what the application's own handler raises; if it raises nothing, the call
    continues); ``cancel``, from any thread, ends it with Interrupted.  A sequence never
    holds half a run.
    """

    def __init__(
        self,
        file: GGUFFile,
        config: Decoder,
        n_ctx: int,
        n_threads: int,
        kinds: KVCacheConfig,
        level: str | None,
        progress: Progress | None,
        beside: Model | None = None,
        decode_plan: DecodePlan | None = None,
        load: Load = "auto",
    ) -> None:
        self.config = config
        self.n_ctx, self.n_threads = n_ctx, n_threads
        self._file = file
        self.weight_memory = WeightMemory(file, load)
        """Where the weights lie."""
        self._beside = beside
        self._lock = threading.RLock()
        self._closed = self._closing = self._cancelled = False
        self._profile: Profile | None = None
        self.decode_plan = decode_plan or DecodePlan()
        """How generated tokens attend."""
        self.on_run: Callable[[Role, int, float], None] | None = None
        """Called after each run with its role, the number of its tokens, and the seconds it took."""
        self.max_prompt_tokens = chunk = longest_run(config, n_ctx)
        """The most prompt tokens in one run of this model."""
        self.layout = checked_layout(config, n_ctx, kinds)
        self.max_outputs = most_outputs(config, chunk)
        """The most tokens of a run whose logits may be wanted."""
        self._binding = Binding(n_ctx)
        self._control = Control(chunk)
        self.weights = Weights(file)
        recorders = record(
            *(config, self.weights, self.layout, self._binding, self._control.address),
            chunk=chunk,
            max_outputs=self.max_outputs,
            drafts=beside is not None,
        )
        check_all_read(file, self.weights, config)
        check_stretchable(config, self._binding.stretchable)
        kernels = [step.kernel for step in recorders["generated"].steps]
        check_local(self.decode_plan, self.layout, kernels)
        matter = any(kernel.startswith("attention:blocks") for kernel in kernels)
        self.readings = Readings(self.decode_plan, n_threads, matter)
        """How generated tokens read the cache at each context length."""
        self._library = KernelLibrary.for_level(level)
        self._programs = programs_of(recorders, n_threads)
        needed = [name for program in self._programs.values() for name in program.plan.kernels]
        self._library.require([*KERNELS, *SAMPLING_KERNELS, *needed], progress)
        self._workspace = Workspace(*self._programs.values())
        self._team: ThreadTeam = beside._team if beside else ThreadTeam(n_threads, self._library)
        if load == "memory" or (beside and beside.weight_memory.all_moved):
            self.move_weights()
        _models.add(self)

    @classmethod
    def load(
        cls,
        file: GGUFFile,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        kv_type: str | KVCacheConfig = "f16",
        progress: Progress | None = None,
        level: str | None = None,
        beside: Model | None = None,
        rope_scaling: str | None = None,
        decode_plan: str | DecodeConfig = "auto",
        load: str = "auto",
    ) -> Model:
        """Make a model ready to run.

        n_ctx: tokens of context, by default the model's own, as far as its cache fits into
        half of the free memory; n_threads: by default $LLMGEN_THREADS, else the
        usable physical cores; kv_type: how keys and values are kept, as --kv-type says it;
        progress: called while kernels are compiled; level: a kernel level below this CPU's best;
        beside: a model whose threads this one shares, and whose lock: only one of them runs at a
        time, and it is to be closed last; rope_scaling: how positions are scaled, as --rope-scaling says it,
        by default as the file says; decode_plan: how generated tokens attend; load: where the weights
        lie, as --load says it (beside: as there).  The file must stay open until ``close``.
        Raises UnsupportedModelError, UsageError, KernelError, and LLMGenError where memory does not hold the weights
        (load="memory") or the states of a sequence.
        """
        kinds = KVCacheConfig.of(kv_type)
        config = stretched(read_model(file), rope_scaling, file)
        if beside is not None:
            n_threads, level, load = beside.n_threads, beside.kernel_level, beside.weight_memory.load
        where = checked_load(load)
        copied = file.large_pages.left if where == "memory" else 0
        n_ctx, n_threads = chosen_sizes(config, kinds, n_ctx, n_threads, copied)
        if copied:
            check_memory(file, n_ctx, checked_layout(config, n_ctx, kinds).bytes_for(n_ctx))
        decode = DecodeConfig.of(decode_plan).resolved
        return cls(file, config, n_ctx, n_threads, kinds, level, progress, beside, decode, where)

    # ---- facts ----------------------------------------------------------------------

    @property
    def lock(self) -> threading.RLock:
        """Held during a call, and while another thread copies or closes a sequence."""
        return self._beside.lock if self._beside else self._lock

    @property
    def kernel_level(self) -> str:
        """How dot products are computed: 'amx', 'avx512vnni', 'avxvnni', 'avx2', 'i8mm', 'neon' or 'generic'."""
        return self._library.level

    @property
    def kv_type(self) -> str:
        """How keys and values are kept, in the form of --kv-type."""
        return self.layout.kv_type

    @property
    def stretchable(self) -> bool:
        """Whether a scaling of positions (--rope-scaling) may be asked for: it changes the rotation of some layer."""
        return self._binding.stretchable and not has_own_factors(self.config, self._file)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the file's tensors, which stay in its memory map."""
        return sum(tensor.nbytes for tensor in self._file.tensors.values())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one more token takes while sliding windows are not full."""
        return self.layout.bytes_per_token

    @cached_property
    def fingerprint(self) -> str:
        """What distinguishes this model from others, see ``model.fingerprint``."""
        return fingerprint(self._file)

    # ---- files ----------------------------------------------------------------------

    def _cache_owner(self) -> cache_file.Owner:
        scaling, local = str(self.config.rope_scaling), self.decode_plan.local_window
        with self.lock:
            self._check_open()
            return cache_file.Owner(self.fingerprint, self._binding.rotations(), scaling, local)

    def save_sequence(self, path: Path, seq: Sequence, tokens: Tokens[int], n_prompt: int) -> None:
        """Write a sequence to a file; see ``cache_file.save``."""
        cache_file.save(path, self._cache_owner(), seq, tokens, n_prompt)

    def load_sequence(self, path: Path, seq: Sequence) -> cache_file.Stored:
        """Fill an empty sequence from a file; see ``cache_file.load``."""
        return cache_file.load(path, self._cache_owner(), self.config.vocab_size, seq)

    # ---- running --------------------------------------------------------------------

    def new_sequence(self) -> Sequence:
        """An empty sequence with room for n_ctx tokens."""
        self._check_open()
        return Sequence(self.layout)

    def forward(self, parts: Tokens[Part], role: Role, read: Callable[[np.ndarray], Any] = np.copy) -> Any:
        """Append tokens to sequences, in one run; returns what ``read`` returns.

        parts: one for each sequence, with no more tokens together than the role allows.
        read: is given the logits, float32 [sum of n_logits, n_vocab], which the next call
        overwrites; by default it copies them.  In the role "guess" of a model beside another one there may
        be ``runs.GUESSABLE`` in a row.

        A token's logits depend only on its sequence and its role, not on what else is in the run.
        A call that ends early commits nothing.  Raises UsageError, ContextFullError,
        Interrupted.
        """
        n_vocab = self.config.vocab_size
        checked = [Part(part.seq, token_ids(part.ids, n_vocab), part.n_logits) for part in parts]
        check_parts(checked, role, self.max_prompt_tokens, self.max_outputs)
        return self._alone(lambda: read(self._forward(checked, role)))

    def _forward(self, parts: list[Part], role: Role) -> np.ndarray:
        """One run over checked parts: the logits, float32 [sum of n_logits, n_vocab], in place."""
        program = self._programs[role]
        for part in parts:
            check_room(part.seq, len(part.ids), self.layout)
        memories = [part.seq.memory() for part in parts]  # held until the run has ended
        n_tokens = n_logits = longest = 0
        for part in parts:
            length = part.seq.length + len(part.ids)
            part.seq.begin_write(length)
            longest = max(longest, length)
            n_tokens += len(part.ids)
            n_logits += part.n_logits
        self._control.fill([(part.ids, part.seq.length, part.seq.address, part.n_logits) for part in parts])
        reading = self.readings.choose(longest, n_tokens)
        self._control.plan(reading.together, reading.streams, self.decode_plan.local_window)
        self._binding.fill_rope(longest)
        try:
            seconds, n_threads = self._run(program, n_tokens)
        except BaseException:
            for part in parts:
                part.seq.roll_back()
            raise
        for part in parts:
            part.seq.commit(len(part.ids))
        if role != "prompt":
            self.readings.report(reading, longest, n_tokens, n_threads, seconds)
        if self.on_run is not None:
            self.on_run(role, n_tokens, seconds)
        if role != "prompt":
            self.weight_memory.after(seconds)
            for part in parts:
                part.seq.after_step(seconds / len(parts))
        del memories
        return self._logits(program, n_logits)

    def prefill(
        self, seq: Sequence, ids: Tokens[int] | np.ndarray, logits: Wanted = "last"
    ) -> np.ndarray | None:
        """Append prompt tokens to ``seq``, however many, in as many runs as that takes.

        Returns the logits of the last token float32 [n_vocab], of all tokens float32
        [n, n_vocab], or None.  A call that ends early keeps the runs that were complete, as
        ``seq.length`` tells.  Raises ContextFullError, Interrupted.
        """
        tokens = token_ids(ids, self.config.vocab_size)
        if logits not in ("last", "all", "none"):
            raise UsageError(f"logits is {logits!r}, expected 'last', 'all' or 'none'")

        def run() -> np.ndarray | None:
            check_room(seq, len(tokens), self.layout)
            check_text(len(tokens), self.max_prompt_tokens, self.config)
            out = np.empty((len(tokens), self.config.vocab_size), np.float32) if logits == "all" else None
            size = (
                min(self.max_prompt_tokens, self.max_outputs) if logits == "all" else self.max_prompt_tokens
            )
            for at in range(0, len(tokens), size):
                part = tokens[at : at + size]
                wanted = {"all": len(part), "none": 0, "last": int(at + size >= len(tokens))}[logits]
                rows = self._forward([Part(seq, part, wanted)], "prompt")
                if out is not None:
                    out[at : at + len(part)] = rows
            return rows[0].copy() if logits == "last" else out

        result: np.ndarray | None = self._alone(run)
        return result

    def decode(self, seqs: list[Sequence], ids: Tokens[int]) -> np.ndarray:
        """Append one generated token to each of 1 to 8 sequences: float32 [len(seqs), n_vocab]."""
        if len(seqs) != len(ids):
            raise UsageError(
                f"{len(seqs)} sequences and {len(ids)} tokens, expected one token for each sequence"
            )
        rows: np.ndarray = self.forward(
            [Part(seq, [token]) for seq, token in zip(seqs, ids, strict=True)], "generated"
        )
        return rows

    def profile(self, parts: Tokens[Part], role: Role) -> dict[str, float]:
        """``forward`` on the calling thread alone, kernel by kernel; returns the processor seconds of each."""
        with self.lock:
            self._profile = Profile()
            try:
                self.forward(parts, role, lambda rows: None)
                return dict(self._profile.seconds)
            finally:
                self._profile = None

    def move_weights(self) -> None:
        """Move the weights into large pages now, as "memory" does at the start and "auto" between runs.

        With "auto" they are moved if there is room, without finding out whether it pays; with "mmap" nothing is.
        """
        with self.lock:
            self._check_open()
            self.weight_memory.move_all(self.n_threads)

    def _alone(self, work: Callable[[], Any]) -> Any:
        """Call ``work`` while nobody else can run the model; ``cancel`` and Ctrl-C end it."""
        with self.lock:
            self._check_open()
            self._file.check_whole()
            self._cancelled = False
            self._team.clear_stop()
            before = WATCHER.watch(self._team)
            try:
                return work()
            finally:
                WATCHER.watch(before)

    def cancel(self) -> None:
        """End the call that is running now with Interrupted; from any thread."""
        self._cancelled = True  # before the team stops, since _run then asks for it
        self._team.stop()

    def check_file(self) -> None:
        """Raises ModelFileError if the model's file has been written to since it was opened; not once it is closed."""
        with self.lock:  # the file is closed after the model
            if not self._closed:
                self._file.check_unchanged()

    def close(self) -> None:
        """End a running call with Interrupted, end the threads, free the memory."""
        self._closing = True
        self._team.stop()
        with self.lock:
            if not self._closed:
                self._closed = True
                if self._beside is None:
                    self._team.close()
                self._workspace.close()

    def _check_open(self) -> None:
        if self._closing:
            raise LLMGenError("this model is closed; load it again")

    def _run(self, program: Program, n_tokens: int) -> tuple[float, int]:
        """Run a program over the tokens of the control block.

        Returns the seconds that it took and the number of its threads, 0 if it was profiled.
        """
        if self._closing:
            raise Interrupted("the computation was stopped: the model is being closed")
        if self._profile is not None:
            started = time.perf_counter()
            self._profile.run(program.plan.steps, program.table(1, self._workspace, self._library)[0])
            return time.perf_counter() - started, 0
        n_threads = program.policy.choose(n_tokens)
        table, nbytes, steps = program.table(n_threads, self._workspace, self._library)
        while True:
            start, cpu = time.perf_counter(), time.thread_time()
            if self._team.run(table, nbytes, steps, n_threads):
                break
            # stopped by cancel, or by a signal whose handler has been called by now and raised nothing
            self._team.clear_stop()
            if self._cancelled or self._closing:
                raise Interrupted("the computation was stopped")
            if self.layout.needs_checkpoint:  # a second run would advance recurrent states twice
                raise Interrupted("the computation was stopped by a signal, and cannot be repeated here")
        wall, used = time.perf_counter() - start, time.thread_time() - cpu
        program.policy.report(n_threads, n_tokens, wall, wall - used, self._team.long_waits())
        return wall, n_threads

    def _logits(self, program: Program, n: int) -> np.ndarray:
        """The logits of the last run, float32 [n, n_vocab] or [n, ``GUESSABLE``], in place."""
        value = program.recorder.logits_value
        assert value is not None
        return self._workspace.rows(value.offset, value.stride, min(value.n, self.config.vocab_size))[:n]


_models: weakref.WeakSet[Model] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a forked child, where the thread that held a lock does not exist."""
    for model in list(_models):
        model._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
