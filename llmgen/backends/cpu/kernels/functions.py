"""exp, tanh and the activation functions, 16 lanes at a time."""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.simd import (
    absolute,
    at_least,
    at_most,
    bits_float,
    constant,
    f32x16,
    fma,
    nearest,
    shift,
    to_int,
)
from llmgen.backends.cpu.kernels.simd import i32x16 as _i32x16

_exponent = shift(_i32x16, "shl", [23] * 16)
_bias = constant(_i32x16, [127] * 16)


def _all(value: float):  # type: ignore[no-untyped-def]
    return constant(f32x16, [float(np.float32(value))] * 16)


one, two = _all(1.0), _all(2.0)
# 88.8 makes the exponent field that of infinity
# and e^-87.3 is a normal number: arithmetic with smaller ones takes a hundred times as long
_exp_max, _exp_min = _all(88.8), _all(-87.3)
LOG2E, LN2_HIGH, LN2_LOW = 1.44269504, -0.693359375, 2.12194440e-4
EXP_TERMS = (
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
    *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
)
"""Minimax polynomial of Cephes' expf for (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2."""
_log2e, _ln2_high, _ln2_low = _all(LOG2E), _all(LN2_HIGH), _all(LN2_LOW)
_p0, _p1, _p2, _p3, _p4, _p5 = map(_all, EXP_TERMS)
_gelu_outer, _gelu_inner = _all(0.7978845608028654), _all(0.044715)
_zero, _half, _root_half, _quick = _all(0.0), _all(0.5), _all(0.7071067811865476), _all(-1.702)
_seven, _minus_seven = _all(7.0), _all(-7.0)
_s3, _s5, _s7, _s9, _s11, _s13 = (_all(1 / n) for n in (3, 5, 7, 9, 11, 13))
_erf_p, _erf1, _erf2 = _all(0.3275911), _all(0.254829592), _all(-0.284496736)
_erf3, _erf4, _erf5 = _all(1.421413741), _all(-1.453152027), _all(1.061405429)


@inline
def exp(x):  # type: ignore[no-untyped-def]
    """e^x to about 1 ulp; infinite above 88.37; below -87.3 about 1.2e-38; a NaN stays NaN."""
    clipped = at_least(at_most(x, _exp_max()), _exp_min())
    n = nearest(clipped * _log2e())
    r = fma(n, _ln2_low(), fma(n, _ln2_high(), clipped))
    p = fma(_p0(), r, _p1())
    p = fma(p, r, _p2())
    p = fma(p, r, _p3())
    p = fma(p, r, _p4())
    p = fma(p, r, _p5())
    p = fma(p, r * r, r + one())
    return p * bits_float(_exponent(to_int(n) + _bias()))


@inline
def softplus(x):  # type: ignore[no-untyped-def]
    """ln(1 + e^x) = max(x, 0) + ln(1 + u) with u = e^-|x|; to about 2 ulp.

    ln(1 + u) = 2 artanh(s) with s = u / (2 + u), at most 1/3; the series s + s^3/3 + s^5/5 ... is cut off
    where a term is less than 2e-8 of the sum.
    """
    u = exp(_zero() - absolute(x))
    s = u / (u + two())
    z = s * s
    p = fma(_s13(), z, _s11())
    p = fma(p, z, _s9())
    p = fma(p, z, _s7())
    p = fma(p, z, _s5())
    p = fma(p, z, _s3())
    return relu(x) + two() * fma(p * z, s, s)


@inline
def tanh(x):  # type: ignore[no-untyped-def]
    """1 - 2 / (e^2x + 1)."""
    return one() - two() / (exp(x + x) + one())


@inline
def silu(x):  # type: ignore[no-untyped-def]
    """x / (1 + e^-x)."""
    return x / (one() + exp(_zero() - x))


@inline
def gelu(x):  # type: ignore[no-untyped-def]
    """The tanh form: x/2 (1 + tanh(z)), z = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, arXiv:1606.08415).

    Computed as x / (1 + e^-2z), which is the same and does not cancel where x is negative.
    """
    z = _gelu_outer() * fma(_gelu_inner() * x * x, x, x)
    return x / (one() + exp(_zero() - (z + z)))


@inline
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + e^-x)."""
    return one() / (one() + exp(_zero() - x))


@inline
def gelu_quick(x):  # type: ignore[no-untyped-def]
    """x sigmoid(1.702 x)."""
    return x / (one() + exp(_quick() * x))


@inline
def swiglu_oai(gate, up):  # type: ignore[no-untyped-def]
    """gelu_quick(gate) * (up + 1), the gate at most 7, up within -7 and 7; a NaN in either stays one."""
    return gelu_quick(at_most(gate, _seven())) * (at_least(at_most(up, _seven()), _minus_seven()) + one())


@inline
def relu(x):  # type: ignore[no-untyped-def]
    """max(x, 0); a NaN stays NaN."""
    return at_least(x, _zero())


@inline
def relu_squared(x):  # type: ignore[no-untyped-def]
    """max(x, 0)^2."""
    positive = relu(x)
    return positive * positive


@inline
def gelu_erf(x):  # type: ignore[no-untyped-def]
    """x/2 (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, arXiv:1606.08415).

    erf by the rational approximation 7.1.26 of Abramowitz and Stegun, whose error is below 1.5e-7:
    with t = 1 / (1 + p |z|) it is 1 - (a1 t + ... + a5 t^5) e^(-z^2), so half of that polynomial
    is the tail that is missing from 1 where x is positive, and all there is where it is negative.
    """
    z = absolute(x) * _root_half()
    t = one() / fma(_erf_p(), z, one())
    p = fma(_erf5(), t, _erf4())
    p = fma(p, t, _erf3())
    p = fma(p, t, _erf2())
    p = fma(p, t, _erf1())
    tail = absolute(x) * _half() * p * t * exp(_zero() - z * z)
    return relu(x) - tail
