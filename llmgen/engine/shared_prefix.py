"""A prompt that is computed once for all requests that begin with it."""

from __future__ import annotations

from llmgen.engine.request_state import RequestState
from llmgen.engine.sequence_state import SequenceState, common_prefix

_WORTH_SHARING = 16  # tokens: copying a sequence costs about as much as computing fewer


class SharedPrefix:
    """A copy of a prompt's sequence, as long as the next requests begin like it."""

    def __init__(self) -> None:
        self._kept: SequenceState | None = None
        self._source: RequestState | None = None

    @property
    def pending(self) -> bool:
        """Whether the prompt to be copied is still being computed: the next requests have to wait for it."""
        return self._source is not None

    def fork(self, ids: list[int]) -> SequenceState | None:
        """A copy for a prompt that begins like it; None, and the copy is dropped, if this one does not."""
        if self._kept and common_prefix(self._kept.tokens, ids) >= _WORTH_SHARING:
            return self._kept.fork()
        self.close()
        return None

    def consider(self, state: RequestState, next_ids: list[int]) -> None:
        """Keep a copy of this request's prompt once it is computed, if the next request begins like it."""
        common = common_prefix(state.ids, next_ids)
        if self._kept is None and common >= _WORTH_SHARING:
            self._source, state.sequence.mark = state, common

    def update(self) -> None:
        """Make the copy, if its prompt has been computed by now."""
        source = self._source
        if source is None or source.prefilling:
            return
        self._source = None
        if source.prompt_done:
            self._kept = source.sequence.fork()
            del self._kept.tokens[len(source.ids) :]

    def close(self) -> None:
        """Free the copy."""
        if self._kept:
            self._kept.seq.close()
        self._kept = None
