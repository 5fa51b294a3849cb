"""Opening a draft model, which guesses tokens for another model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

from llmgen import hub
from llmgen.backends.cpu.machine import machine
from llmgen.backends.cpu.memory import available_bytes
from llmgen.backends.cpu.model import Model
from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.engine.speculation.draft import DraftModel
from llmgen.engine.speculation.memory import GuessMemory
from llmgen.engine.speculation.pairing import check_draft, check_target, check_vocabularies
from llmgen.engine.speculation.speculator import Speculation
from llmgen.errors import LLMGenError
from llmgen.gguf import GGUFFile
from llmgen.hub.state import state_folder
from llmgen.model import archs
from llmgen.model.kv_config import KVCacheConfig

_log = logging.getLogger(__name__)


class OpenDraft:
    """The draft model and its file; closed before the model that it drafts for."""

    def __init__(self, config: SpeculativeConfig, file: GGUFFile) -> None:
        """Opens the draft, if there is to be one; neither model is loaded yet.

        Raises UsageError where the model that ``file`` holds cannot be guessed for, or the draft cannot guess for it.
        """
        self.config = config
        self.model: Model | None = None
        self._target_file = file
        self._file: GGUFFile | None = None
        self._memory: GuessMemory | None = None
        self._speculation: Speculation | None = None
        check_target(archs.read_model(file))
        if config.draft is not None:
            self._file = _opened(config.draft)
            try:
                self._check_draft(self._file)
            except BaseException:
                self._file.close()
                raise

    def _check_draft(self, file: GGUFFile) -> None:
        check_vocabularies(self._target_file.metadata, file.metadata)
        with _telling_which():
            model = archs.read_model(file)
        check_draft(model)

    def speculation(self, target: Model, progress: Any = None) -> Speculation:
        """Load the draft beside the loaded model."""
        self._speculation = speculation = self._open(target, progress)
        if self.config.adaptive:
            self._memory = self._memory_of(target)
            self._memory.load(speculation.costs, speculation.experience)
        return speculation

    def _memory_of(self, target: Model) -> GuessMemory:
        """What an earlier program has kept of the same models, on the same machine."""
        where = machine(target.kernel_level, target.n_threads)
        draft = self.model.fingerprint if self.model else "lookup"
        return GuessMemory(state_folder() / "guesses.json", target.fingerprint, draft, where, target.kv_type)

    def _open(self, target: Model, progress: Any) -> Speculation:
        if self._file is None:
            return Speculation(self.config)
        n_ctx = self._context(target)
        kinds = KVCacheConfig(target.layout.kinds.k, target.layout.kinds.v)
        with _telling_which():
            self.model = Model.load(self._file, n_ctx=n_ctx, kv_type=kinds, progress=progress, beside=target)
        _log.debug("draft model %s: context %d", self._file.path, n_ctx)
        share = _bytes(self._file) / _bytes(self._target_file)
        # a model that drafts for itself is always right, if it may choose any token
        draft = DraftModel(self.model, all_tokens=self.model.fingerprint == target.fingerprint)
        speculation = Speculation(self.config, draft, share)
        if self.config.adaptive:
            speculation.warm_up()
        return speculation

    def _context(self, target: Model) -> int:
        """The model's context, or the draft's own where it was made for fewer tokens than the model."""
        assert self._file is not None
        own = self._file.metadata.get(f"{self._file.architecture}.context_length")
        if not isinstance(own, int) or own < 1 or own >= target.config.reach:
            return target.n_ctx
        return min(own, target.n_ctx)

    def close(self) -> None:
        """Keep what guessing has shown, and give the draft's memory back."""
        if self._memory and self._speculation:
            self._memory.save(self._speculation.costs, self._speculation.experience)
            self._memory = None
        if self.model is not None:
            self.model.close()
        if self._file is not None:
            self._file.close()


def _opened(draft: str | PathLike[str]) -> GGUFFile:
    """The file of a draft, by its path or name."""
    if isinstance(draft, str):
        draft = hub.locate(draft, available_bytes, runs=archs.runs)
    return GGUFFile.open(draft)


@contextmanager
def _telling_which() -> Iterator[None]:
    """Say of an error that it is the draft's; two models are opened, and the message speaks of "the model"."""
    try:
        yield
    except LLMGenError as error:
        raise type(error)(f"the draft model (--draft) cannot be used: {error}") from error


def _bytes(file: GGUFFile) -> int:
    """The weights of a model."""
    return sum(tensor.nbytes for tensor in file.tensors.values())
