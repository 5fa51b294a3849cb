"""What --kv-type and LLM(kv_type=...) take."""

from __future__ import annotations

from typing import Any

import pytest

from llmgen.errors import UsageError
from llmgen.model.kv_config import KV_KINDS, KVCacheConfig


@pytest.mark.parametrize("kind", KV_KINDS)
def test_one_kind_for_both(kind: str) -> None:
    both = KVCacheConfig.of(kind)
    assert (both.k, both.v, str(both)) == (kind, kind, kind)
    assert KVCacheConfig.of(str(both)) == KVCacheConfig.of(both) == both


@pytest.mark.parametrize(
    ("text", "k", "v"),
    [
        ("fp32", "f32", "f32"),
        ("fp16", "f16", "f16"),
        ("q8", "q8_0", "q8_0"),
        ("q4", "q4_0", "q4_0"),
        ("k=q8_0,v=f16", "q8_0", "f16"),
        ("v=nf4,k=fp32", "f32", "nf4"),
        ("k=q4", "q4_0", "f16"),
        (" v = q8 ", "f16", "q8_0"),
    ],
)
def test_spellings(text: str, k: str, v: str) -> None:
    apart = KVCacheConfig.of(text)
    assert (apart.k, apart.v) == (k, v)
    assert KVCacheConfig.of(str(apart)) == apart


@pytest.mark.parametrize(
    "text", ["f8", "", "Q8_0", "q8_0,f16", "k=f8", "k=f16,k=f16", "x=f16", "k=,v=f16", "k=f16,"]
)
def test_what_is_no_kind_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--kv-type"):
        KVCacheConfig.of(text)


@pytest.mark.parametrize("text", ["k=auto", "k=f16,v=auto"])
def test_auto_is_no_kind_of_keys_alone(text: str) -> None:
    with pytest.raises(UsageError, match="^'auto' chooses .* together; write it alone, .*--kv-type"):
        KVCacheConfig.of(text)


def test_what_was_given_is_quoted_once() -> None:
    with pytest.raises(UsageError, match="^unknown KV cache type 'q9'; choose .*nf4, k=KIND.* or auto"):
        KVCacheConfig.of("q9")
    with pytest.raises(UsageError, match="^the KV cache type 'k=f16,x=f16' is not understood at 'x=f16'; "):
        KVCacheConfig.of("k=f16,x=f16")


@pytest.mark.parametrize("value", [None, 5, ("f16", "f16"), b"f16"])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="kv_type must be a text or a KVCacheConfig"):
        KVCacheConfig.of(value)
    with pytest.raises(UsageError, match="unknown KV cache type"):
        KVCacheConfig(k=value)


def test_the_parts_of_latent_attention_follow_keys_and_values() -> None:
    assert KVCacheConfig.of("q8_0").latent == KVCacheConfig("q8_0", "q8_0")
    assert KVCacheConfig.of("k=f16,v=q4_0").latent == KVCacheConfig("f16", "q4_0")
    apart = KVCacheConfig.of("c=nf4,r=bf16")
    assert (apart.latent, str(apart)) == (KVCacheConfig("bf16", "nf4"), "k=f16,v=f16,c=nf4,r=bf16")
    assert KVCacheConfig.of(str(apart)) == apart
    assert KVCacheConfig(c="fp16").c == "f16"
