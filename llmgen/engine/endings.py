"""The rules by which an answer ends by itself: tokens, stop strings, its length, a full context."""

from __future__ import annotations

from llmgen.engine.events import Ending
from llmgen.engine.interfaces import TokenizerLike
from llmgen.engine.stop_strings import OutputText, StopStrings
from llmgen.errors import UsageError
from llmgen.sampling.params import SamplingParams


class EndingRules:
    """The rules of one request.  Each method returns the ending that its argument causes, or None."""

    def __init__(self, params: SamplingParams, tokenizer: TokenizerLike | None) -> None:
        """Raises UsageError for stop strings without a tokenizer."""
        if tokenizer is None and params.stop:
            raise UsageError("stop (--stop) needs text, but this model has no tokenizer: use stop_token_ids")
        self._params = params
        self._tokenizer = tokenizer
        self._stop_strings = StopStrings(params.stop, tokenizer)
        self._tokens = {
            token: Ending("stop", "eog", token) for token in (tokenizer.eog_ids if tokenizer else ())
        }
        self._tokens |= {token: Ending("stop", "stop_token", token) for token in params.stop_token_ids}

    def new_text(self) -> OutputText:
        """An empty text that looks for the stop strings as it grows."""
        return OutputText(self._tokenizer, self._stop_strings)

    def by_token(self, token: int) -> Ending | None:
        """For a token that was chosen.  A token that ends the answer is not part of it."""
        return self._tokens.get(token)

    def by_text(self, text: OutputText) -> Ending | None:
        """For the text so far."""
        return Ending("stop", "stop_string", text.matched) if text.stopped else None

    def by_length(self, n_tokens: int) -> Ending | None:
        """For the number of tokens so far."""
        return Ending("length", "max_tokens") if n_tokens >= self._params.token_limit else None

    def by_context(self, n_cached: int, n_ctx: int) -> Ending | None:
        """For the tokens in the cache, where one more is to be computed."""
        if n_cached < n_ctx or self._params.context_full != "stop":
            return None
        return Ending("length", "context_full")
