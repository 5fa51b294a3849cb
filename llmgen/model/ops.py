"""The vocabulary in which architectures write their forward pass.

Each backend implements it.  ``llmgen.backends.numpy`` computes at once; the recorders of
``llmgen.backends.cpu`` record a program that is run later.  So a forward pass must not look
at the numbers in a value, and nothing here refers to addresses, threads or devices.

A value of n stands for float32 [tokens, n], for the tokens of the current run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from llmgen.model.ngrams import NGrams
from llmgen.model.rope import Rope
from llmgen.model.weights import Experts, Matrix, Vector

Value: TypeAlias = Any
"""A backend's own class with an attribute ``n``."""
StateHandle: TypeAlias = Any
"""A backend's own class: one of the states that the architecture asked for, in a sequence."""
ChosenKeys: TypeAlias = Any
"""A backend's own class: which keys each token attends to."""
ChosenBlocks: TypeAlias = Any
"""A backend's own class: which blocks of keys each token attends to with each key/value head."""
Choice: TypeAlias = Any
"""A backend's own class: which experts each token takes, and with which weights."""
Scores: TypeAlias = Literal["softmax", "sigmoid", "softmax_chosen", "sqrt_softplus"]
"""The scores that weight experts: softmax, sigmoid or the square root of the softplus of the router's logits, or the
softmax over the chosen experts' logits only."""


