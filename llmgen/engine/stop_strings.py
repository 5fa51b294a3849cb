"""From tokens to the text that can be shown, and the stop strings that end it."""

from __future__ import annotations

from collections.abc import Sequence

from llmgen.engine.interfaces import TokenizerLike
from llmgen.tokenizer.stops import StopMatcher

_FIRST_PLACEHOLDER = 0xD800


class StopStrings:
    """The stop strings of an answer, as they are looked for.

    Control tokens are never part of the text, but a stop string may spell them.  So each has
    a *placeholder*, a lone surrogate, which no decoded text holds; the letters are looked for
    too, since a model may write a spelling out.
    """

    def __init__(self, stops: Sequence[str], tokenizer: TokenizerLike | None) -> None:
        self._given = {stop: stop for stop in stops}
        self._placeholders: dict[int, str] = {}
        for stop in stops if tokenizer else ():
            parts = tokenizer.cut_control(stop) if tokenizer else []
            self._given.setdefault(
                "".join(self._new_placeholder(p) if isinstance(p, int) else p for p in parts), stop
            )
        self._invisible = dict.fromkeys(map(ord, self._placeholders.values()))

    def _new_placeholder(self, token: int) -> str:
        return self._placeholders.setdefault(token, chr(_FIRST_PLACEHOLDER + len(self._placeholders)))

    def matcher(self) -> StopMatcher | None:
        """A new matcher, or None where there is nothing to look for."""
        return StopMatcher(list(self._given)) if self._given else None

    def placeholder(self, token: int) -> str:
        """What the matcher is to see of a token beside its text."""
        return self._placeholders.get(token, "")

    def shown(self, text: str) -> str:
        """What the matcher let through, without placeholders."""
        return text.translate(self._invisible) if self._invisible else text

    def given(self, found: str | None) -> str | None:
        """The stop string, as it was given, of one that the matcher found."""
        return None if found is None else self._given[found]


class OutputText:
    """Tokens to text that can be shown: whole characters, and no part of a stop string."""

    def __init__(self, tokenizer: TokenizerLike | None, stops: StopStrings) -> None:
        self.text = ""
        self.stopped = False
        self._n_vocab = tokenizer.n_vocab if tokenizer else 0
        self._decoder = tokenizer.stream_decoder(skip_special=True, continuation=True) if tokenizer else None
        self._stops = stops
        self._matcher = stops.matcher()
        self._finished = False

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.given(self._matcher.stopped_by) if self._matcher else None

    def push(self, token: int) -> str:
        """The text to show now that this token is there."""
        if self._decoder is None or token >= self._n_vocab:  # a model may have more rows than words
            return ""
        return self._add(self._stops.placeholder(token) + self._decoder.push(token))

    def finish(self) -> str:
        """The text that was held back; nothing comes after it."""
        if self._finished or not self._decoder or self.stopped:
            return ""
        self._finished = True
        shown = self._add(self._decoder.finish())
        if self._matcher and not self.stopped:
            rest = self._stops.shown(self._matcher.finish())
            self.text += rest
            shown += rest
        return shown

    def _add(self, text: str) -> str:
        if self._matcher:
            text, self.stopped = self._matcher.push(text)
            text = self._stops.shown(text)
        self.text += text
        return text
