"""A conversation: its messages, what the model has computed of them, and its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmgen.cli.chat import fullness, thinking
from llmgen.cli.chat.asked import Asked
from llmgen.cli.chat.joined import JoinedStream
from llmgen.cli.chat.known import Known, parts_after, parts_before
from llmgen.cli.terminal.progress import PromptBar
from llmgen.errors import ContextFullError, LLMGenError, UsageError

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.engine import GenerationResult, SamplingParams
    from llmgen.engine.stopping import Cancel
    from llmgen.tokenizer import ChatTemplate, Part

Message = dict[str, Any]


@dataclass(frozen=True)
class State:
    """A saved state of a conversation, to go back to."""

    messages: list[Message]
    known: list[Known]
    written: tuple[str, bool] | None
    left_out: int
    last: GenerationResult | None
    said: set[object]


@dataclass
class Conversation:
    """The messages, and a session that holds the cache for them.

    ``say`` shows a sentence to the user.
    """

    llm: LLM
    template: ChatTemplate
    sampling: SamplingParams
    say: Callable[[str], None]
    asked: Asked = field(default_factory=Asked)
    stops: tuple[str, ...] = ()
    messages: list[Message] = field(default_factory=list)
    left_out: int = 0
    """How many of the oldest messages after the system message were dropped for lack of context."""
    last: GenerationResult | None = None
    cancel: Cancel | None = None
    """The cancel token for the next answer."""

    def __post_init__(self) -> None:
        self.session = self.llm.session()
        self._known: list[Known] = []
        self._prompt = Known("", [])
        self._running: JoinedStream | None = None
        self._continues = False  # the running answer continues the last message
        self._counted: tuple[list[Message], int, int] | None = None
        self._written: tuple[str, bool] | None = (
            None  # the last answer's raw text, and whether it begins in thoughts
        )
        self.thinks = False
        """Whether the running answer begins within thoughts."""
        self.answer_tags: tuple[str, str] | None = None
        """The tags that may be around the running answer."""
        self.after_label = False
        """Whether the running answer begins with the space after a label such as ``Assistant:``."""
        self._said: set[object] = set()

    def close(self) -> None:
        """Give the cache back."""
        self.session.close()

    def use(self, llm: LLM, template: ChatTemplate, stops: tuple[str, ...], asked: Asked) -> None:
        """Continue with another model."""
        self.session.close()
        self.llm, self.template, self.stops, self.asked = llm, template, stops, asked
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
        """Replace all messages."""
        self.messages = [dict(message) for message in messages]
        self._forget()

    def undo(self) -> str:
        """Remove the last user message with its answer; returns the message."""
        at = self._last_user()
        text = str(self.messages[at]["content"])
        self._cut(at)
        return text

    def drop_answer(self) -> None:
        """Remove the last answer, to make another one."""
        self._cut(self._last_user() + 1)

    def _last_user(self) -> int:
        for at in range(len(self.messages) - 1, -1, -1):
            if self.messages[at]["role"] == "user":
                return at
        raise UsageError("there is no message yet; write one first")

    def _cut(self, at: int) -> None:
        """Remove the messages from this one on, and what is known of their tokens."""
        del self.messages[at:]
        del self._known[sum(message["role"] == "assistant" for message in self.messages) :]
        self._written = None
        self.left_out = min(self.left_out, max(0, len(self.messages) - self._n_system))
        self._said.difference_update(fullness.WARNINGS)

    def _forget(self) -> None:
        self.session.reset()
        self._known.clear()
        self._said.clear()
        self._written = None
        self._counted = None
        self.left_out = 0
        self.last = None

    def state(self) -> State:
        """The current state."""
        return State(
            *(list(self.messages), list(self._known), self._written),
            *(self.left_out, self.last, set(self._said)),
        )

    def restore(self, state: State) -> None:
        """Go back to a state; the cache may hold more, and the next prompt uses what it can."""
        self.messages, self._known = list(state.messages), list(state.known)
        self._written, self.left_out = state.written, state.left_out
        self.last, self._said = state.last, set(state.said)

    # -- answers

    def ask(self, text: str, seed_shift: int = 0) -> JoinedStream:
        """The stream of the answer to a new message; pass its result to :meth:`keep`."""
        self.messages.append({"role": "user", "content": text})
        return self.again(seed_shift)

    def again(self, seed_shift: int = 0) -> JoinedStream:
        """Ask the message again that is already the last one."""
        self._prompt, self._continues = self._fitted(self._encode), False
        self.thinks = thinking.opened_by(self._prompt.text)
        self.answer_tags = thinking.answer_tags(self.template)
        self.after_label = self._prompt.text.endswith(":")
        return self._stream(seed_shift)

    def go_on(self) -> JoinedStream:
        """The stream of a continuation of the last answer; pass its result to :meth:`keep`."""
        if self.answer is None:
            raise UsageError("there is no answer to continue; write a message first")
        self._prompt, self._continues = self._fitted(self._up_to_answer), True
        before = thinking.after(*(self._written or ("", False)), thinking.answer_tags(self.template))
        self.thinks, self.answer_tags = before.inside, before.tags_left if self._written else None
        self.after_label = False
        return self._stream(0)

    def keep(self, result: GenerationResult) -> None:
        """Add the result of the running answer to the conversation, whole or not."""
        grown, self._written = self._grown(result.text), self._text_so_far(result.text)
        if self._continues:
            self.messages.pop()
            if self._known:
                self._known.pop()
        self.messages.append(grown)
        self.last = result
        exact = result.finish_detail != "stop_string"
        tokens = list(result.token_ids) if exact else []
        pending = self._running.pending if self._running else []
        known = Known(self._prompt.text + result.text, self._prompt.ids + tokens, pending)
        answers = sum(message["role"] == "assistant" for message in self.messages)
        # One per answer; an unusable one never matches the beginning of a prompt.
        unusable = Known("\0", known.ids)
        self._known += [unusable] * (answers - 1 - len(self._known))
        self._known.append(known if exact else unusable)
        new = result.timings.prefill_tokens + result.completion_tokens
        full = result.finish_detail == "context_full"
        warning = fullness.warning(
            *(len(known.ids), self.llm.n_ctx, new), full=full, shifts=self.shifts, said=self._said
        )
        if warning is not None:
            self.say(warning)

    def draft(self) -> list[Message]:
        """The messages with the running answer so far."""
        text = self._running.text if self._running else ""
        if not text:
            return self.messages
        grown = self._grown(text)
        return [*(self.messages[:-1] if self._continues else self.messages), grown]

    def _text_so_far(self, text: str) -> tuple[str, bool]:
        """The running answer's raw text with this part, and whether it begins in thoughts."""
        if not self._continues:
            return text.removeprefix(" ") if self.after_label else text, self.thinks
        before, thinks = self._written or (self.answer or "", False)
        return before + text, thinks

    def _grown(self, text: str) -> Message:
        """The running answer's message with this text."""
        if self._continues and self._written is None:  # its thoughts, if any, are separate already
            last = self.messages[-1]
            return {**last, "content": last["content"] + text}
        return _message(*self._text_so_far(text), thinking.answer_tags(self.template))

    def _stream(self, seed_shift: int) -> JoinedStream:
        prompt = self._prompt
        sampling = self.sampling.with_(stop=(*self.sampling.stop, *self.stops))
        if seed_shift and sampling.seed is not None:
            sampling = sampling.with_(seed=(sampling.seed + seed_shift) % 2**64)
        if self.shifts and not sampling.context_keep:
            sampling = sampling.with_(context_keep=self._n_head())
        pending = prompt.pending if self._continues else []
        stream = self.session.stream(prompt.ids, sampling, cancel=self.cancel, on_prompt=PromptBar())
        self._running = JoinedStream(stream, self.llm.tokenizer, pending)
        return self._running

    # -- prompts

    @property
    def shifts(self) -> bool:
        """Whether a full context drops the oldest tokens, within an answer and between two."""
        return self.sampling.context_full == "shift"

    @property
    def may_think(self) -> bool:
        """Whether the running answer may hold thoughts without an opening mark."""
        return thinking.may_be_unopened(self._prompt.text, self.template, self.llm.tokenizer)

    @property
    def used(self) -> int:
        """Tokens of the conversation, including what the template adds."""
        if self._counted is None or self._counted[:2] != (self.messages, self.left_out):
            self._counted = list(self.messages), self.left_out, self._count_all()
        return self._counted[2]

    def _count_all(self) -> int:
        messages = self._in_context()
        if not messages or messages[-1]["role"] == "system":
            return sum(self.count(message["content"]) for message in messages)
        try:
            return len((self._encode() if self.answer is None else self._up_to_answer()).ids)
        except LLMGenError:  # the template refuses them; the next message will report it
            return sum(self.count(message["content"]) for message in messages)

    def count(self, text: str) -> int:
        """The tokens of a text."""
        return len(self.llm.tokenizer.encode(text, add_special=False))

    def _in_context(self) -> list[Message]:
        head = self.messages[: self._n_system]
        return [*head, *self.messages[self._n_system + self.left_out :]]

    def _fitted(self, make: Callable[[], Known]) -> Known:
        """The prompt; if it does not fit, the oldest turns are left out, or it is refused, never silently."""
        prompt = make()
        n_ctx, before, left_out = self.llm.n_ctx, len(prompt.ids), self.left_out
        wanted = self.sampling.max_tokens
        reserve = max(1, min(wanted if wanted >= 0 else n_ctx, n_ctx // 4))
        if self.shifts and before + reserve > n_ctx:
            # Drop more than needed: the rest is computed again, which should not happen at every turn.
            while len(prompt.ids) + reserve > 0.75 * n_ctx and self._leave_out_oldest():
                prompt = make()
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
        if self.shifts:
            raise ContextFullError(
                f"the last turn alone has {n_tokens} tokens, but the context holds {self.llm.n_ctx}: "
                "write a shorter message, or begin with a larger --ctx"
            )
        raise ContextFullError(
            f"the conversation has {n_tokens} tokens, but the context holds {self.llm.n_ctx}: "
            "take something back (/undo, /clear), let the oldest turns go (/set context_full shift), "
            "or begin with a larger --ctx"
        )

    def _leave_out_oldest(self) -> bool:
        """Leave out another turn; False if only the last one is left."""
        turns = self.messages[self._n_system :]
        starts = [i for i, message in enumerate(turns) if message["role"] == "user" and i > self.left_out]
        if not starts:
            return False
        self.left_out = starts[0]
        return True

    def _n_head(self) -> int:
        """How many tokens of the prompt come before the first turn's text: a shift keeps them."""
        turns = self._in_context()[self._n_system :]
        parts = self._parts(self._in_context())
        at = "".join(text for text, _ in parts).find(turns[0]["content"]) if turns else 0
        head = self._ids(parts_before(parts, max(0, at)))
        same = 0
        for ours, theirs in zip(head, self._prompt.ids, strict=False):
            if ours != theirs:
                break
            same += 1
        return same

    def _up_to_answer(self) -> Known:
        """The prompt that ends with the last answer, in the tokens that the model has seen."""
        before = self._parts(self._in_context()[:-1])
        answer = self._written[0] if self._written else str(self.messages[-1]["content"])
        text = "".join(part for part, _ in before) + answer
        if self._known and self._known[-1].text == text:
            return self._known[-1]
        return Known(text, self._ids([*before, (answer, True)]))

    def _parts(self, messages: list[Message]) -> list[Part]:
        keywords = self.asked.keywords
        fitted, said = self.template.fit_system(self.asked.flagged(messages), **keywords)
        if said is not None and said not in self._said:
            self._said.add(said)
            self.say(said)
        guarded = self.llm.tokenizer.guarded_for(self.template.source)
        return self.template.render_parts(fitted, True, guarded=guarded, **keywords)

    def _ids(self, parts: list[Part], add_special: bool = True) -> list[int]:
        tokenizer = self.llm.tokenizer
        guarded = tokenizer.guarded_for(self.template.source)
        return tokenizer.encode_parts(parts, add_special=add_special, guarded=guarded)

    def _encode(self) -> Known:
        """The prompt's text and ids; what the model has seen of it already, in the tokens it saw."""
        parts = self._parts(self._in_context())
        text, tokenizer = "".join(part for part, _ in parts), self.llm.tokenizer
        for known in reversed(self._known):
            if len(text) > len(known.text) and text.startswith(known.text):
                rest = self._ids(parts_after(parts, len(known.text)), add_special=False)
                # A space would be put in front of the rest if it began with text.
                if not tokenizer.adds_space_prefix or (rest and tokenizer.is_control(rest[0])):
                    return Known(text, known.ids + rest)
        return Known(text, self._ids(parts))


def _message(text: str, thinks: bool, answer_tags: tuple[str, str] | None) -> Message:
    """An answer as it is kept: its thoughts apart."""
    thoughts, answer = thinking.split(text, thinks, answer_tags)
    message: Message = {"role": "assistant", "content": answer}
    if thoughts:
        message["reasoning_content"] = thoughts
    return message
