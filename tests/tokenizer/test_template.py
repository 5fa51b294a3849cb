"""Chat templates: 47 of them byte for byte, and those that mean harm."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from llmgen.errors import TemplateError
from llmgen.gguf import GGUFFile
from llmgen.tokenizer import (
    ChatTemplate,
    TemplateRefusal,
    Tokenizer,
    chat_template_from_gguf,
    encode_chat,
    template_names,
)
from llmgen.tokenizer import budget as limits
from shared import shared
from vocabularies import byte_level

HELLO = [{"role": "user", "content": "Hello"}]


def noon() -> datetime:
    return datetime(2025, 1, 15, 12)


def template(name: str) -> ChatTemplate:
    return ChatTemplate(shared(f"templates/{name}").read_bytes().decode(), now=noon)


def expected() -> dict[str, Any]:
    with gzip.open(shared("templates/expected.json.gz")) as file:
        return json.load(file)


def test_every_expected_rendering() -> None:
    for name, cases in expected().items():
        made = template(name)
        for case in cases.values():
            if "error" in case:
                with pytest.raises(TemplateError) as caught:
                    made.render(case["messages"], **case["kwargs"])
                assert case["error"]["message"] in str(caught.value)
                assert isinstance(caught.value, TemplateRefusal) == (case["error"]["type"] == "TemplateError")
            else:
                assert made.render(case["messages"], **case["kwargs"]) == case["rendered"], name


def test_what_templates_see() -> None:
    source = (
        "{%- for m in messages -%}\n  {% if m.role == 'x' %}{% continue %}{% endif %}\n"
        "{{ m.content | trim }}|\n{% endfor %}{{ tools is none }}{{ documents is none }}{{ bos_token }}"
        "{{ enable_thinking }}{{ add_generation_prompt }}{% generation %}G{% endgeneration %}"
        "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}"
    )
    messages = [{"role": "x", "content": "no"}, {"role": "user", "content": " hi \n"}]
    text = ChatTemplate(source, bos_token="<b>").render(messages, enable_thinking=False)
    assert text == "hi|\nTrueTrue<b>FalseTrueG2"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("tojson", '{"b": "é<\'>", "a": [1, null]}'),
        ("tojson(ensure_ascii=True)", '{"b": "\\u00e9<\'>", "a": [1, null]}'),
        ("tojson(sort_keys=True)", '{"a": [1, null], "b": "é<\'>"}'),
        ("tojson(separators=(',', ':'))", '{"b":"é<\'>","a":[1,null]}'),
        ("tojson(indent=1)", '{\n "b": "é<\'>",\n "a": [\n  1,\n  null\n ]\n}'),
    ],
)
def test_json(call: str, text: str) -> None:
    value = {"b": "\u00e9<'>", "a": [1, None]}
    assert ChatTemplate("{{ x | " + call + " }}").render([], x=value) == text


def test_the_date_is_asked_for() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    assert ChatTemplate(source, now=noon).render([]) == "15 Jan 2025"
    assert ChatTemplate(source).render([], strftime_now=lambda format: format) == "%d %b %Y"


def test_nothing_depends_on_hashes_or_the_date() -> None:
    """The same prompts from a process with other hashes on another day, where none was asked for."""
    code = (
        "import sys, json, hashlib; from datetime import datetime\n"
        "from llmgen.tokenizer import ChatTemplate\n"
        "m = [{'role': 'user', 'content': 'a <b> c', 'x': {'k': 1, 'j': [2]}}]; h = hashlib.sha256()\n"
        "now = lambda: datetime(int(sys.argv[1]), 2, 3)\n"
        "for path in sys.argv[2:]:\n"
        "    source = open(path, encoding='utf-8').read()\n"
        "    if 'strftime_now' not in source and 'tool_use' not in path:\n"
        "        h.update(ChatTemplate(source, now=now).render(m).encode())\n"
        "print(h.hexdigest())"
    )
    paths = sorted(map(str, shared("templates").glob("*.jinja")))[:16]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, year, *paths],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for year, seed in (("2025", "1"), ("2031", "2"))
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**12 }}",
        "{{ [0] * 10**10 }}",
        "{{ 10**10**5 ** 9 }}",
        "{{ 2 ** 100000 }}",
        "{% for i in range(10**12) %}x{% endfor %}",
        "{% for i in range(99999) %}{{ 'abc' * 1000 }}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}"
        "{% endset %}{% endfor %}",
        "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"
        "{{ ns.a | tojson }}",
        "{% set ns = namespace(a=1) %}{% for i in range(99) %}{% set ns.a = dict(a=ns.a, b=ns.a) %}"
        "{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for i in range(999) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' | format(1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 'a'.ljust(10**10) }}",
        "{{ 'a' | center(10**10) }}",
        "{{ 'a\na' | indent(10**10) }}",
        "{{ '\t'.expandtabs(10**10) }}",
        "{{ (1).to_bytes(10**10, 'big') }}",
        "{% set a = 'a' * 100000 %}{{ a.replace('a', a) }}",
        "{% set a = 'a' * 100000 %}{{ a | replace('', a) }}",
        "{% set a = 'a' * 100000 %}{{ a.join(a) }}",
        "{% set a = 'a' * 100000 %}{{ a | join(a) }}",
        "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
        "{{ ([[1] * 1000] * 1000) | sum(start=[]) }}",
        "{{ range(9999) | slice(10**9) | list }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ 1.5 | round(10**9, 'floor') }}",
        "{% set x = 'x' * 20000 %}{{ ([0] * 110000) | tojson(separators=(x, x)) | length }}",
        "{{ [[1]] | tojson(indent='x' * 1000000) }}",
        "{% set ns = namespace(v={'a': 1}.values()) %}{% for i in range(60) %}"
        "{% set ns.v = {'a': ns.v, 'b': ns.v}.values() %}{% endfor %}{{ ns.v }}",
        "{% set ns = namespace(v=1) %}{% for i in range(60) %}{% set ns.v = cycler(ns.v, ns.v).items %}"
        "{% endfor %}{{ ns.v }}",
        "{% set ns = namespace(v=1) %}{% for i in range(60) %}{% set ns.v = cycler(ns.v, ns.v).items %}"
        "{% endfor %}{{ {}[ns.v] }}",
        "{% set x = ['\U000e0001' * 100000] %}{% set y %}{% for i in range(999) %}{{ x }}{% endfor %}{% endset %}",
        "{% set a = 'a' * 1000000 %}{{ a.rfind('ab' ~ 'a' * 500000) }}",
        "{% set a = 'a' * 1000000 %}{{ a.strip('b' * 900000 ~ 'a') }}",
        "{% set a = 'a' * 1000000 %}{{ a | trim('b' * 900000 ~ 'a') }}",
        "{% set a = [] %}{% set _ = a.append(a) %}{{ a }}",
        "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set b = [ns.a] %}{% set _ = b.append(ns.a) %}"
        "{% set ns.a = b %}{% endfor %}{{ ns.a }}",
        "{{ strftime_now('%999999999Y') }}",
        "{{ strftime_now('%Y' * 900000) }}",
        "{{ 'a'.encode() }}",
    ],
)
def test_greedy_templates_are_stopped(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    "body",
    [
        "{% for j in range(99999) %}{% endfor %}",
        "{% for j in range(99999) if false %}{% endfor %}",
        "{% for j in big if j in big and -1 in big %}{% endfor %}",
        "{{ big | select('in', big) | list | length }}",
        "{% set x %}{% for j in range(999) %}{{ 'a' | upper }}{% endfor %}{% endset %}",
        "{% set x = 'ab' in long %}",
        "{% set x = long < other %}",
        "{% set x = [].append(1) %}",
    ],
)
def test_endless_templates_are_stopped(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.3)
    head = "{% set big = range(99999) | list %}{% set long = 'a' * 999999 %}{% set other = long ~ 'a' %}"
    source = (
        head + "{% for i in range(99999) %}{% for k in range(99999) %}" + body + "{% endfor %}{% endfor %}"
    )
    with pytest.raises(TemplateError, match="ran for more than 0.3 seconds"):
        ChatTemplate(source).render(HELLO)


def test_all_renderings_of_a_call_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that is slow each time, and asked once for each way to find out what is data."""
    clock = [0.0]

    def tick() -> float:
        clock[0] += 0.001
        return clock[0]

    monkeypatch.setattr(limits, "time", SimpleNamespace(thread_time=tick, monotonic=lambda: 0.0))
    slow = "{% for i in range(1500) %}{% set x = 1 %}{% endfor %}{{ messages[0].content | upper }}"
    made = ChatTemplate(slow)
    assert made.render(HELLO) == "HELLO"
    with pytest.raises(TemplateError, match="ran for more than 4 seconds"):
        made.render_parts([{"role": "user", "content": "hello<|a|>"}], guarded=["<|a|>"])


