"""Tiny models with recurrent layers whose sizes, optional tensors, experts and patterns the specs do not cover.

The same form as ``variants.VARIANTS``, which has them too; specs whose names end with "-moe" are named whole.
"""

from __future__ import annotations

from typing import Any

from archs import read_spec

MATRIX = ("weight", "bias")


def _whole(n: int) -> tuple[str, int]:
    return "UINT32", n


def _numbers(*values: int) -> tuple[list[str], list[int]]:
    return ["ARRAY", "UINT32"], list(values)


def _layer(spec: str, source: int, copy: int) -> dict[str, list[int]]:
    """The tensors of a layer once more, as those of another."""
    prefix = f"blk.{source}."
    tensors = [(name, shape) for name, shape in read_spec(spec)["tensors"] if name.startswith(prefix)]
    return {f"blk.{copy}.{name[len(prefix) :]}": shape for name, shape in tensors}


def _experts(layer: int, n_ff: int, *, gate: bool = True, width: int = 256) -> dict[str, list[int]]:
    """Four experts."""
    name = f"blk.{layer}.ffn_"
    shapes = {f"{name}up_exps.weight": [width, n_ff, 4], f"{name}down_exps.weight": [n_ff, width, 4]}
    if gate:
        shapes[f"{name}gate_exps.weight"] = [width, n_ff, 4]
    return {f"{name}gate_inp.weight": [256, 4], **shapes}


def _shared(layer: int, n_ff: int, parts: tuple[str, ...] = ("gate", "up")) -> dict[str, list[int]]:
    name = f"blk.{layer}.ffn_"
    return {f"{name}{part}_shexp.weight": [256, n_ff] for part in parts} | {
        f"{name}down_shexp.weight": [n_ff, 256]
    }


TWO_OF_FOUR = {"expert_count": _whole(4), "expert_used_count": _whole(2)}
DENSE = tuple(f"ffn_{part}.{kind}" for part in ("gate", "up", "down") for kind in MATRIX)
ATTENTION = tuple(
    f"attn_{part}"
    for part in ("q_norm.weight", "k_norm.weight", "output.weight")
    + tuple(f"{p}.{kind}" for p in "qkv" for kind in MATRIX)
)


def _delta_heads(**more: list[int]) -> dict[str, Any]:
    """Four heads of v and two of k, of 64 values each, in the first layer."""
    sizes = {"inner_size": 256, "state_size": 64, "time_step_rank": 4, "group_count": 2}
    shapes = {
        "ssm_conv1d.weight": [4, 512],
        "ssm_a": [4],
        "ssm_dt.bias": [4],
        "ssm_norm.weight": [64],
        "ssm_out.weight": [256, 256],
        **{name.replace("__", "."): shape for name, shape in more.items()},
    }
    return {
        "set_keys": {f"ssm.{key}": _whole(n) for key, n in sizes.items()},
        "reshape": {f"blk.0.{name}": shape for name, shape in shapes.items()},
    }


MODERN = {"attn_qkv__weight": [256, 512], "attn_gate__weight": [256, 256]}
NEXT = {"ssm_ba__weight": [256, 8], "ssm_in__weight": [256, 768]}


def _nemotron(latent: int) -> dict[str, Any]:
    """Nemotron H with experts, which get ``latent`` values where that is not 0."""
    keys = {
        **TWO_OF_FOUR,
        "expert_feed_forward_length": _whole(96),
        "expert_shared_feed_forward_length": _whole(128),
        "expert_weights_norm": ("BOOL", True),
        "expert_weights_scale": ("FLOAT32", 2.5),
        "moe_latent_size": _whole(latent),
    }
    shapes = {
        **_experts(2, 96, gate=False, width=latent or 256),
        **_shared(2, 128, ("up",)),
        "blk.2.exp_probs_b.bias": [4],
    }
    if latent:
        narrow = {"down": [256, latent], "up": [latent, 256]}
        shapes |= {f"blk.2.ffn_latent_{part}.weight": shape for part, shape in narrow.items()}
    return {"set_keys": keys, "drop_tensors": DENSE, "reshape": shapes}


def _kimi_heads(gates: tuple[str, ...]) -> dict[str, Any]:
    """Two heads in both layers; gates: the last matrices of forgetting and gating."""
    latent = {
        "attn_k_b.weight": [128, 512, 2],
        "attn_v_b.weight": [512, 128, 2],
        "attn_output.weight": [256, 128],
    }
    delta = {
        "attn_output.weight": [256, 128],
        **{f"attn_{part}.weight": [128, 256] for part in "qkv"},
        **{f"attn_{part}.bias": [256] for part in "qkv"},
        **{f"ssm_conv1d_{part}.weight": [4, 1, 256] for part in "qkv"},
        **{f"ssm_{gate}.weight": [128, 256] for gate in gates},
        "ssm_a": [2] if "g" in gates else [1, 2],
        "ssm_dt.bias": [256],
        "ssm_beta.weight": [128, 2],
    }
    return {
        "set_keys": {"attention.head_count": _numbers(2, 0)},
        "reshape": {
            f"blk.{i}.{name}": shape for i, part in ((0, latent), (1, delta)) for name, shape in part.items()
        },
    }


