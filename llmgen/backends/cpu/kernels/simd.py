"""A small vocabulary of SIMD values for Numba.

A ``Vec`` is an LLVM vector seen as a scalar Numba type: it can be passed, returned
and kept in a variable, and ``+ - * / & | ^`` work lane by lane.  Kernels use the
width of one 512-bit register throughout (16 float lanes); on a CPU with narrower
registers LLVM splits each operation in two, which costs nothing but registers.

No operation here may be reassociated or contracted by the compiler: a kernel that
wants a fused multiply-add says ``fma``.  So every CPU computes the same bits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

from llmgen.backends.cpu.kernels import half

_ELEMENTS = {
    "f32": ir.FloatType(),
    "i64": ir.IntType(64),
    "i32": ir.IntType(32),
    "i16": ir.IntType(16),
    "i8": ir.IntType(8),
}
I32 = ir.IntType(32)
I64 = ir.IntType(64)


class Vec(types.Type):
    """``n`` lanes of ``elem`` ('f32', 'i64', 'i32', 'i16' or 'i8')."""

    def __init__(self, elem: str, n: int) -> None:
        self.elem, self.n = elem, n
        super().__init__(name=f"simd.{elem}x{n}")

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(_ELEMENTS[self.elem], self.n)


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vec) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


f32x8, f32x16 = Vec("f32", 8), Vec("f32", 16)
i32x8, i32x16, i16x16 = Vec("i32", 8), Vec("i32", 16), Vec("i16", 16)
i8x16, i8x32, i8x64 = Vec("i8", 16), Vec("i8", 32), Vec("i8", 64)
i64x4, i64x8 = Vec("i64", 4), Vec("i64", 8)


# ---- operators ---------------------------------------------------------------


def _lanewise(op: Any, float_name: str | None, int_name: str | None) -> None:
    @infer_global(op)
    class _Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], Vec) and args[0] == args[1]:
                if float_name if args[0].elem == "f32" else int_name:
                    return signature(args[0], *args)
            return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        name = float_name if sig.args[0].elem == "f32" else int_name
        assert name is not None  # the template above accepts nothing else
        return getattr(builder, name)(*args)

    lower_builtin(op, Vec, Vec)(lower)


_lanewise(operator.add, "fadd", "add")
_lanewise(operator.sub, "fsub", "sub")
_lanewise(operator.mul, "fmul", "mul")
_lanewise(operator.truediv, "fdiv", None)
_lanewise(operator.and_, None, "and_")
_lanewise(operator.or_, None, "or_")
_lanewise(operator.xor, None, "xor")


# ---- helpers for code generation ----------------------------------------------


def pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.PointerType())


def offset(builder: Any, address: Any, nbytes: int) -> Any:
    return builder.add(address, ir.Constant(address.type, nbytes)) if nbytes else address


def undefined(vec: ir.VectorType) -> ir.Constant:
    return ir.Constant(vec, ir.Undefined)


def splat_value(builder: Any, value: Any, vec: ir.VectorType) -> Any:
    """All lanes of ``vec`` set to the scalar ``value``."""
    one = builder.insert_element(undefined(vec), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        one, undefined(vec), ir.Constant(ir.VectorType(I32, vec.count), [0] * vec.count)
    )


def permute(builder: Any, a: Any, lanes: Sequence[int], b: Any = None) -> Any:
    """Lanes of ``a`` (and of ``b``, numbered after those of ``a``) in a new order."""
    mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
    return builder.shuffle_vector(a, undefined(a.type) if b is None else b, mask)


def call_intrinsic(builder: Any, name: str, result: Any, args: Sequence[Any]) -> Any:
    """Call the LLVM intrinsic ``name``."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def unary(source: Any, result: Any, emit: Callable[[Any, Any], Any]) -> Any:
    """A function of one value, given the code it expands to: ``emit(builder, value)``."""

    @intrinsic
    def function(typing_context: Any, a: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return emit(builder, args[0])

        return result(source), generate

    return function


def binary(first: Any, second: Any, result: Any, emit: Callable[[Any, Any, Any], Any]) -> Any:
    """A function of two values: ``emit(builder, a, b)``."""

    @intrinsic
    def function(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return emit(builder, *args)

        return result(first, second), generate

    return function


def ternary(kinds: Sequence[Any], result: Any, emit: Callable[..., Any]) -> Any:
    """A function of three values: ``emit(builder, a, b, c)``."""

    @intrinsic
    def function(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return emit(builder, *args)

        return result(*kinds), generate

    return function


# ---- memory ---------------------------------------------------------------------


def loader(vec: Vec) -> Any:
    """``load(address) -> vec``; the address need not be aligned."""
    return unary(types.intp, vec, lambda b, a: b.load(pointer(b, a), align=1, typ=vec.llvm))


def storer(vec: Vec) -> Any:
    """``store(address, vec)``; the address need not be aligned."""

    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(args[1], pointer(builder, args[0]), align=1)
            return context.get_dummy_value()

        return types.void(types.intp, vec), generate

    return store


def scalar_loader(memory: Any, result: Any, widen: str | None = None, to: Any = I64) -> Any:
    """``load(address)`` of one scalar of LLVM type ``memory``, widened by ``widen``."""

    def emit(builder: Any, address: Any) -> Any:
        value = builder.load(pointer(builder, address), align=1, typ=memory)
        return getattr(builder, widen)(value, to) if widen else value

    return unary(types.intp, result, emit)


def scalar_storer(value_type: Any, memory: Any, narrow: str | Callable[[Any, Any], Any] | None = None) -> Any:
    """``store(address, value)`` of one scalar, narrowed to LLVM type ``memory``."""

    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            out = args[1]
            if narrow:
                out = (
                    getattr(builder, narrow)(out, memory) if isinstance(narrow, str) else narrow(builder, out)
                )
            builder.store(out, pointer(builder, args[0]), align=1)
            return context.get_dummy_value()

        return types.void(types.intp, value_type), generate

    return store


load_f32x16, load_i16x16 = loader(f32x16), loader(i16x16)
load_i8x16, load_i8x32, load_i8x64 = loader(i8x16), loader(i8x32), loader(i8x64)
store_f32x16, store_i16x16, store_i8x32 = storer(f32x16), storer(i16x16), storer(i8x32)

load_f16 = unary(
    types.intp, types.float32, lambda b, a: half.extend(b, b.load(pointer(b, a), align=1, typ=ir.IntType(16)))
)
load_f32 = scalar_loader(ir.FloatType(), types.float32)
load_f64 = scalar_loader(ir.DoubleType(), types.float64)
load_i64 = scalar_loader(I64, types.int64)
load_u32 = scalar_loader(I32, types.int64, "zext")
load_u8 = scalar_loader(ir.IntType(8), types.int64, "zext")
load_s8 = scalar_loader(ir.IntType(8), types.int64, "sext")
store_f16 = scalar_storer(types.float32, ir.IntType(16), half.narrow)
store_f32 = scalar_storer(types.float32, ir.FloatType())
store_f64 = scalar_storer(types.float64, ir.DoubleType())
store_i64 = scalar_storer(types.int64, I64)
store_i32 = scalar_storer(types.int64, I32, "trunc")


def _prefetcher(locality: int) -> Any:
    @intrinsic
    def function(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(), I32, I32, I32])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            hints = (ir.Constant(I32, v) for v in (0, locality, 1))
            builder.call(function, [pointer(builder, args[0]), *hints])
            return context.get_dummy_value()

        return types.void(types.intp), generate

    return function


prefetch, prefetch_far = _prefetcher(3), _prefetcher(2)
"""``prefetch(address)``: load a cache line into the first or the second cache; harmless at any address."""


# ---- constants, permutations, conversions ---------------------------------------


def constant(vec: Vec, values: Sequence[float]) -> Any:
    """``constant() -> vec`` with the given lanes."""

    @intrinsic
    def function(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return ir.Constant(vec.llvm, list(values))

        return vec(), generate

    return function


def shuffle(source: Vec, lanes: Sequence[int]) -> Any:
    """``shuffle(v)``: the given lanes of one vector."""
    return unary(source, Vec(source.elem, len(lanes)), lambda b, a: permute(b, a, lanes))


def shuffle2(source: Vec, lanes: Sequence[int]) -> Any:
    """``shuffle(v, w)``: the given lanes of two vectors, w's numbered after v's."""
    return binary(source, source, Vec(source.elem, len(lanes)), lambda b, v, w: permute(b, v, lanes, w))


def cast(source: Vec, result: Vec, operation: str) -> Any:
    """``cast(v)``: an LLVM conversion ('bitcast', 'sext', 'zext', 'trunc', 'sitofp' ...)."""
    return unary(source, result, lambda b, a: getattr(b, operation)(a, result.llvm))


def shift(vec: Vec, operation: str, counts: Sequence[int]) -> Any:
    """``shift(v)``: 'shl' or 'lshr' by a constant count per lane."""
    return unary(vec, vec, lambda b, a: getattr(b, operation)(a, ir.Constant(vec.llvm, list(counts))))


zero_f32x16 = constant(f32x16, [0.0] * 16)
zero_i32x16 = constant(i32x16, [0] * 16)
join_i8x16 = shuffle2(i8x16, range(32))
repeat_i8x32 = shuffle(i8x32, list(range(32)) * 2)

splat = unary(types.float32, f32x16, lambda b, v: splat_value(b, v, f32x16.llvm))
to_float = cast(i32x16, f32x16, "sitofp")
to_int = cast(f32x16, i32x16, "fptosi")
to_i8 = cast(i32x16, i8x16, "trunc")
to_i16 = cast(i32x16, i16x16, "trunc")
widen_s8 = cast(i8x16, i32x16, "sext")
float_bits = cast(f32x16, i32x16, "bitcast")
bits_float = cast(i32x16, f32x16, "bitcast")


half_to_f32x16 = unary(i16x16, f32x16, half.extend)
# a bfloat16 is the upper half of a float32
bfloat_to_f32x16 = unary(
    i16x16,
    f32x16,
    lambda b, v: b.bitcast(b.shl(b.zext(v, i32x16.llvm), ir.Constant(i32x16.llvm, [16] * 16)), f32x16.llvm),
)


# ---- arithmetic -------------------------------------------------------------------


def _named(name: str, vec: Vec, count: int) -> Any:
    def emit(builder: Any, *args: Any) -> Any:
        return call_intrinsic(builder, name, vec.llvm, args)

    if count == 1:
        return unary(vec, vec, emit)
    return ternary([vec] * 3, vec, emit) if count == 3 else binary(vec, vec, vec, emit)


fma = _named("llvm.fma.v16f32", f32x16, 3)
absolute = _named("llvm.fabs.v16f32", f32x16, 1)
nearest = _named("llvm.rint.v16f32", f32x16, 1)


def _select_max(builder: Any, a: Any, b: Any) -> Any:
    """max that keeps a NaN from either side: 'unordered or greater' takes a, then a NaN in b wins."""
    larger = builder.select(builder.fcmp_unordered(">", a, b), a, b)
    return builder.select(builder.fcmp_unordered("uno", b, b), b, larger)


def _select_min_const(builder: Any, a: Any, b: Any) -> Any:
    """min(a, b) that keeps a NaN in a."""
    return builder.select(builder.fcmp_ordered(">", a, b), b, a)


def _select_max_const(builder: Any, a: Any, b: Any) -> Any:
    """max(a, b) that keeps a NaN in a."""
    return builder.select(builder.fcmp_ordered("<", a, b), b, a)


maximum = binary(f32x16, f32x16, f32x16, _select_max)
at_most = binary(f32x16, f32x16, f32x16, _select_min_const)
at_least = binary(f32x16, f32x16, f32x16, _select_max_const)


def _tree(combine: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Fold the upper half of the lanes onto the lower until one is left: one fixed order everywhere."""

    def emit(builder: Any, value: Any) -> Any:
        n = value.type.count
        while n > 1:
            n //= 2
            value = combine(
                builder, permute(builder, value, range(n)), permute(builder, value, range(n, 2 * n))
            )
        return builder.extract_element(value, ir.Constant(I32, 0))

    return emit


sum_f32x16 = unary(f32x16, types.float32, _tree(lambda b, x, y: b.fadd(x, y)))
sum_f32x8 = unary(f32x8, types.float32, _tree(lambda b, x, y: b.fadd(x, y)))
max_f32x16 = unary(f32x16, types.float32, _tree(_select_max))


def _sum_int(builder: Any, value: Any) -> Any:
    return builder.sext(_tree(lambda b, x, y: b.add(x, y))(builder, value), I64)


first_lane = unary(f32x16, types.float32, lambda b, v: b.extract_element(v, ir.Constant(I32, 0)))
sum_i32x16 = unary(i32x16, types.int64, _sum_int)
