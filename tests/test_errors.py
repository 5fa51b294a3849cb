"""What strangers wrote reaches a message short, on one line and without control sequences."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from llmgen.errors import LLMGenError, UsageError, kind_of, one_line, shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\nb\x1b[2J", "'a\\nb\\x1b[2J'"),
        (b"a\xff\n", "'a\\xff\\n'"),
        ("x" * 1_000_000, f"'{'x' * 120}...'"),
        (b"x" * 1_000_000, f"'{'x' * 120}...'"),
        ("\u202egnp.exe", "'\\u202egnp.exe'"),
        (np.zeros(1000), "an array of 1,000 values"),
        (["a"] * 5, "an array of 5 values"),
        ([""], "an array of 1 value"),
        ({"a": "b"}, "a mapping of 1 value"),
        (1 << 400, "a number of 401 bits"),
        (True, "True"),
        (2.5, "2.5"),
        (None, "None"),
        (object(), "a value of the type object"),
    ],
)
def test_values_in_a_message(value: object, expected: str) -> None:
    assert shown(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x", "a text"),
        (None, "None"),
        (5, "an int"),
        (object(), "an object"),
        (b"", "bytes"),
        ([], "a list"),
    ],
)
def test_kinds_in_a_message(value: object, expected: str) -> None:
    assert kind_of(value) == expected


def test_a_message_fits_the_screen_and_keeps_its_end() -> None:
    error = UsageError(f"the key {'k' * 1_000_000}\n\x1b[31m is wrong; give another")
    assert len(str(error)) < 2100
    assert str(error).startswith("the key kkk")
    assert str(error).endswith("kk\\n\\x1b[31m is wrong; give another")
    assert one_line("a short one") == "a short one"
    assert len(one_line("\x1b" * 5000)) == 2000


def test_errors_keep_what_else_they_carry() -> None:
    error = pickle.loads(pickle.dumps(LLMGenError("a\nb", 3)))
    assert error.args == ("a\\nb", 3)
