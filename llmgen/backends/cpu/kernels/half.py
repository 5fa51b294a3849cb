"""Half precision to single and back, also on processors that cannot convert.

Without F16C, LLVM would call its runtime library for a conversion, which is not in the
process; integer arithmetic gives the same bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from llmgen.backends.cpu.runtime.cpu import target

SOFT = target().level == "generic" and target().is_x86
"""Whether conversions are done with integer arithmetic."""


def _like(v: Any, element: ir.Type) -> ir.Type:
    """``element``, or a vector of it as long as v."""
    return ir.VectorType(element, v.type.count) if isinstance(v.type, ir.VectorType) else element


def _all(kind: ir.Type, value: float) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def extend(b: Any, v: Any) -> Any:
    """i16 bits of half-precision values (a scalar or a vector) -> f32."""
    floats = _like(v, ir.FloatType())
    if not SOFT:
        return b.fpext(b.bitcast(v, _like(v, ir.HalfType())), floats)
    ints = _like(v, ir.IntType(32))
    wide = b.zext(v, ints)
    magnitude = b.shl(b.and_(wide, _all(ints, 0x7FFF)), _all(ints, 13))
    # a float with the same exponent field is 2^112 times too small, also where the half is subnormal
    finite = b.bitcast(b.fmul(b.bitcast(magnitude, floats), _all(floats, 2.0**112)), ints)
    special = b.icmp_unsigned(">=", magnitude, _all(ints, 0x7C00 << 13))
    magnitude = b.select(special, b.or_(magnitude, _all(ints, 0x7F800000)), finite)
    sign = b.shl(b.and_(wide, _all(ints, 0x8000)), _all(ints, 16))
    return b.bitcast(b.or_(magnitude, sign), floats)


def narrow(b: Any, v: Any) -> Any:
    """f32 (a scalar or a vector) -> i16 bits of the nearest half-precision values, ties to even."""
    shorts = _like(v, ir.IntType(16))
    if not SOFT:
        return b.bitcast(b.fptrunc(v, _like(v, ir.HalfType())), shorts)
    floats, ints = v.type, _like(v, ir.IntType(32))
    bits = b.bitcast(v, ints)
    magnitude = b.and_(bits, _all(ints, 0x7FFFFFFF))
    # adding 0.5 rounds a number below 2^-14 to a multiple of 2^-24, the step of subnormal halves
    small = b.sub(
        b.bitcast(b.fadd(b.bitcast(magnitude, floats), _all(floats, 0.5)), ints), _all(ints, 0x3F000000)
    )
    odd = b.and_(b.lshr(magnitude, _all(ints, 13)), _all(ints, 1))
    rounded = b.add(b.add(magnitude, odd), _all(ints, 0xFFF - (112 << 23)))
    out = b.select(
        b.icmp_unsigned("<", magnitude, _all(ints, 0x38800000)), small, b.lshr(rounded, _all(ints, 13))
    )
    out = b.select(b.icmp_unsigned(">=", magnitude, _all(ints, 0x47800000)), _all(ints, 0x7C00), out)
    out = b.select(b.icmp_unsigned(">", magnitude, _all(ints, 0x7F800000)), _all(ints, 0x7E00), out)
    sign = b.and_(b.lshr(bits, _all(ints, 16)), _all(ints, 0x8000))
    return b.trunc(b.or_(out, sign), shorts)
