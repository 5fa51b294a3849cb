"""``--template``, and what commands say about templates and tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gguf_files
import tiny
from llmgen.cli.terminal.streaming import follow
from models import gemma3, smollm2
from program import llmgen, refused

GREEDY = ["--temp", "0", "-n", "8", "--json"]


def vocabulary_file(path: Path, pre: str = "gpt-2", **templates: str) -> Path:
    """A file with a vocabulary, chat templates and no tensors; ``default`` is the main template."""
    from llmgen.tokenizer.bpe import CHAR_TO_BYTE

    tokens = [*CHAR_TO_BYTE, "<s>", "</s>"]
    types = [1] * 256 + [3, 3]
    text, numbers = gguf_files.STRING, gguf_files.I32
    prefix = "tokenizer.ggml."
    pairs = [
        gguf_files.pair("general.architecture", text, "llama"),
        gguf_files.pair(prefix + "model", text, "gpt2"),
        gguf_files.pair(prefix + "pre", text, pre),
        gguf_files.pair(prefix + "tokens", gguf_files.ARRAY, gguf_files.array(text, tokens)),
        gguf_files.pair(prefix + "token_type", gguf_files.ARRAY, gguf_files.array(numbers, types)),
        gguf_files.pair(prefix + "merges", gguf_files.ARRAY, gguf_files.array(text, ["a b"])),
        gguf_files.pair(prefix + "bos_token_id", gguf_files.U32, 256),
        gguf_files.pair(prefix + "eos_token_id", gguf_files.U32, 257),
    ]
    for name, source in templates.items():
        key = "tokenizer.chat_template" + ("" if name == "default" else f".{name}")
        pairs.append(gguf_files.pair(key, text, source))
    path.write_bytes(gguf_files.Spec(pairs=pairs, tensors=[]).to_bytes())
    return path


def rendered(path: Path, *options: str, text: str = "Hi") -> dict[str, Any]:
    done = llmgen("tokenize", str(path), "--chat", "--json", *options, input=text)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout)) | {"stderr": done.stderr}


def test_named_templates_and_files(tmp_path: Path) -> None:
    path = vocabulary_file(
        tmp_path / "v.gguf",
        default="{{ bos_token }}{{ messages[0].content }}",
        tool_use="tools {{ messages[0].content }}{{ eos_token }}",
    )
    own = tmp_path / "own.jinja"
    own.write_text("own {{ messages[0].content }}{{ eos_token }}")
    assert rendered(path)["text"] == "<s>Hi"
    assert rendered(path, "--template", "tool_use")["text"] == "tools Hi</s>"
    assert rendered(path, "--template", str(own))["text"] == "own Hi</s>"
    assert rendered(path, "--template", "plain")["text"] == "User: Hi\nAssistant:"
    assert "tool_use" in llmgen("inspect", str(path)).stdout
    says = refused(llmgen("tokenize", str(path), "Hi", "--chat", "--template", "no_such"), code=2)
    assert "tool_use" in says
    assert "chatml" in says
    own.write_bytes(b"caf\xe9")
    assert "not UTF-8" in refused(llmgen("tokenize", str(path), "Hi", "--chat", "--template", str(own)))
    assert "cannot read" in refused(
        llmgen("tokenize", str(path), "Hi", "--chat", "--template", str(tmp_path)), code=2
    )


def test_a_conversation_with_its_special_tokens(tmp_path: Path) -> None:
    path = vocabulary_file(
        tmp_path / "v.gguf",
        default="{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}",
    )
    talk = [{"role": "system", "content": "x"}, {"role": "user", "content": "</s>"}]
    told = rendered(path, text=json.dumps(talk))
    assert told["text"] == "<s>system: x</s><s>user: </s></s>"
    specials = [piece for piece, special in zip(told["pieces"], told["special"], strict=True) if special]
    assert specials == ["<s>", "</s>", "<s>", "</s>"]  # the user's own is text
    assert rendered(path, text=json.dumps({"messages": talk}))["ids"] == told["ids"]
    assert rendered(path, text="[1, 2]")["text"] == "<s>user: [1, 2]</s>"
    shown = llmgen("tokenize", str(path), "Hi", "--chat").stdout
    assert shown.startswith("<s>user: Hi</s>\n\n")
    assert "special" in shown


def test_a_refused_system_message_is_said_aloud(tmp_path: Path) -> None:
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('No briefing here.') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    path = vocabulary_file(tmp_path / "v.gguf", default=source)
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    told = rendered(path, text=json.dumps([system, user]))
    assert told["text"] == "Be brief.\n\nHi"
    assert "No briefing here." in told["stderr"]
    assert "in front of the first user message" in told["stderr"]
    assert "No briefing here." in refused(llmgen("tokenize", str(path), "--chat", input=json.dumps([system])))


@pytest.mark.parametrize("command", [["tokenize", "Hi"], ["inspect"]])
def test_a_tokenizer_that_is_only_nearly_known_warns_once(tmp_path: Path, command: list[str]) -> None:
    path = vocabulary_file(tmp_path / "v.gguf", pre="from-the-future")
    done = llmgen(command[0], str(path), *command[1:])
    assert done.returncode == 0
    assert done.stderr.count("from-the-future") == 1
    assert "warning: " in done.stderr


class TestRun:
    """``run`` with templates."""

    pytestmark = pytest.mark.usefixtures("compiled")

    def test_without_a_template_it_says_so(self) -> None:
        done = llmgen("run", str(gemma3()), "The capital of France is", "--temp", "0", "-n", "4")
        assert done.returncode == 0
        assert "no chat template" in done.stderr
        raw = llmgen("run", str(gemma3()), "The capital of France is", "--temp", "0", "-n", "4", "--raw")
        assert raw.stdout == done.stdout
        assert "no chat template" not in raw.stderr

    def test_another_template(self) -> None:
        done = llmgen("run", str(smollm2()), "Hi", "--template", "plain", "--system", "x", *GREEDY)
        assert json.loads(done.stdout)["prompt_tokens"] < 12
        says = refused(llmgen("run", str(smollm2()), "Hi", "--template", "plain", "--raw"), code=2)
        assert "--template needs the chat template that --raw leaves out" in says

    def test_special_tokens_in_raw_prompts_on_request(self) -> None:
        def count(*options: str) -> int:
            done = llmgen("run", str(smollm2()), "<|im_end|>", "--raw", *GREEDY, *options)
            return int(json.loads(done.stdout)["prompt_tokens"])

        assert count() > count("--parse-special") == 1
        assert "add --raw" in refused(llmgen("run", str(smollm2()), "Hi", "--parse-special"), code=2)


class _Stream:
    """A stream that holds text back, and ends in one of three ways."""

    def __init__(self, ending: BaseException | None) -> None:
        self.ending, self.text, self.result = ending, "", None

    def __iter__(self) -> Any:
        for text in ("one ", "two "):
            self.text += text
            yield type("Event", (), {"text": text})()
        if self.ending is None:
            self.text += "held"
            self.result = True  # type: ignore[assignment]
            yield type("Event", (), {"text": "held"})()
            return
        if not isinstance(self.ending, KeyboardInterrupt):
            self.text += "held"
        raise self.ending

    def close(self) -> None:
        self.text += "held"
        self.result = True  # type: ignore[assignment]


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt(), ValueError("x")])
def test_held_back_text_is_shown_at_every_ending(ending: BaseException | None) -> None:
    shown: list[str] = []
    stream: Any = _Stream(ending)
    if isinstance(ending, ValueError):
        with pytest.raises(ValueError):
            follow(stream, shown.append)
    else:
        follow(stream, shown.append)
    assert "".join(shown) == "one two held"


def test_a_timeout_ends_a_template_too(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    own.write_text(loops + "{{ messages[0].content }}")
    model = tiny.write(tmp_path / "tiny.gguf")
    said = refused(llmgen("run", str(model), "a", "--template", str(own), "--timeout", "0.2"), 124)
    assert said.startswith("the timeout of 0.2 s was over before the chat template had made the prompt")