class Ops(Protocol):
    """What a forward pass may do.  A value must not be changed in place once it has been used elsewhere."""

    @property
    def n_ctx(self) -> int:
        """The context length, in tokens, that the model was opened with."""

    def embed(self, w: Matrix, scale: float = 1.0) -> Value:
        """scale * w.factor * the row of w that belongs to each token: [tokens, w.n_cols]."""

    def embed_positions(self, w: Matrix) -> Value:
        """The row of w that belongs to each token's position: [tokens, w.n_cols].  w must have ``n_ctx`` rows."""

    def embed_ngrams(self, w: Matrix, ngrams: NGrams, state: StateHandle) -> Value:
        """The rows of w for the n-grams that end at each token: [tokens, ngrams.n_heads * w.n_cols].

        w.n_cols is a multiple of 16; state: ``ngrams.state``.
        """

    def rms_norm(self, x: Value, w: Vector, eps: float) -> Value:
        """x / sqrt(mean(x^2) + eps) * w over the whole width."""

    def layer_norm(self, x: Value, w: Vector, bias: Vector | None, eps: float) -> Value:
        """(x - mean) / sqrt(var + eps) * w + bias over the whole width."""

    def head_rms_norm(self, x: Value, w: Vector, n_heads: int, eps: float) -> Value:
        """``rms_norm`` of each of the n_heads heads of x separately, in place.

        w: [head_dim] for all heads, or [n_heads, head_dim].
        """

    def head_layer_norm(self, x: Value, w: Vector, n_heads: int, eps: float) -> Value:
        """As ``head_rms_norm``, with ``layer_norm`` without a bias."""

    def rope(
        self,
        x: Value,
        n_heads: int,
        rope: Rope,
        scale: float = 1.0,
        position_scale: np.ndarray | None = None,
    ) -> Value:
        """Rotate each of the n_heads heads of x by its token's position, times ``scale``; in place.

        rope: says which values of a head are rotated; ``scale`` multiplies all of them.
        position_scale: a further factor for each position, float32 [n_ctx].
        """

    def store(self, k: Value | None, v: Value | None, state: StateHandle) -> None:
        """Append keys [tokens, n_kv_heads * key_dim] and values to a ``KV`` state.

        To a ``Latent`` state: its position part [tokens, position_dim], and its content as values.
        To a ``Contents`` state: the content as keys.
        None for a part of size 0.
        """

    def attend(
        self,
        q: Value,
        state: StateHandle,
        n_heads: int,
        cap: float = 0.0,
        slopes: np.ndarray | None = None,
        sinks: Vector | None = None,
        chosen: ChosenBlocks | ChosenKeys | None = None,
    ) -> Value:
        """softmax(q k^T) v over a ``KV`` state, within its window: [tokens, n_heads * value_dim].

        q is already scaled.  cap: scores become cap * tanh(score / cap); 0: unchanged.
        slopes, float32 [n_heads]: a score is reduced by its head's slope times the distance in
        positions (ALiBi).  sinks [n_heads]: an extra score for each head, whose value vector is zero.
        chosen: the blocks that each token sees, only for a state without a window and without slopes; or the keys,
        the same for all heads.
        """

    def attend_latent(
        self,
        content: Value,
        position: Value | None,
        state: StateHandle,
        n_heads: int,
        cap: float = 0.0,
        sinks: Vector | None = None,
        chosen: ChosenKeys | None = None,
    ) -> Value:
        """softmax(content . c + position . p) c over contents c and position parts p of a ``Latent`` state.

        content [tokens, n_heads * content_dim] and position [tokens, n_heads * position_dim] are
        the queries, already scaled; position: None if that part has size 0; cap and sinks as in
        ``attend``; chosen: the keys that a token sees.  Returns [tokens, n_heads * content_dim].
        """

    def choose_keys(
        self, q: Value, weights: Value | Vector, state: StateHandle, n_heads: int, k: int
    ) -> ChosenKeys:
        """The k keys in a ``KV`` state with the largest scores for each token, or all if there are no more than k.

        If each key stands for a stretch of tokens, only stretches that end at the token or before it are considered.

        The score of a key is the sum over heads of weights[head] * max(0, q[head] . key) (DeepSeek
        V3.2's lightning indexer); on a tie the earlier key comes first.  q [tokens, n_heads *
        key_dim], weights [tokens, n_heads], or a vector for all tokens.
        """

    def choose_blocks(
        self, q: Value, state: StateHandle, n_heads: int, block: int, k: int, local: int
    ) -> ChosenBlocks:
        """The k blocks of ``block`` neighbouring keys with the largest scores for each token and head, or all blocks.

        The score of a block is its largest q[head] . key, over the keys in a ``KV`` state of one head that the
        token sees.  The token's own block and the local - 1 before it come first; on a tie
        the earlier block (MiniMax M3).  q [tokens, n_heads * key_dim].
        """

    def summarize(
        self,
        x: Value,
        scores: Value | None,
        state: StateHandle,
        into: StateHandle,
        *,
        offsets: Vector | None = None,
        norm: Vector | None,
        eps: float,
        rope: Rope,
    ) -> None:
        """Append to ``into`` a summary of each stretch of ``into.every`` tokens that this run completes.

        A summary is a sum of x over the tokens of a stretch: the i-th is weighted, value by value, by the
        softmax over the stretch of scores + offsets[i]; without scores it is their mean.  Then it is normed
        (``rms_norm``) unless ``norm`` is None, and rotated by the position of the first token.
        x and scores are as wide as a summary, or twice as wide: then the first half counts for the
        stretch behind the token's own, and a summary covers two stretches (DeepSeek V4).  offsets:
        [every, x.n].  state: ``sums``; into: a ``KV`` state of one head, as keys, or a ``Contents`` state.
        """

    def stretch_tokens(self, chosen: ChosenKeys, state: StateHandle) -> ChosenKeys:
        """The tokens of the chosen stretches, and those after the last complete one; state: that of the summaries."""

    def attend_contents(
        self,
        q: Value,
        state: StateHandle,
        n_heads: int,
        sinks: Vector | None = None,
        chosen: ChosenKeys | None = None,
    ) -> Value:
        """softmax(q . c) c over what a token sees of a ``Contents`` state: [tokens, n_heads * dim].

        q is already scaled.  chosen: the summaries to attend to, by default all.
        """

    def linear_heads(self, x: Value, w: Sequence[Matrix], turned: bool = False) -> Value:
        """Each head of x times its own matrix, one for each in w: [tokens, len(w) * rows of a matrix].

        turned: x @ w instead of x @ w.T, [tokens, len(w) * columns of a matrix].
        """

    def linear(self, x: Value, w: Matrix, bias: Vector | None = None) -> Value:
        """x @ w.T * w.factor + bias: [tokens, w.n_cols] -> [tokens, w.n_rows]."""

    def add(self, x: Value, y: Value | Vector) -> Value:
        """x + y, element by element; a vector y is added to every token."""

    def multiply(self, x: Value, y: Value | Vector) -> Value:
        """x * y, element by element; a vector y multiplies every token."""

    def scale(self, x: Value, factor: float) -> Value:
        """factor * x."""

    def clamp(self, x: Value, limit: float) -> Value:
        """x with every value limited to -limit .. limit."""

    def at_most(self, x: Value, limit: float) -> Value:
        """min(x, limit), element by element."""

    def activate(self, x: Value, activation: str) -> Value:
        """activation(x), element by element.

        activation: 'silu', 'gelu' (its tanh form), 'gelu_erf' (the exact one), 'gelu_quick',
        'relu', 'relu_squared', 'sigmoid', 'softplus', 'exp' or 'tanh'.
        """

    def gated(self, gate: Value, up: Value, activation: str) -> Value:
        """activation(gate) * up, element by element; activations: those of ``activate`` up to 'relu', and 'sigmoid'.

        'swiglu_oai' (GPT-OSS): gelu_quick(gate) * (up + 1), the gate at most 7, up within -7 and 7.
        """

    def gate_heads(self, x: Value, gate: Value, activation: str = "sigmoid") -> Value:
        """Each head of x times activation(its gate), 'sigmoid' or 'softplus'; gate: [tokens, n_heads]."""

    def head_part(self, x: Value, n_heads: int, first: int, count: int) -> Value:
        """The ``count`` values from ``first`` on of each of the n_heads heads of x: [tokens, n_heads * count]."""

    def convolve(self, x: Value, w: Vector, bias: Vector | None, state: StateHandle) -> Value:
        """A causal convolution over the last tokens, with separate weights for each column of x: [tokens, x.n].

        The sum over i < taps of w[i] * (x of the token taps - 1 - i tokens earlier), plus bias.
        w: [taps, x.n], with at least two taps; state: ``Recurrent(x.n, taps - 1)``, the inputs
        before the run's first token, zeros at the start of a sequence.
        """

    def linear_attend(
        self,
        q: Value,
        k: Value,
        v: Value,
        decay: Value | Vector,
        state: StateHandle,
        n_heads: int,
        *,
        write: Value | None = None,
        skip: Vector | None = None,
        delta: bool = False,
        tiled: bool = False,
    ) -> Value:
        """q S + skip * v, where S accumulates k v^T and decays: [tokens, n_heads * value_dim].

        For each head and token S = decay * S + k (write * v)^T, S being [key_dim, value_dim] of
        ``Recurrent(value_dim, n_heads * key_dim)``.  With ``delta``, what k reads from the decayed S is
        first subtracted from v, so that it is replaced: the delta rule.
        q, k: [tokens, n * key_dim], where n divides n_heads; each of the n heads serves neighbouring heads,
        or every n-th head if ``tiled`` is set.  decay: [tokens, n_heads], one factor for a head, or
        [tokens, n_heads * key_dim], one for each row of S; write: [tokens, n_heads], by default 1;
        skip: [n_heads].
        """

    def selective_scan(
        self, x: Value, step: Value, a: Vector, b: Value, c: Value, skip: Vector, state: StateHandle
    ) -> Value:
        """Mamba's scan, in which each column of x has a state h of its own: [tokens, x.n].

        For each token and column h = exp(step * a) * h + step * x * b; the result is c . h + skip * x.
        step: [tokens, x.n]; a: [size, x.n]; b, c: [tokens, size]; skip: [x.n]; state:
        ``Recurrent(x.n, size)``.
        """

    # ---- residuals of several streams ------------------------------------------------

    def blend(self, x: Value, weights: Value | Vector, n_parts: int) -> Value:
        """Weighted sums of the parts of x, ``n_parts`` of them: [tokens, n_parts * size of a part].

        Part j of the result is the sum over i of weights[i * n_parts + j] * part i of x; so x has
        weights.n / n_parts parts, side by side and of the same size.  weights: for each token, or a
        vector for all tokens.
        """

    def root_products(self, x: Value, y: Value, n_heads: int, scale: float, least: float) -> Value:
        """sign(p) sqrt(max(|p|, least)) of p = scale * (x . y), for each head: [tokens, n_heads]."""

    def sinkhorn(self, x: Value, rounds: int, eps: float) -> Value:
        """Each token's square matrix, stored row by row, made nearly doubly stochastic: [tokens, x.n].

        softmax of each row, plus eps; then the columns are divided by their sums plus eps, and ``rounds`` - 1 times
        more the rows and then the columns (Sinkhorn and Knopp, 1967).
        """

    # ---- mixtures of experts ---------------------------------------------------------

    def choose_experts(
        self,
        logits: Value,
        n_used: int,
        scores: Scores = "softmax",
        *,
        bias: Vector | None = None,
        groups: tuple[int, int] = (1, 1),
        normalize: bool = False,
        scale: float = 1.0,
        shared_by: int = 1,
    ) -> Choice:
        """The n_used best experts for each token, by the router's logits [tokens, n_experts].

        bias [n_experts]: added to the scores for the choice, not for the weights (DeepSeek V3,
        arXiv:2412.19437).  groups (n, m): the experts lie in n groups of the same size, and
        are chosen from the m groups whose two best scores have the largest sum.  The weights are
        the scores, divided by their sum if ``normalize``, times ``scale``.  On a tie the expert
        with the lower number comes first; NaN counts as the best.
        shared_by: this many neighbouring logits stand for one expert, whose number is theirs divided by
        it; several of them may choose it, and it has the score of the logit with its number.
        """

    def look_up_experts(
        self, logits: Value, table: np.ndarray, *, normalize: bool = False, scale: float = 1.0
    ) -> Choice:
        """The experts that a table, int64 [vocabulary, n_used], names for each token id.

        Their weights are those of ``choose_experts`` with the scores "sqrt_softplus".
        """

    def expert_linear(
        self,
        x: Value,
        w: Experts,
        choice: Choice,
        bias: Matrix | None = None,
        scales: Vector | None = None,
    ) -> Value:
        """x @ w[e].T * scales[e] + bias[e] for each expert e that a token has chosen: [tokens, n_used, w.n_rows].

        x: a value with a row for each token, or one that already has a row for each chosen expert.
        bias: [n_experts, w.n_rows], float32 in the file; scales: [n_experts].

        Values with a row for each chosen expert may go through operations that work element by
        element on equal shapes, such as ``gated``, until ``mix`` adds them up.
        """

    def spread(self, x: Value, choice: Choice) -> Value:
        """x times the weight of each chosen expert: [tokens, n_used, x.n].  Its sum is a ``mix`` without weights."""

    def mix(self, x: Value, choice: Choice, *, weighted: bool = True) -> Value:
        """The sum over the chosen experts of weight * x[expert], the best expert first: [tokens, x.n]."""

    def logits(self, x: Value, w: Matrix, bias: Vector | None = None, cap: float = 0.0) -> None:
        """``linear`` for the tokens whose logits are wanted, soft-capped.  Ends the forward pass."""
