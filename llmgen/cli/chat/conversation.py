"""A conversation: its messages, what the model has computed of them, and its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from llmgen.cli.chat import thinking
from llmgen.errors import ContextFullError, UsageError

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.generation import GenerationResult, GenerationStream, SamplingParams
    from llmgen.generation.stopping import Cancel
    from llmgen.tokenizer import ChatTemplate, Part

WhenFull = Literal["stop", "drop"]
Message = dict[str, Any]

_WARN_AT = (0.75, 0.9)
_LAST_TURN = 1.0


@dataclass(frozen=True)
class _Known:
    """The beginning of a prompt, with an answer at its end, as the model has seen it.

    Another tokenization of the same text would have to be computed anew.
    """

    text: str
    ids: list[int]


@dataclass
class Conversation:
    """The messages, and a session that holds the cache for them.

    ``say`` gets sentences for the user.
    """

    llm: LLM
    template: ChatTemplate
    sampling: SamplingParams
    say: Callable[[str], None]
    when_full: WhenFull = "stop"
    template_options: dict[str, Any] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    messages: list[Message] = field(default_factory=list)
    left_out: int = 0
    """How many of the oldest messages after the system message no longer fit the context."""
    last: GenerationResult | None = None
    cancel: Cancel | None = None
    """What is asked whether the next answer is to end."""

    def __post_init__(self) -> None:
        self.session = self.llm.session()
        self._known: list[_Known] = []
        self._prompt = _Known("", [])
        self._written: tuple[str, bool] | None = None  # the last answer as it was written, begun in thoughts?
        self.thinks = False
        """Whether the running answer begins within thoughts."""
        self._said: set[object] = set()

    def close(self) -> None:
        """Give the cache back."""
        self.session.close()

    def use(self, llm: LLM, template: ChatTemplate, stops: tuple[str, ...], options: dict[str, Any]) -> None:
        """Go on with another model."""
        self.session.close()
        self.llm, self.template, self.stops, self.template_options = llm, template, stops, options
        self.session = llm.session()
        self._forget()

    # -- the messages

    @property
    def system(self) -> str | None:
        """The system message."""
        first = self.messages[0] if self.messages else None
        return first["content"] if first and first["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        self.messages = self.messages[self._n_system :]
        if text is not None:
            self.messages.insert(0, {"role": "system", "content": text})

    @property
    def _n_system(self) -> int:
        return int(self.system is not None)

    @property
    def answer(self) -> str | None:
        """The last answer, if the conversation ends with one."""
        last = self.messages[-1] if self.messages else None
        return last["content"] if last and last["role"] == "assistant" else None

    def clear(self) -> None:
        """Start again; the system message stays."""
        self.messages = self.messages[: self._n_system]
        self._forget()

    def replace(self, messages: list[Message]) -> None:
        """Take other messages."""
        self.messages = [dict(message) for message in messages]
        self._forget()

    def undo(self) -> str:
        """Take the last message of the user back, with its answer; returns it."""
        at = self._last_user()
        text = str(self.messages[at]["content"])
        del self.messages[at:]
        self._rewind()
        return text

    def drop_answer(self) -> None:
        """Take the last answer back, for another one."""
        self._last_user()
        if self.messages[-1]["role"] == "assistant":
            self.messages.pop()
            self._rewind(len(self._prompt.ids))

    def _last_user(self) -> int:
        for at in range(len(self.messages) - 1, -1, -1):
            if self.messages[at]["role"] == "user":
                return at
        raise UsageError("there is no message yet; write one first")

    def _rewind(self, at_least: int = 0) -> None:
        """Cut the cache back to the end of the answer that is the last one now."""
        self._written = None
        answers = sum(message["role"] == "assistant" for message in self.messages)
        del self._known[answers:]
        keep = max(at_least, len(self._known[-1].ids) if self._known else 0)
        self.session.rewind(max(0, len(self.session.tokens) - keep))
        self.left_out = min(self.left_out, max(0, len(self.messages) - self._n_system))
        self._said.difference_update((*_WARN_AT, _LAST_TURN))

    def _forget(self) -> None:
        self.session.reset()
        self._known.clear()
        self._said.clear()
        self._written = None
        self.left_out = 0
        self.last = None

    # -- answers

    def ask(self, text: str, seed_shift: int = 0) -> GenerationStream:
        """The stream of the answer to a new message; what it gives is to be kept with :meth:`add`."""
        self.messages.append({"role": "user", "content": text})
        return self.again(seed_shift)

    def again(self, seed_shift: int = 0) -> GenerationStream:
        """The same for the message that is the last one."""
        self._prompt = self._make_prompt()
        self.thinks = thinking.opened_by(self._prompt.text)
        return self._stream(self._prompt.ids, seed_shift)

    def go_on(self) -> GenerationStream:
        """The stream of what follows the last answer; to be kept with :meth:`extend`."""
        if self.answer is None:
            raise UsageError("there is no answer to continue; write a message first")
        known = self._known[-1] if self._known else None
        before = self._parts(self._in_context()[:-1])
        text = "".join(part for part, _ in before) + self.messages[-1]["content"]
        if known is None or known.text != text:
            ids = self.llm.tokenizer.encode_parts([*before, (self.messages[-1]["content"], True)])
            known = _Known(text, ids)
        self._prompt = known
        self.thinks = self._written is not None and thinking.ends_inside(*self._written)
        self._refuse_if_full(len(known.ids))
        return self._stream(known.ids, 0)

    def add(self, result: GenerationResult) -> None:
        """Keep an answer, whole or not."""
        self._written = result.text, self.thinks
        self.messages.append(_message(*self._written))
        self._keep(result)

    def extend(self, result: GenerationResult) -> None:
        """Keep what followed the last answer."""
        if self._written is None:
            self.messages[-1]["content"] += result.text
        else:
            text, thinks = self._written
            self._written = text + result.text, thinks
            self.messages[-1] = _message(*self._written)
        if self._known:
            self._known.pop()
        self._keep(result)

    def _keep(self, result: GenerationResult) -> None:
        self.last = result
        exact = result.finish_detail != "stop_string"
        tokens = list(result.token_ids) if exact else []
        known = _Known(self._prompt.text + result.text, self._prompt.ids + tokens)
        answers = sum(message["role"] == "assistant" for message in self.messages)
        # As many as there are answers; one that cannot be used is never the beginning of a prompt.
        unusable = _Known("\0", known.ids)
        self._known += [unusable] * (answers - 1 - len(self._known))
        self._known.append(known if exact else unusable)
        new = result.timings.prefill_tokens + result.completion_tokens
        self._warn(len(known.ids), result.finish_detail == "context_full", new)

    def _stream(self, ids: list[int], seed_shift: int) -> GenerationStream:
        sampling = self.sampling.with_(stop=(*self.sampling.stop, *self.stops))
        if seed_shift and sampling.seed is not None:
            sampling = sampling.with_(seed=(sampling.seed + seed_shift) % 2**64)
        return self.session.stream(ids, sampling, cancel=self.cancel)

    # -- prompts

    @property
    def used(self) -> int:
        """Tokens in the context."""
        return len(self.session.tokens)

    def count(self, text: str) -> int:
        """The tokens of a text."""
        return len(self.llm.tokenizer.encode(text, add_special=False))

    def prompt_text(self) -> str:
        """The prompt for the messages as they are."""
        return "".join(text for text, _ in self._parts(self._in_context()))

    def _in_context(self) -> list[Message]:
        head = self.messages[: self._n_system]
        return [*head, *self.messages[self._n_system + self.left_out :]]

    def _make_prompt(self) -> _Known:
        """The prompt; where it does not fit, the oldest turns are left out or it is refused, never silently."""
        prompt = self._encode()
        n_ctx, before, left_out = self.llm.n_ctx, len(prompt.ids), self.left_out
        reserve = max(1, min(self.sampling.max_tokens, n_ctx // 4))
        if self.when_full == "drop" and before + reserve > n_ctx:
            # More than needed: what follows is computed anew, which should not happen with every turn.
            while len(prompt.ids) + reserve > 0.75 * n_ctx and self._leave_out_oldest():
                prompt = self._encode()
        if self.left_out > left_out:
            self.say(
                f"the context is full ({before} of {n_ctx} tokens, and the answer needs room): "
                f"the oldest {self.left_out} messages are left out from now on, {len(prompt.ids)} tokens remain"
            )
        self._refuse_if_full(len(prompt.ids))
        return prompt

    def _refuse_if_full(self, n_tokens: int) -> None:
        if n_tokens < self.llm.n_ctx:
            return
        raise ContextFullError(
            f"the conversation has {n_tokens} tokens, but the context holds {self.llm.n_ctx}: "
            "take something back (/undo, /clear), let the oldest turns go (/set when_full drop), "
            "or begin with a larger --ctx"
        )

    def _leave_out_oldest(self) -> bool:
        """Leave another turn out; False where only the last one is left."""
        turns = self.messages[self._n_system :]
        starts = [i for i, message in enumerate(turns) if message["role"] == "user" and i > self.left_out]
        if not starts:
            return False
        self.left_out = starts[0]
        return True

    def _parts(self, messages: list[Message]) -> list[Part]:
        fitted, said = self.template.fit_system(messages, **self.template_options)
        if said is not None and said not in self._said:
            self._said.add(said)
            self.say(said)
        return self.template.render_parts(fitted, True, guarded=self._guarded, **self.template_options)

    @property
    def _guarded(self) -> tuple[str, ...]:
        return self.llm.tokenizer.guarded_for(self.template.source)

    def _encode(self) -> _Known:
        """The prompt's text and ids; what the model has seen of it already, in the tokens it saw."""
        parts = self._parts(self._in_context())
        text, tokenizer = "".join(part for part, _ in parts), self.llm.tokenizer
        for known in reversed(self._known):
            if len(text) > len(known.text) and text.startswith(known.text):
                rest = tokenizer.encode_parts(
                    _after(parts, len(known.text)), add_special=False, guarded=self._guarded
                )
                # A space would be put in front of the rest if it began with text.
                if not tokenizer.adds_space_prefix or (rest and tokenizer.is_control(rest[0])):
                    return _Known(text, known.ids + rest)
        return _Known(text, tokenizer.encode_parts(parts, guarded=self._guarded))

    def _warn(self, used: int, full: bool, turn: int) -> None:
        """Say it before it hurts: near the end, and where another turn as long as this one does not fit."""
        n_ctx = self.llm.n_ctx
        then = (
            "the oldest turns will be left out" if self.when_full == "drop" else "the conversation will stop"
        )
        if full:
            self.say(
                f"the context is full: all {n_ctx} tokens are used; /undo or /clear make room, "
                "and /set when_full drop lets the oldest turns go"
            )
            return
        if used > n_ctx:
            self.say(
                f"the answer needed more than the context of {n_ctx} tokens: what was oldest was let go "
                f"while it came (context_full shift); with the next message {then}"
            )
            return
        passed = [share for share in _WARN_AT if used >= share * n_ctx and share not in self._said]
        if used + turn >= n_ctx and _LAST_TURN not in self._said:
            passed.append(_LAST_TURN)
        if passed:
            self._said.update(passed)
            self.say(
                f"the context is {used / n_ctx:.0%} full ({used} of {n_ctx} tokens); when it is full, {then}"
            )


def _message(text: str, thinks: bool) -> Message:
    """An answer as it is kept: its thoughts apart."""
    thoughts, answer = thinking.split(text, thinks)
    message: Message = {"role": "assistant", "content": answer}
    if thoughts:
        message["reasoning_content"] = thoughts
    return message


def _after(parts: list[Part], n: int) -> list[Part]:
    """The parts without their first n characters."""
    out: list[Part] = []
    for text, is_data in parts:
        if n < len(text):
            out.append((text[n:], is_data))
        n = max(0, n - len(text))
    return out
