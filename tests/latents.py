"""Variants of the models with latent attention: several heads, both forms of its matrices, YaRN's magnitude."""

from __future__ import annotations

from typing import Any

Variant = tuple[str, dict[str, Any]]
_SIZES = {"n_heads": 5, "nope": 32, "n_rot": 16, "value_dim": 48, "rank": 96}


def _joint(width: int, n_heads: int, nope: int, n_rot: int, value_dim: int, rank: int) -> dict[str, Any]:
    """Two layers with one matrix for keys and values; sizes of heads are those of the keys and values."""
    sizes = {"key_length": nope + n_rot, "value_length": value_dim, "kv_lora_rank": rank, "q_lora_rank": 64}
    sizes |= {"head_count": n_heads, "head_count_kv": n_heads}
    shapes = {
        "q_a.weight": [width, 64],
        "q_a_norm.weight": [64],
        "q_b.weight": [64, n_heads * (nope + n_rot)],
        "kv_a_mqa.weight": [width, rank + n_rot],
        "kv_a_norm.weight": [rank],
        "kv_b.weight": [rank, n_heads * (nope + value_dim)],
        "output.weight": [n_heads * value_dim, width],
    }
    return {
        "set_keys": {
            "rope.dimension_count": ("UINT32", n_rot),
            **{f"attention.{key}": ("UINT32", size) for key, size in sizes.items()},
        },
        "reshape": {f"blk.{i}.attn_{name}": shape for i in range(2) for name, shape in shapes.items()},
    }


