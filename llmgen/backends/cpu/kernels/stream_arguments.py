"""The arguments of the steps for residuals of several streams; see arguments.py, whose words hold here too."""

from __future__ import annotations

from typing import Any, NamedTuple

from llmgen.backends.cpu.kernels.arguments import TABLES


class Blend(NamedTuple):
    """streams:blend: weighted sums of the parts of a token."""

    x: Any  # float32 [tokens][n_in][n]
    x_stride: Any
    weights: Any  # float32 [tokens][n_in][n_out]
    weights_stride: Any  # 0: the same for all tokens
    n_in: Any
    n_out: Any
    n: Any  # values of a part
    out: Any  # float32 [tokens][n_out][n]
    out_stride: Any
    split_tokens: Any
    control: Any


class RootProducts(NamedTuple):
    """streams:root_products: the signed root of scale * (x . y) for each head."""

    x: Any  # float32 [tokens][heads][n]
    x_stride: Any
    y: Any
    y_stride: Any
    heads: Any
    n: Any
    scale: float
    least: float
    out: Any  # float32 [tokens][heads]
    out_stride: Any
    split_tokens: Any
    control: Any


class Sinkhorn(NamedTuple):
    """streams:sinkhorn: the square matrix of each token, made nearly doubly stochastic."""

    x: Any  # float32 [tokens][size][size]
    x_stride: Any
    size: Any
    rounds: Any
    eps: float
    out: Any
    out_stride: Any
    split_tokens: Any
    control: Any


TABLES.update({"streams:blend": Blend, "streams:root_products": RootProducts, "streams:sinkhorn": Sinkhorn})