def test_time_in_which_the_process_is_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended machine, or Ctrl-Z: of the limits, only the caller's own is one of the clock on the wall."""
    hours = itertools.count(0.0, 3600.0)
    clock = SimpleNamespace(thread_time=time.thread_time, monotonic=lambda: next(hours))
    monkeypatch.setattr(limits, "time", clock)
    made = ChatTemplate("{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    assert made.render(HELLO) == "HELLO"
    with limits.rendering_within(3600.0), pytest.raises(TemplateError, match="timeout of 3600 s was over"):
        made.render(HELLO)


def test_a_caller_can_give_less_time() -> None:
    made = ChatTemplate("{{ messages[0].content }}")
    with (
        limits.rendering_within(0.0),
        pytest.raises(TemplateError, match=r"timeout of 0 s was over") as late,
    ):
        made.render(HELLO)
    assert late.value.exit_code == 124
    stop = threading.Event()
    with limits.rendering_within(None, stop):
        assert made.render(HELLO) == "Hello"
        stop.set()
        with pytest.raises(TemplateError, match="stopped: it was interrupted$"):
            made.render(HELLO)
    with limits.rendering_within(None):
        assert made.render(HELLO) == "Hello"


def test_a_template_may_change_its_own_lists() -> None:
    source = (
        "{% set ns = namespace(a=[]) %}{% for m in messages %}{% set _ = ns.a.append(m.content) %}{% endfor %}"
        "{% set _ = ns.a.insert(0, 'x') %}{% set _ = ns.a.extend(['y', 'z']) %}{% set _ = ns.a.remove('y') %}"
        "{{ ns.a.pop(1) }} {{ ns.a }}"
    )
    assert ChatTemplate(source).render(HELLO) == "Hello ['x', 'z']"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ messages | attr('__class__') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ ''.format.__self__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__ }}",
        "{{ range.mro() }}",
        "{{ messages.append(1) }}",
        "{% set _ = (messages | default([])).append(1) %}",
        "{% set _ = namespace(a=messages).a.pop() %}",
        "{{ messages[0].update(role='system') }}",
        "{{ messages[0].pop('role') }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{{ lipsum() }}",
        "{{ [1, 2] | random }}",
    ],
)
def test_tricks_are_refused(source: str) -> None:
    messages = [dict(HELLO[0])]
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(messages)
    assert messages == HELLO


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% if %}", "error in line 1"),
        ("a\n{{ b", "error in line 2"),
        ("{{ 1 | nothing }}", "No filter named 'nothing'"),
        ("{{ a.b.c }}", "'a' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("x" * 100_001, "has 100,001 characters"),
        ("{{ " + "(" * 3000 + " }}", "failed"),
        ("{{ raise_exception('Only users, please') }}", "refuses this conversation: Only users, please"),
        ("{{ raise_exception('a\nb\u001b[2J') }}", "refuses this conversation: a b\\x1b[2J"),
        ("{{ raise_exception('a' * 1000000) }}", "a" * 300 + "..."),
        ("{{ {}['a' * 1000000].b }}", "a" * 200),
    ],
)
def test_failures_are_sentences(source: str, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render(HELLO)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_only_plain_data_reaches_a_template() -> None:
    with pytest.raises(TemplateError, match="a message holds an object"):
        ChatTemplate("x").render([{"role": "user", "content": object()}])


def test_a_refused_system_message_goes_to_the_first_user() -> None:
    gemma = template("google-gemma-2-2b-it.jinja")
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    fitted, said = gemma.fit_system(messages)
    assert fitted == [{"role": "user", "content": "Be brief.\n\nHello"}]
    assert said is not None
    assert "System role not supported" in said
    assert gemma.fit_system(HELLO) == (HELLO, None)
    with pytest.raises(TemplateRefusal, match="System role not supported"):
        gemma.fit_system(messages[:1])


def test_a_system_message_that_is_left_out_is_noticed() -> None:
    source = "{% for m in messages if m.role == 'user' %}[{{ m.content | upper }}]{% endfor %}"
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    fitted, said = ChatTemplate(source).fit_system(messages)
    assert fitted[0]["content"] == "Be brief.\n\nHello"
    assert said is not None
    taken = ChatTemplate("{% for m in messages %}[{{ m.content | upper }}]{% endfor %}")
    assert taken.fit_system(messages) == (messages, None)


def test_templates_in_a_file(tmp_path: Any) -> None:
    path = shared("tokenizers/ggml-vocab-phi-3.gguf")
    with GGUFFile.open(path) as file:
        found = chat_template_from_gguf(file)
        assert found is not None
        assert (found.bos_token, found.eos_token) == ("<s>", "<|endoftext|>")
        assert template_names(file) == []
        with pytest.raises(TemplateError, match="no chat template 'tool_use'"):
            chat_template_from_gguf(file, "tool_use")
    with GGUFFile.open(shared("tokenizers/ggml-vocab-gpt-2.gguf")) as file:
        assert chat_template_from_gguf(file) is None


def test_bos_is_there_once_in_a_chat() -> None:
    tokenizer = byte_level(control=("<s>", "</s>"), bos_token_id=256, eos_token_id=257, add_bos_token=True)
    for source in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"):
        ids = encode_chat(tokenizer, ChatTemplate(source), [{"role": "user", "content": "<s>"}])
        assert ids[0] == 256
        assert 256 not in ids[1:]
        assert tokenizer.decode(ids[1:]) == "<s>"


def test_a_real_chat_is_tokenized_as_one_text() -> None:
    tokenizer = Tokenizer.from_gguf(shared("tokenizers/ggml-vocab-qwen2.gguf"))
    made = template("Qwen-Qwen2.5-7B-Instruct.jinja")
    text = made.render(HELLO)
    assert encode_chat(tokenizer, made, HELLO) == tokenizer.encode(text, parse_special=True)
