from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import fields

import pytest

from llmgen.errors import UsageError
from llmgen.sampling.checks import SAMPLER_NAMES
from llmgen.sampling.params import SamplingParams, option_table


def test_defaults():
    p = SamplingParams()
    assert (p.max_tokens, p.temp, p.top_k, p.top_p, p.min_p, p.typical_p) == (-1, 0.8, 40, 0.95, 0.05, 1)
    assert (p.repeat_penalty, p.repeat_last_n, p.presence_penalty, p.frequency_penalty) == (1, 64, 0, 0)
    assert (p.seed, p.stop, p.ignore_eos) == (None, (), False)
    assert p.samplers == SAMPLER_NAMES


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temp", -0.1),
        ("temp", math.nan),
        ("temp", math.inf),
        ("temp", "warm"),
        ("temp", True),
        ("temp", None),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("typical_p", 2),
        ("repeat_penalty", 0),
        ("repeat_last_n", -2),
        ("max_tokens", -2),
        ("seed", -2),
        ("seed", 2**64),
        ("seed", 0.5),
        ("stop", ""),
        ("stop", ("a", "")),
        ("stop", 5),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", 7),
        ("ignore_eos", 1),
        ("mirostat", 3),
        ("samplers", ("top_q",)),
        ("samplers", ("top_k", "top_k")),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: math.inf}),
        ("logit_bias", {"": 1}),
        ("logit_bias", 3),
        ("timeout", -1),
        ("timeout", math.nan),
        ("context_full", "drop"),
        ("logprobs", -1),
        ("logprobs", 2.0),
        ("dry_base", 0.9),
    ],
)
def test_out_of_range_names_the_option(name, value):
    with pytest.raises(UsageError, match=f"^{name} \\(--{name.replace('_', '-')}\\) must be ") as caught:
        SamplingParams(**{name: value})
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("seed", 2**64, "from -1 to 18,446,744,073,709,551,615"),
        ("max_tokens", 2**31, "from -1 to 2,147,483,647"),
        ("max_tokens", -2, "of at least -1"),
        ("top_p", 1.5, "from 0 to 1"),
    ],
)
def test_the_limit_that_was_missed_is_named(name, value, expected):
    with pytest.raises(UsageError, match=f"{expected}, not"):
        SamplingParams(**{name: value})


def test_values_are_normalized():
    p = SamplingParams(stop="x", temp=1, logit_bias={5: -math.inf, "a": 2}, samplers="top_k; temperature")
    assert p.stop == ("x",)
    assert isinstance(p.temp, float)
    assert p.logit_bias == ((5, -math.inf), ("a", 2.0))
    assert p.samplers == ("top_k", "temperature")
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert pickle.loads(pickle.dumps(p)) == p
    assert hash(p) == hash(p.with_())


def test_with_changes_a_copy():
    p = SamplingParams()
    assert p.with_(temp=0.0).greedy
    assert not p.greedy
    with pytest.raises(UsageError, match="top_q"):
        p.with_(top_q=1)


def test_option_table_lists_every_field():
    table = {option.name: option for option in option_table()}
    assert table["top_k"].flag == "--top-k"
    assert table["top_k"].default == 40
    assert all(option.help for option in table.values())


def test_importing_the_options_loads_no_numpy():
    code = (
        "import sys; from llmgen import SamplingParams; SamplingParams();"
        " sys.exit('numpy' in sys.modules or 'numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_limit_and_a_random_seed_may_be_said():
    assert SamplingParams().token_limit == SamplingParams(max_tokens=-1).token_limit == math.inf
    assert SamplingParams(max_tokens=7).token_limit == 7
    assert SamplingParams(seed=-1) == SamplingParams()


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
def test_a_number_of_very_many_digits_is_refused_by_every_option(name, digits):
    number = 10**digits
    for value in (number, -number, (number,), {number: 1}, {1: number}, {"a": number}):
        with pytest.raises(UsageError, match=f"^{name} ") as caught:
            SamplingParams(**{name: value})
        assert len(str(caught.value)) < 400