def _minicpm3(**sizes: int) -> Variant:
    variant = _joint(256, **sizes)
    factors = {f"rope_factors_{which}.weight": [sizes["n_rot"] // 2] for which in ("long", "short")}
    variant["reshape"] |= factors
    return "minicpm3", variant


def _deepseek(arch: str = "deepseek2", **keys: tuple[str, Any]) -> Variant:
    """With a matrix for keys and one for values, as files have them today; ``keys``: ``__`` stands for a dot."""
    n_heads, nope, n_rot, value_dim, rank = _SIZES.values()
    variant = _joint(128, **_SIZES)
    for i in range(2):
        del variant["reshape"][f"blk.{i}.attn_kv_b.weight"]
        variant["reshape"][f"blk.{i}.attn_k_b.weight"] = [nope, rank, n_heads]
        variant["reshape"][f"blk.{i}.attn_v_b.weight"] = [rank, value_dim, n_heads]
    variant["set_keys"] |= {
        "attention.head_count_kv": ("UINT32", 1),
        "attention.key_length": ("UINT32", rank + n_rot),
        "attention.value_length": ("UINT32", rank),
        "attention.key_length_mla": ("UINT32", nope + n_rot),
        "attention.value_length_mla": ("UINT32", value_dim),
        **{key.replace("__", "."): value for key, value in keys.items()},
    }
    return f"{arch}-moe", variant


def _old_file() -> Variant:
    name, variant = "deepseek2-moe", _joint(128, **_SIZES)
    dropped = ("attention.key_length_mla", "attention.value_length_mla")
    return name, variant | {"drop_keys": dropped, "drop_tensors": ("attn_k_b.weight", "attn_v_b.weight")}


def _lite() -> Variant:
    """27 dense layers whose queries come from the layer's input, as in V2 Lite."""
    name, variant = _deepseek()
    n_heads, nope, n_rot, value_dim, rank = _SIZES.values()
    shapes = {
        "attn_norm.weight": [128],
        "attn_q.weight": [128, n_heads * (nope + n_rot)],
        "attn_kv_a_norm.weight": [rank],
        "attn_kv_a_mqa.weight": [128, rank + n_rot],
        "attn_k_b.weight": [nope, rank, n_heads],
        "attn_v_b.weight": [rank, value_dim, n_heads],
        "attn_output.weight": [n_heads * value_dim, 128],
        "ffn_norm.weight": [128],
        "ffn_gate.weight": [128, 64],
        "ffn_up.weight": [128, 64],
        "ffn_down.weight": [64, 128],
    }
    dense = ("block_count", "leading_dense_block_count")
    keys = variant["set_keys"] | dict.fromkeys(dense, ("UINT32", 27))
    keys["feed_forward_length"] = ("UINT32", 64)
    mixtures = (
        "ffn_gate_inp",
        "ffn_gate_up_exps",
        "ffn_down_exps",
        "ffn_gate_shexp",
        "ffn_up_shexp",
        "ffn_down_shexp",
    )
    dropped = [f"{part}.weight" for part in (*mixtures, "attn_q_a", "attn_q_a_norm", "attn_q_b")]
    return name, {
        "set_keys": keys,  # the rank of the queries is given still, and has no effect
        "reshape": {f"blk.{i}.{tensor}": shape for i in range(27) for tensor, shape in shapes.items()},
        "drop_tensors": (*dropped, "exp_probs_b.bias"),
    }


_YARN: dict[str, tuple[str, Any]] = {
    "rope__scaling__type": ("STRING", "yarn"),
    "rope__scaling__factor": ("FLOAT32", 4.0),
    "rope__scaling__original_context_length": ("UINT32", 32),
    "rope__scaling__attn_factor": ("FLOAT32", 1.2),
    "rope__scaling__yarn_log_multiplier": ("FLOAT32", 0.0707),
}
_TEMPERATURE: dict[str, tuple[str, Any]] = {
    "attention__temperature_scale": ("FLOAT32", 0.3),
    "attention__temperature_length": ("UINT32", 20),
}


def _sparse(arch: str, n_chosen: int, **keys: tuple[str, Any]) -> Variant:
    """With an indexer that leaves keys out."""
    name, variant = _deepseek(arch, attention__indexer__top_k=("UINT32", n_chosen), **keys)
    variant["set_keys"]["attention.q_lora_rank"] = ("UINT32", 512)
    for i in range(2):
        for tensor, shape in (("q_a", [128, 512]), ("q_a_norm", [512]), ("q_b", [512, 240])):
            variant["reshape"][f"blk.{i}.attn_{tensor}.weight"] = shape
    return name, variant


def _windowed(n_chosen: int) -> Variant:
    """A layer with an indexer, and two with a window, whose latent attention has other sizes."""
    name, variant = _sparse("dots3note", n_chosen, **_YARN)
    n_heads, nope, n_rot, value_dim, rank = 3, 20, _SIZES["n_rot"], 40, 80
    variant["set_keys"] |= {
        "block_count": ("UINT32", 3),
        "rope.freq_base_swa": ("FLOAT32", 500.0),
        "attention.head_count": (["ARRAY", "UINT32"], [5, 3, 3]),
        "attention.sliding_window_pattern": (["ARRAY", "UINT32"], [0, 1, 1]),
        "attention.indexer.types": (["ARRAY", "UINT32"], [1, 0, 0]),
        "attention.kv_lora_rank_swa": ("UINT32", rank),
        "attention.key_length_mla_swa": ("UINT32", nope + n_rot),
        "attention.value_length_mla_swa": ("UINT32", value_dim),
        "attention.key_length_swa": ("UINT32", rank + n_rot),
        "attention.value_length_swa": ("UINT32", rank),
    }
    local = {
        "attn_norm": [128],
        "attn_q_a": [128, 512],
        "attn_q_a_norm": [512],
        "attn_q_b": [512, n_heads * (nope + n_rot)],
        "attn_k_norm": [n_rot],
        "attn_kv_a_norm": [rank],
        "attn_kv_a_mqa": [128, rank + n_rot],
        "attn_k_b": [nope, rank, n_heads],
        "attn_v_b": [rank, value_dim, n_heads],
        "attn_gate": [128, n_heads],
        "attn_output": [n_heads * value_dim, 128],
    }
    variant["reshape"] |= {f"blk.{i}.{part}.weight": shape for i in (1, 2) for part, shape in local.items()}
    variant["reshape"] |= {"blk.0.attn_k_norm.weight": [n_rot], "blk.0.attn_gate.weight": [128, 5]}
    moe = {"norm": [128], "gate_inp": [128, 2], "gate_shexp": [128, 192], "up_shexp": [128, 192]}
    moe |= {"down_shexp": [192, 128], "down_exps": [192, 128, 2]}
    moe |= {"gate_exps": [128, 192, 2], "up_exps": [128, 192, 2]}
    variant["reshape"] |= {f"blk.2.ffn_{part}.weight": shape for part, shape in moe.items()}
    variant["reshape"]["blk.2.exp_probs_b.bias"] = [2]
    return name, variant


_STREAMS: dict[str, tuple[Any, Any]] = {
    "hyper_connection__epsilon": ("FLOAT32", 0.02),
    "hyper_connection__magnitude": ("FLOAT32", 1.6),
    "swiglu_clamp_exp": (["ARRAY", "FLOAT32"], [0.25, 0.25]),
}


def _hy_v4(n_chosen: int) -> Variant:
    """Several heads, limits that bind, and with 0 keys to choose no indexer."""
    name, variant = _sparse("hy_v4", n_chosen, **_YARN, **_STREAMS)
    for i in range(2):
        variant["reshape"] |= {f"blk.{i}.attn_sinks.weight": [5], f"blk.{i}.attn_gate.weight": [128, 240]}
    if not n_chosen:
        tensors = ("k_norm.weight", "k_norm.bias", "proj.weight", "attn_k.weight", "attn_q_b.weight")
        variant["drop_tensors"] = tuple(f"indexer.{tensor}" for tensor in tensors)
    return name, variant


def _pooled(n_chosen: int) -> Variant:
    """Latent attention with an indexer, delta attention, and latent attention that shares the choice."""
    attention = {
        "attn_q_b.weight": [512, 384],
        "attn_k_b.weight": [192, 512, 2],
        "attn_v_b.weight": [512, 128, 2],
        "attn_output.weight": [256, 128],
    }
    norms = {f"attn_{part}.weight": [n] for part, n in (("norm", 128), ("q_a_norm", 512), ("kv_a_norm", 512))}
    streams = {
        f"hc_{part}_{end}": n for part in ("attn", "ffn") for end, n in (("base", [24]), ("scale", [3]))
    }
    streams |= {f"hc_{part}_fn": [512, 24] for part in ("attn", "ffn")}
    matrices = {"attn_q_a.weight": [128, 512], "attn_kv_a_mqa.weight": [128, 512]}
    dense = {"norm": [128], "gate_inp": [128, 2], "gate_shexp": [128, 192], "up_shexp": [128, 192]}
    dense |= {"down_shexp": [192, 128], "gate_exps": [128, 192, 2], "up_exps": [128, 192, 2]}
    dense |= {"down_exps": [192, 128, 2]}
    last = {**attention, **norms, **matrices, **{f"{name}.weight": shape for name, shape in streams.items()}}
    last |= {f"ffn_{name}.weight": shape for name, shape in dense.items()} | {"exp_probs_b.bias": [2]}
    delta: dict[str, list[int]] = {"ssm_a": [2], "ssm_dt.bias": [256], "ssm_beta.weight": [128, 2]}
    delta |= {f"attn_{part}.weight": [128, 256] for part in "qkv"} | {"attn_output.weight": [256, 128]}
    delta |= {f"attn_{part}.bias": [256] for part in "qkv"}
    delta |= {f"ssm_conv1d_{part}.weight": [4, 1, 256] for part in "qkv"}
    delta |= {f"ssm_{part}_b.weight": [128, 256] for part in "fg"}
    layers = {0: attention, 1: delta, 2: last}
    return "glm5-next-moe", {
        "set_keys": {
            "block_count": ("UINT32", 3),
            "attention.head_count": ("UINT32", 2),
            "attention.head_count_kv": (["ARRAY", "UINT32"], [1, 0, 1]),
            "attention.indexer.types": (["ARRAY", "UINT32"], [1, 1, 0]),
            "attention.indexer.top_k": ("UINT32", n_chosen),
            "swiglu_clamp_exp": (["ARRAY", "FLOAT32"], [0.5] * 3),
            "swiglu_clamp_shexp": (["ARRAY", "FLOAT32"], [0.7] * 3),
        },
        "reshape": {f"blk.{i}.{name}": shape for i, layer in layers.items() for name, shape in layer.items()},
    }


LATENTS: dict[str, Variant] = {
    "minicpm3-heads": _minicpm3(n_heads=3, nope=32, n_rot=16, value_dim=48, rank=96),
    "minicpm3-many-heads": _minicpm3(n_heads=20, nope=24, n_rot=10, value_dim=24, rank=40),
    "deepseek2-heads": _deepseek(),
    "deepseek2-old-file": _old_file(),
    "deepseek2-lite": _lite(),
    "deepseek2-yarn": _deepseek(**_YARN),
    "deepseek2-linear": _deepseek(rope__scaling__factor=("FLOAT32", 4.0)),
    "deepseek32-few-keys": _sparse("deepseek32", 7),
    "deepseek32-many-keys": _sparse("deepseek32", 70, **_YARN),
    "glm-dsa-shared-choice": _sparse("glm-dsa", 12, attention__indexer__types=(["ARRAY", "UINT32"], [1, 0])),
    "dots3note-few-keys": _windowed(12),
    "hy_v4-few-keys": _hy_v4(9),
    "hy_v4-no-indexer": _hy_v4(0),
    "glm5-next-few-pools": _pooled(12),
    "mistral4-yarn": _deepseek("mistral4", **_YARN),
    "mistral4-temperature": _deepseek("mistral4", **_YARN, **_TEMPERATURE),
}
"""name -> (spec, arguments of build_variant)"""
