"""Tiny models that leave the beaten path: scalings, patterns, optional and stacked tensors.

model/variants.npz holds `tokens` int32 [90] and, for each name, the logits float32 [2, 128]
after the last two of them, computed by llama.cpp (llama-cpp-python 0.3.36, CPU, f32 cache,
flash attention off, a context of 256) in one batch on the very files built here. Only with flash attention
does it leave keys out in MiniMax M3, so there it is on.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import recurrent_variants
from archs import build_variant, read_spec
from latents import LATENTS

YARN: dict[str, tuple[str, Any]] = {
    "rope.scaling.type": ("STRING", "yarn"),
    "rope.scaling.factor": ("FLOAT32", 4.0),
    "rope.scaling.original_context_length": ("UINT32", 64),
}
LINEAR: dict[str, tuple[str, Any]] = {
    "rope.scaling.type": ("STRING", "linear"),
    "rope.scaling.factor": ("FLOAT32", 4.0),
}
LONGROPE: dict[str, tuple[str, Any]] = {"rope.scaling.type": ("STRING", "longrope")}
LONG_AND_SHORT = {"rope_factors_long.weight": [64], "rope_factors_short.weight": [64]}
HALF_LONG_AND_SHORT = {"rope_factors_long.weight": [32], "rope_factors_short.weight": [32]}
STACKED = {f"blk.{i}.attn_qkv.weight": [256, 768] for i in range(2)}
STACKED_BIAS = {f"blk.{i}.attn_qkv.bias": [768] for i in range(2)}
QKV_WEIGHTS = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
QKV_BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
PATTERN = "attention.sliding_window_pattern"


def _heads(n_heads: int, n_kv_heads: int, head_dim: int) -> dict[str, list[int]]:
    """Shapes of the attention matrices and biases of a 2-layer model of width 256."""
    rows = {"q": n_heads * head_dim, "k": n_kv_heads * head_dim, "v": n_kv_heads * head_dim}
    shapes = {"attn_output.weight": [n_heads * head_dim, 256]}
    for which, n in rows.items():
        shapes |= {f"attn_{which}.weight": [256, n], f"attn_{which}.bias": [n]}
    return {f"blk.{i}.{name}": shape for i in range(2) for name, shape in shapes.items()}


def _sparse(block: int, n_chosen: int, n_local: int) -> tuple[str, dict[str, Any]]:
    """Three query heads for each key/value head, which chooses ``n_chosen`` blocks."""
    sizes = {"top_k": n_chosen, "block_size": block, "local_blocks": n_local, "key_length": 64}
    rows = {"q.weight": [256, 768], "q.bias": [768], "output.weight": [768, 256]}
    indexer = {"q_proj": [256, 128], "k_proj": [256, 64], "q_norm": [64], "k_norm": [64]}
    return "minimax-m3-moe", {
        "set_keys": {
            "attention.head_count": ("UINT32", 6),
            **{f"attention.indexer.{key}": ("UINT32", size) for key, size in sizes.items()},
        },
        "reshape": {
            **{f"blk.{i}.attn_{name}": shape for i in range(2) for name, shape in rows.items()},
            **{f"blk.1.indexer.{name}.weight": shape for name, shape in indexer.items()},
        },
    }


def _numbers(*values: int) -> tuple[list[str], list[int]]:
    """The metadata of a number for each layer."""
    return ["ARRAY", "UINT32"], list(values)


def _gemma3n_shared() -> dict[str, Any]:
    """22 layers, of which the last two see the keys of earlier ones; the last has no window."""
    n, width = 22, 64
    first = {name[6:]: shape for name, shape in read_spec("gemma3n-dense")["tensors"] if name[:6] == "blk.0."}
    pattern = [int(i % 5 != 4 and i != n - 1) for i in range(n)]
    return {
        "set_keys": {"block_count": ("UINT32", n), PATTERN: _numbers(*pattern)},
        "reshape": {
            "per_layer_token_embd.weight": [n * 256, 128],
            "per_layer_model_proj.weight": [width, n * 256],
            **{f"blk.{i}.{name}": shape for i in range(5, n) for name, shape in first.items()},
        },
    }


# name -> (spec, arguments of build_variant)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-linear": ("llama", {"set_keys": LINEAR}),
    "llama-old-linear-key": ("llama", {"set_keys": {"rope.scale_linear": ("FLOAT32", 2.0)}}),
    "llama-scaling-none": ("llama", {"set_keys": {**LINEAR, "rope.scaling.type": ("STRING", "none")}}),
    "llama-yarn": ("llama", {"set_keys": YARN}),
    "llama-longrope": (
        "llama",
        {"set_keys": LONGROPE, "reshape": LONG_AND_SHORT, "drop_tensors": ("rope_freqs.weight",)},
    ),
    "llama-tied": ("llama", {"drop_tensors": ("output.weight",)}),
    "llama-few-biases": ("llama", {"drop_tensors": ("attn_q.bias", "ffn_up.bias", "attn_output.bias")}),
    "llama-one-kv-head": (
        "llama",
        {
            "set_keys": {
                "attention.head_count": ("UINT32", 4),
                "attention.head_count_kv": ("UINT32", 1),
                "attention.key_length": ("UINT32", 64),
                "attention.value_length": ("UINT32", 64),
                "rope.dimension_count": ("UINT32", 64),
            },
            "reshape": {**_heads(4, 1, 64), "rope_freqs.weight": [32]},
        },
    ),
    "mistral3-yarn": (
        "mistral3",
        {
            "set_keys": {
                **YARN,
                "rope.scaling.yarn_log_multiplier": ("FLOAT32", 0.5),
                "rope.scaling.yarn_beta_fast": ("FLOAT32", 8.0),
                "rope.scaling.yarn_beta_slow": ("FLOAT32", 2.0),
            }
        },
    ),
    "mistral3-temperature": (
        "mistral3",
        {
            "set_keys": {
                "attention.temperature_scale": ("FLOAT32", 0.3),
                "rope.scaling.original_context_length": ("UINT32", 64),
            }
        },
    ),
    "qwen2-yarn": ("qwen2", {"set_keys": YARN}),
    "qwen2-attn-factor": ("qwen2", {"set_keys": {"rope.scaling.attn_factor": ("FLOAT32", 1.3)}}),
    "qwen2-tied": ("qwen2", {"drop_tensors": ("output.weight",)}),
    "qwen2-stacked": (
        "qwen2",
        {"reshape": STACKED | STACKED_BIAS, "drop_tensors": QKV_WEIGHTS + QKV_BIASES},
    ),
    "qwen3-scales": (  # a factor for each matrix
        "qwen3",
        {
            "reshape": {
                f"blk.{i}.{part}.scale": [1]
                for i in range(2)
                for part in (*(f"attn_{p}" for p in ("q", "k", "v", "output")), *FEED_FORWARD)
            }
        },
    ),
    "llama-scales": (  # beside biases
        "llama",
        {"reshape": {f"blk.{i}.{part}.scale": [1] for i in range(2) for part in ("attn_q", *FEED_FORWARD)}},
    ),
    "qwen35-scales": (
        "qwen35",
        {
            "reshape": {
                f"blk.{part}.scale": [1]
                for part in (
                    *(f"0.{p}" for p in ("attn_qkv", "attn_gate", "ssm_out", "ssm_alpha", "ssm_beta")),
                    *(f"1.attn_{p}" for p in ("q", "k", "v", "output")),
                    *(f"{i}.{p}" for i in range(2) for p in FEED_FORWARD),
                )
            }
        },
    ),
    "qwen3-tied": ("qwen3", {"drop_tensors": ("output.weight",)}),
    "gemma-no-biases": ("gemma", {"drop_tensors": QKV_BIASES}),
    "gemma2-default-pattern": ("gemma2", {"drop_keys": (PATTERN,)}),
    "gemma2-local-base": ("gemma2", {"set_keys": {"rope.freq_base_swa": ("FLOAT32", 500.0)}}),
    "gemma2-linear": ("gemma2", {"set_keys": LINEAR}),
    "gemma2-default-caps": ("gemma2", {"drop_keys": ("final_logit_softcapping", "attn_logit_softcapping")}),
    "gemma3-default-pattern": ("gemma3", {"drop_keys": (PATTERN,)}),
    "gemma3-default-local-base": (
        "gemma3",
        {"set_keys": {"rope.freq_base": ("FLOAT32", 1e6)}, "drop_keys": ("rope.freq_base_swa",)},
    ),
    "gemma3-linear": ("gemma3", {"set_keys": LINEAR}),
    "gemma3-no-window": ("gemma3", {"drop_keys": ("attention.sliding_window",)}),
    "gemma3-final-cap": ("gemma3", {"set_keys": {"final_logit_softcapping": ("FLOAT32", 2.0)}}),
    "gemma3-tied": ("gemma3", {"drop_tensors": ("output.weight",)}),
    "gemma3-wide-heads": (
        "gemma3",
        {
            "set_keys": {
                "attention.head_count": ("UINT32", 4),
                "attention.head_count_kv": ("UINT32", 1),
            },
            "reshape": _heads(4, 1, 128),
        },
    ),
    "gemma3n-shared-keys": ("gemma3n", _gemma3n_shared()),
    "phi3-partial-rope": (
        "phi3",
        {
            "set_keys": {
                "rope.dimension_count": ("UINT32", 64),
                "rope.scaling.attn_factor": ("FLOAT32", 1.3),
            },
            "reshape": HALF_LONG_AND_SHORT,
        },
    ),
    "phi3-long": ("phi3", {"set_keys": {"rope.scaling.original_context_length": ("UINT32", 128)}}),
    "phi3-stacked": ("phi3", {"reshape": STACKED, "drop_tensors": QKV_WEIGHTS}),
    "phi3-stacked-bias": (
        "phi3",
        {"reshape": STACKED | STACKED_BIAS, "drop_tensors": QKV_WEIGHTS + QKV_BIASES},
    ),
    "phi3-window-ignored": ("phi3", {"set_keys": {"attention.sliding_window": ("UINT32", 32)}}),
    "phi3-tied": ("phi3", {"drop_tensors": ("output.weight",)}),
    "stablelm-parallel": ("stablelm", {"drop_tensors": ("ffn_norm.weight", "ffn_norm.bias")}),
    "stablelm-no-qk-norm": ("stablelm", {"drop_tensors": ("attn_q_norm.weight", "attn_k_norm.weight")}),
    "stablelm-partial-rope": (
        "stablelm",
        {
            "set_keys": {
                "rope.dimension_count": ("UINT32", 32),
                "rope.dimension_count_swa": ("UINT32", 32),
            }
        },
    ),
    "olmo2-yarn": ("olmo2", {"set_keys": YARN}),
    "olmo2-attn-factor": ("olmo2", {"set_keys": {"rope.scaling.attn_factor": ("FLOAT32", 1.3)}}),
    "olmo2-no-window": ("olmo2", {"drop_keys": ("attention.sliding_window",)}),
    **LATENTS,
    "minimax-m3-few-blocks": _sparse(4, 5, 1),
    "minimax-m3-wide-blocks": _sparse(24, 2, 2),
    "qwen4exp-ngrams": (  # up to five tokens, of which one ends what came before; products beyond 64 bits
        "qwen4exp-moe",
        {
            "set_keys": {
                "ple.ngram_size": ("UINT32", 5),
                "ple.heads_per_ngram": ("UINT32", 1),
                "ple.eos_token_id": ("UINT32", 28),
                "ple.layer_multipliers": (
                    ["ARRAY", "UINT64"],
                    [3 << 61, 0x9E3779B97F4A7C15, 7, 1 << 63, (1 << 64) - 1],
                ),
                "ple.head_offsets": (["ARRAY", "UINT64"], [0, 101, 198, 311]),
                "ple.head_vocab_sizes": (["ARRAY", "UINT64"], [101, 97, 113, 127]),
            },
        },
    ),
    "olmo2-stacked": ("olmo2", {"reshape": STACKED, "drop_tensors": QKV_WEIGHTS}),
}


# the same where llama.cpp's logits are not at hand: the numpy backend is the witness
BY_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "values-of-another-size": (
        "arcee",
        {
            "set_keys": {"attention.value_length": ("UINT32", 64)},
            "reshape": {
                f"blk.{i}.{name}": shape
                for i in range(2)
                for name, shape in (
                    ("attn_v.weight", [256, 128]),
                    ("attn_v.bias", [128]),
                    ("attn_output.weight", [128, 256]),
                )
            },
        },
    ),
    "gptneox-parallel": ("gptneox", {"set_keys": {"use_parallel_residual": ("BOOL", True)}}),
    "falcon-one-norm": ("falcon", {"drop_tensors": ("attn_norm_2.weight", "attn_norm_2.bias")}),
    "granite-unrotated": ("granite", {"set_keys": {"rope.scaling.finetuned": ("BOOL", False)}}),
    "minicpm-defaults": ("minicpm", {"drop_keys": ("logit_scale", "residual_scale", "embedding_scale")}),
    "glm4-text-only": ("glm4", {"drop_keys": ("rope.dimension_sections",)}),
    "qwen3vl-axes": ("qwen3vl", {"set_keys": {"rope.dimension_sections": _numbers(24, 20, 16, 4)}}),
    "codeshell-no-embedding": ("codeshell", {"drop_tensors": ("token_embd.weight",)}),
    "command-r-normed": (
        "command-r",
        {"reshape": {f"blk.{i}.attn_{p}_norm.weight": [128, 2] for i in range(2) for p in "qk"}},
    ),
    "mpt-normed": (
        "mpt",
        {"reshape": {f"blk.{i}.attn_q_norm.{part}": [256] for i in range(2) for part in ("weight", "bias")}},
    ),
    "nanbeige-loops": ("nanbeige", {"set_keys": {"num_loops": ("UINT32", 3)}}),
    "hunyuan-alpha": ("hunyuan-dense", {"set_keys": {"rope.scaling.alpha": ("FLOAT32", 50.0)}}),
    "deci-pruned": (  # a matrix instead of attention, then neither, and a layer without a feed-forward
        "deci",
        {
            "set_keys": {
                "block_count": ("UINT32", 4),
                "attention.head_count": _numbers(2, 2, 0, 2),
                "attention.head_count_kv": _numbers(1, 0, 0, 2),
                "feed_forward_length": _numbers(384, 384, 256, 0),
            },
            "drop_tensors": tuple(f"blk.1.attn_{p}.{kind}" for p in "qkv" for kind in ("weight", "bias")),
            "reshape": {
                **{f"blk.0.attn_{p}.weight": [256, 128] for p in "kv"},
                **{f"blk.0.attn_{p}.bias": [128] for p in "kv"},
                **{f"blk.2.ffn_{p}.weight": [256, 256] for p in ("gate", "up", "down")},
                "blk.2.ffn_norm.weight": [256],
                **{f"blk.3.attn_{p}.weight": [256, 256] for p in ("q", "k", "v", "output")},
                "blk.3.attn_norm.weight": [256],
            },
        },
    ),
    "openelm-growing": (
        "openelm",
        {
            "set_keys": {
                "attention.head_count": _numbers(2, 4),
                "attention.head_count_kv": _numbers(1, 2),
                "feed_forward_length": _numbers(256, 384),
            },
            "reshape": {
                "blk.0.attn_qkv.weight": [256, 4 * 128],
                "blk.1.attn_qkv.weight": [256, 8 * 128],
                "blk.1.attn_output.weight": [512, 256],
                **{f"blk.0.ffn_{p}.weight": [256, 256] for p in ("gate", "up", "down")},
            },
        },
    ),
}

VARIANTS |= recurrent_variants.VARIANTS


# past two summaries of 128 tokens, with an indexer that leaves out most of those of four, and with experts by table
DEEPSEEK4: dict[str, tuple[Any, Any]] = {
    **YARN,
    "rope.scaling.attn_factor": ("FLOAT32", 1.3),
    "context_length": ("UINT32", 512),
    "attention.indexer.top_k": ("UINT32", 6),
    "hyper_connection.epsilon": ("FLOAT32", 0.01),
    "hyper_connection.sinkhorn_iterations": ("UINT32", 5),
    "swiglu_clamp_exp": (["ARRAY", "FLOAT32"], [0.3] * 4),
    "swiglu_clamp_shexp": (["ARRAY", "FLOAT32"], [0.2] * 4),
    "expert_count": ("UINT32", 8),
    "expert_used_count": ("UINT32", 3),
    "expert_feed_forward_length": ("UINT32", 64),
    "expert_weights_scale": ("FLOAT32", 2.5),
    "hash_layer_count": ("UINT32", 1),
}
_SMALL_EXPERTS = {
    f"blk.{i}.{name}": shape
    for i in range(4)
    for name, shape in {
        "ffn_gate_inp.weight": [512, 8],
        "exp_probs_b.bias": [8],
        **{f"ffn_{part}_exps.weight": [512, 64, 8] for part in ("gate", "up")},
        **{f"ffn_{part}_shexp.weight": [512, 64] for part in ("gate", "up")},
        "ffn_down_exps.weight": [64, 512, 8],
        "ffn_down_shexp.weight": [64, 512],
    }.items()
    if (i, name) != (0, "exp_probs_b.bias")
} | {"blk.0.ffn_gate_tid2eid.weight": [3, 128]}


def deepseek4_long() -> tuple[Path, np.ndarray, np.ndarray]:
    """A file, 300 tokens int32, and llama.cpp's logits float32 [2, 128] after the last two of them."""
    path = build_variant(
        "deepseek4-moe",
        "long",
        set_keys=DEEPSEEK4,
        reshape=_SMALL_EXPERTS,
        drop_tensors=("exp_probs_b.bias", "exp_probs_b_vl.bias"),
    )
    tokens = np.random.default_rng(4).integers(0, 128, 300).astype(np.int32)
    return path, tokens, reference("deepseek4-long")[1]


def qwen4exp_few_keys() -> tuple[Path, np.ndarray, np.ndarray]:
    """A file whose indexer leaves keys out, 90 tokens int32, and llama.cpp's logits float32 [2, 128] after two of them.

    These are the 83rd and the 87th, which take as many keys as they may without a part of a group.
    """
    keys = {"attention.indexer.top_k": ("UINT32", 20), **YARN}
    path = build_variant("qwen4exp-moe", "few-keys", set_keys=keys)
    tokens = np.random.default_rng(4).integers(0, 128, 90).astype(np.int32)
    return path, tokens, reference("qwen4exp-few-keys")[1]


def build(name: str) -> Path:
    """The file of one of VARIANTS or BY_WAYS, built on first use."""
    spec, arguments = (VARIANTS | BY_WAYS)[name]
    return build_variant(spec if spec.endswith("-moe") else f"{spec}-dense", name, **arguments)


@cache
def reference(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens int32 [90] and llama.cpp's logits float32 [2, 128] after the last two."""
    with np.load(Path(__file__).parent / "model" / "variants.npz") as stored:
        return stored["tokens"], stored[name]
