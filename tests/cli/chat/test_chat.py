"""``llmgen chat`` over pipes: a scripted conversation, its commands and options."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from models import gemma3, smollm2
from program import llmgen, refused
from shared import shared
from talking import answers, chat

pytestmark = pytest.mark.usefixtures("compiled")


def test_the_conversation_goes_on() -> None:
    name = "My name is Zebulon."
    first, _ = chat(name)
    both, _ = chat(name, "What is my name?")
    assert both.startswith(first)
    assert "Zebulon" in both[len(first) :]
    forgotten, _ = chat(name, "/clear", "What is my name?")
    assert "Zebulon" not in forgotten[len(first) :]


def test_commands() -> None:
    out, err = chat("/set max_tokens 1", "/set tmp 1", "/xyzzy", "/stat", "/help", "/exit", "never read")
    assert out == ""
    assert "did you mean temp" in err
    assert "there is no command /xyzzy; /help lists them" in err
    assert "there is no command /stat; did you mean /stats?" in err
    for command in ("/system", "/regen", "/undo", "/edit", "/continue", "/read", "/copy", "/model"):
        assert f"\n{command} " in err
    short, err = chat("/set max_tokens 1", "Hi")
    assert "[length: max_tokens; /continue goes on]" in err
    assert len(short.split()) <= 1


def test_commands_that_need_something_there() -> None:
    _, err = chat(
        "/regen", "/undo", "/edit x", "/continue", "/copy", "/stats", "/save", "/clear now", "/help x"
    )
    assert err.count("error: ") == 9
    assert "there is no message yet" in err
    assert "there is no answer to continue" in err
    assert "/save needs more: /save FILE" in err
    assert "/clear takes nothing after it" in err


def test_each_turn_computes_only_its_new_tokens() -> None:
    told = answers("My name is Zebulon.", "What is my name?", "Tell me a joke.", "/undo", "And now?")
    seen = 0
    for turn in told:
        timings = turn["timings"]
        assert timings["cached_tokens"] >= seen - 1
        assert timings["cached_tokens"] + timings["prefill_tokens"] == turn["prompt_tokens"]
        if turn is not told[2]:  # this one is taken back
            seen = turn["prompt_tokens"] + turn["completion_tokens"]
    _, err = chat("Hi", "Well?", "/stats", "/regen", options=("--stats",))
    assert err.count("prompt: ") == 4
    assert err.count(" of them cached") == 3  # in all but the first answer's
    assert ", 1 new" in err  # the second time the whole prompt is known but its last token


def test_undo_regen_edit_and_continue() -> None:
    told = answers("Count to five.", "/regen", "/edit Name a colour.", "/undo", "/undo", "Count to five.")
    texts = [turn["text"] for turn in told]
    assert texts[0] == texts[1] == texts[3]
    assert [turn["message"] for turn in told] == ["Count to five."] * 2 + ["Name a colour.", "Count to five."]
    assert told[2]["text"] != texts[0]
    whole = answers("Count to twenty.", options=("-n", "24"))[0]
    halves = answers("Count to twenty.", "/continue")
    joined = halves[0]["token_ids"] + halves[1]["token_ids"]
    assert joined[:16] == whole["token_ids"][:16]  # later, the last bit of a logit may decide
    assert halves[1]["timings"]["prefill_tokens"] <= 2
    seeded = answers("Tell me a story.", "/regen", options=("--temp", "1", "--seed", "5"))
    assert [turn["seed"] for turn in seeded] == [5, 6]


def test_the_system_message() -> None:
    out, err = chat("/system", "/system You are a pirate.", "/system", "/system -", "/system", "/show")
    assert err.startswith("there is no system message\nthe system message is set\nYou are a pirate.\n")
    assert "temp" in err
    assert out == ""
    _, err = chat("/show messages", options=("--system", "Be kind."))
    assert err == "system: Be kind.\n"


def test_a_full_context_is_said_before_and_never_silent() -> None:
    lines = [f"Tell me about the number {n}." for n in range(6)]
    small = ("-c", "180", "-n", "30")
    _, err = chat(*lines, options=small, code=1)
    assert "full (" in err
    assert "of 180 tokens); when it is full, the conversation will stop" in err
    assert "but the context holds 180" in err
    _, err = chat(*lines, "/show messages", options=(*small, "--when-full", "drop", "--system", "Be brief."))
    assert "messages are left out from now on" in err
    assert "error" not in err
    assert err.count("user: ") == 6  # all of them are still there to save
    told = answers(*lines, options=small, code=1)
    assert "error" in told[-1]
    _, err = chat(*lines[:3], "/set when_full drop", *lines[3:], options=small)
    assert "left out" in err


def test_another_model(tmp_path: Path) -> None:
    _, err = chat("Hi", f"/model {tmp_path}/none.gguf", f"/model {gemma3()}", "Hello", "/show")
    assert "error: there is no file" in err or "no file" in err
    assert "this model has no chat template" in err
    assert "gemma3-270m.gguf" in err


def test_a_model_without_a_template_is_explained() -> None:
    options = ("chat", str(gemma3()), "--temp", "0", "-n", "12")
    done = llmgen(*options, input="The capital of France?\n/show messages\n")
    assert done.returncode == 0
    assert "using a plain transcript of User: and Assistant:" in done.stderr
    assert "--template gemma" in done.stderr
    assert "User" not in done.stdout
    assert done.stdout[:1].isalnum()  # the blank belongs to "Assistant:"
    assert f"assistant: {done.stdout.splitlines()[0]}" in done.stderr


def test_a_slash_that_is_text_and_empty_lines() -> None:
    [told] = answers("", "   ", "//etc is a folder")
    assert told["message"] == "/etc is a folder"


def test_refusals() -> None:
    assert "--logprobs" in refused(llmgen("chat", str(smollm2()), "--logprobs", "1", input="Hi\n"), code=2)
    assert "--think hide" in refused(llmgen("chat", str(smollm2()), "--think", "off", input="Hi\n"), code=2)
    assert "--resume" in refused(llmgen("chat", str(smollm2()), "--resume", input="Hi\n"), code=2)


@pytest.mark.parametrize(("think", "has"), [("show", True), ("hide", False)])
def test_thoughts_that_the_template_begins(tmp_path: Path, think: str, has: bool) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n1 2 3 4 </think> 5 6 ")
    done = llmgen(
        *("chat", str(smollm2()), "--temp", "0", "-n", "5", "--template", str(template), "--think", think),
        input="1 2 3 4 5 6 7 8 9\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}<think>")
    done = llmgen(
        *("chat", str(smollm2()), "--temp", "0", "-n", "5", "--template", str(template), "--think", think),
        input="1 2 3 4 5 6 7 8 9\n",
    )
    assert bool(done.stdout.strip()) is has


def test_thoughts_that_were_cut_off_go_on_as_thoughts(tmp_path: Path) -> None:
    template, saved = tmp_path / "t.jinja", tmp_path / "talk.json"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n<think>"
    )
    options = ("--template", str(template), "-n", "6", "--ignore-eos")
    chat("Say more.", "/continue", f"/save {saved}", options=options)
    answer = json.loads(saved.read_text())["messages"][1]
    assert answer["content"] == ""
    assert answer["reasoning_content"].strip()
    out, _ = chat("Say more.", "/continue", options=(*options, "--think", "hide"))
    assert not out.strip()
    [whole] = answers("Say more.", options=(*options, "-n", "12"))
    parts = answers("Say more.", "/continue", options=options)
    assert parts[0]["token_ids"] + parts[1]["token_ids"] == whole["token_ids"]  # the thoughts go on


@pytest.mark.parametrize("name", ["Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1", "ByteDance-Seed-OSS"])
def test_templates_that_can_turn_thoughts_off(name: str) -> None:
    path = str(shared(f"templates/{name}.jinja"))
    chat("Hi", options=("--template", path, "--think", "off", "-n", "2"))


def test_options_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    file.write_text('[chat]\nsystem = "Be kind."\nwhen-full = "drop"\n')
    _, err = chat("/show", "/show messages", options=("--config", str(file)))
    assert re.search(r"context_full +shift", err)
    assert "system: Be kind." in err
    done = llmgen("chat", str(smollm2()), "--config", str(file), "--print-config")
    assert 'when-full = "drop"' in done.stdout


def test_an_option_that_could_not_be_shown_is_refused() -> None:
    _, err = chat("/set logprobs 2", "/set temperature 0.5", "/set stop END", "/set when-full drop")
    assert err == (
        "error: logprobs can only be shown by --json, which this conversation was begun without\n"
        "temp = 0.5\nstop = 'END'\ncontext_full = shift\n"
    )
    answers("/set logprobs 2", "Hi")


def test_lines_are_utf_8_whatever_the_locale_says() -> None:
    changes = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    _, err = chat("Say \u00e9.", "/show messages", **changes)
    assert "user: Say \\xe9." in err or "user: Say ?." in err or "user: Say \u00e9." in err
    done = llmgen(
        *("chat", str(smollm2()), "--json", "-n", "2"), input=b"\xef\xbb\xbfHi\r\ncaf\xe9\nBye\n", **changes
    )
    assert done.returncode == 1
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert (first["message"], third["message"]) == ("Hi", "Bye")
    assert "line 2 is not UTF-8 text (byte 0xe9)" in second["error"]
    assert [first["turn"], second["turn"], third["turn"]] == [1, 2, 3]


def test_a_context_that_shifts_shifts_within_an_answer_and_between_two() -> None:
    small = ("-c", "128", "-n", "160", "--ignore-eos", "--context-full", "shift")
    out, err = chat("Tell me a story.", "And then?", "/show messages", options=small)
    assert "what was oldest was let go" in err
    assert "%" not in err
    assert "the oldest 2 messages are left out from now on" in err
    assert "error" not in err
    assert err.count("assistant: ") == 2


def test_one_option_for_a_full_context() -> None:
    _, err = chat("/set context_full", "/set when-full", options=("--when-full", "drop"))
    assert err == "context_full = shift\n" * 2
    contradiction = llmgen("chat", str(smollm2()), "--when-full", "stop", "--context-full", "shift")
    assert "--when-full stop contradicts --context-full shift" in refused(contradiction, code=2)


def test_setting_showing_and_resetting() -> None:
    _, err = chat(
        *("/set temp", "/set temp 0.3", "/set temp", "/reset temp", "/set stop_token_ids 2 7"),
        *("/reset seed", "/set stop", "/set ignore_eos on", "/set logit_bias 5=-1", "/set x"),
    )
    assert err == (
        "temp = 0.0\ntemp = 0.3\ntemp = 0.3\ntemp = 0.8\nstop_token_ids = 2, 7\n"
        "seed = not set\nstop = none\nignore_eos = on\nlogit_bias = 5=-1.0\n"
        "error: there is no option 'x'; /show lists them\n"
    )


def test_a_character_that_was_cut_is_joined() -> None:
    ask = "Repeat exactly: \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8"
    whole = answers(ask, options=("-n", "15"))[0]
    parts = answers(ask, "/continue", "/continue", options=("-n", "5"))
    assert sum((part["token_ids"] for part in parts), []) == whole["token_ids"]
    assert "".join(part["text"] for part in parts) == whole["text"].rstrip("\ufffd")
    assert "\u65e5\u672c\u8a9e\u306e\u30c6" in whole["text"]
    out, err = chat(ask, "/continue", "/continue", "/show messages", options=("-n", "5"))
    assert "\ufffd" not in out + err
    assert f"assistant: {whole['text']}\n" in err


def test_a_first_message_that_is_empty() -> None:
    assert "the first message is empty" in refused(llmgen("chat", str(smollm2()), " "), code=2)