def _joined(first: dict[str, Any], set_keys: dict[str, Any], reshape: dict[str, list[int]]) -> dict[str, Any]:
    return {"set_keys": first["set_keys"] | set_keys, "reshape": first["reshape"] | reshape}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba-normed": ("mamba", {"set_keys": {"ssm.dt_b_c_rms": ("BOOL", True)}}),
    "mamba-small": (
        "mamba",
        {
            "set_keys": {
                "ssm.conv_kernel": _whole(2),
                "ssm.state_size": _whole(16),
                "ssm.time_step_rank": _whole(16),
            },
            "reshape": {
                f"blk.{i}.ssm_{name}": shape
                for i in range(2)
                for name, shape in (
                    *(("conv1d.weight", [2, 512]), ("a", [16, 512])),
                    *(("x.weight", [512, 48]), ("dt.weight", [16, 512])),
                )
            },
        },
    ),
    "mamba2-one-group": (
        "mamba2",
        {
            "set_keys": {"ssm.time_step_rank": _whole(8), "ssm.group_count": _whole(1)},
            "reshape": {
                f"blk.{i}.ssm_{name}": shape
                for i in range(2)
                for name, shape in (
                    *(("in.weight", [256, 1288]), ("conv1d.weight", [4, 768]), ("conv1d.bias", [768])),
                    *(("a", [1, 8]), ("d", [1, 8]), ("dt.bias", [8]), ("norm.weight", [512, 1])),
                )
            },
        },
    ),
    "falcon-h1-bare": (  # a key that the architecture does not read
        "falcon-h1",
        {
            "set_keys": {"attention.scale": ("FLOAT32", 0.2)},
            "drop_tensors": ("ssm_norm.weight", "rope_freqs.weight"),
        },
    ),
    "jamba-experts": (
        "jamba",
        {
            "set_keys": TWO_OF_FOUR,
            "drop_tensors": tuple(f"blk.1.{name}" for name in DENSE),
            "reshape": _experts(1, 384),
        },
    ),
    "granitehybrid-experts": (
        "granitehybrid",
        {
            "set_keys": {**TWO_OF_FOUR, "expert_shared_feed_forward_length": _whole(192)},
            "drop_tensors": DENSE,
            "reshape": {k: v for i in range(2) for k, v in (_experts(i, 384) | _shared(i, 192)).items()},
        },
    ),
    "nemotron_h_moe-experts": ("nemotron_h_moe", _nemotron(0)),
    "nemotron_h_moe-narrow": ("nemotron_h_moe", _nemotron(64)),
    "qwen35-shared-keys": (
        "qwen35",
        _delta_heads(**MODERN, ssm_alpha__weight=[256, 4], ssm_beta__weight=[256, 4]),
    ),
    "qwen3next-shared-keys": ("qwen3next-moe", _delta_heads(**MODERN, **NEXT)),
    "qwen3next-old-file": (
        "qwen3next-moe",
        {**_delta_heads(**NEXT), "drop_tensors": ("attn_qkv.weight", "attn_gate.weight")},
    ),
    "qwen35-drafts": (  # a layer that guesses a further token
        "qwen35",
        {
            "set_keys": {
                "block_count": _whole(3),
                "nextn_predict_layers": _whole(1),
                "attention.recurrent_layers": _numbers(1, 0, 0),
            },
            "reshape": {
                **_layer("qwen35-dense", 1, 2),
                "blk.2.nextn.eh_proj.weight": [512, 256],
                "blk.2.nextn.enorm.weight": [256],
                "blk.2.nextn.hnorm.weight": [256],
            },
        },
    ),
    "qwen35-default-pattern": (
        "qwen35",
        {
            "set_keys": {"block_count": _whole(4)},
            "drop_keys": ("attention.recurrent_layers",),
            "drop_tensors": tuple(f"blk.1.{name}" for name in ATTENTION),
            "reshape": {
                **_layer("qwen35-dense", 0, 1),
                **_layer("qwen35-dense", 0, 2),
                **_layer("qwen35-dense", 1, 3),
            },
        },
    ),
    "kimi-linear-two-heads": (
        "kimi-linear-moe",
        _joined(_kimi_heads(("f_b", "g_b")), {}, {"blk.0.attn_q.weight": [128, 384]}),
    ),
    "bailingmoe3-two-heads": (
        "bailingmoe3-moe",
        _joined(
            _kimi_heads(("f_a", "g_a")),
            {},
            {"blk.0.attn_q_b.weight": [512, 384], "blk.0.attn_gate.weight": [128, 2]},
        ),
    ),
    "kimi-k3-blocks": (  # each layer begins one
        "kimi-k3-moe",
        _joined(
            _kimi_heads(("f_b", "g")),
            {"attn_res.block_size": _whole(1)},
            {"blk.0.attn_q_b.weight": [512, 384], "blk.0.attn_gate.weight": [128, 256]},
        ),
    ),
    "minimax-01-four-layers": (
        "minimax-01-moe",
        {
            "set_keys": {
                "block_count": _whole(4),
                "attention.recurrent_layers": _numbers(1, 0, 1, 0),
            },
            "reshape": {**_layer("minimax-01-moe", 0, 2), **_layer("minimax-01-moe", 1, 3)},
        },
    ),
}
