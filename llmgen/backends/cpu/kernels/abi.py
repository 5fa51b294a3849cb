"""How compiled code is called: steps, their arguments, and the control block of a run.

A *step* is ``void step(args, thread, n_threads)``.  ``args`` is the address of the
step's row in the calling thread's table: 64-bit integers, addresses, or the bits of
a float64.  A *native* is any other function that Python calls directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.layout import FIELDS, TILE_TOKENS
from llmgen.backends.cpu.kernels.simd import load_f64, load_i64

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
"""No exceptions, no bounds checks, no reassociation of floats."""

I = types.int64  # noqa: E741 - the one letter reads best in a signature


def inline(function: Callable[..., Any]) -> Any:
    """A helper that LLVM inlines into the kernels that use it."""
    return njit(**OPTIONS)(function)


def step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a step: void(args, thread, n_threads)."""
    function.signature = types.void(I, I, I)  # type: ignore[attr-defined]
    return function


def native(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function that Python calls, with int64 arguments and an int64 or no result."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.signature = signature  # type: ignore[attr-defined]
        return function

    return mark


@intrinsic
def stay_apart(typing_context: Any) -> Any:
    """As the first line of a helper: LLVM does not inline it, and compiles it once however often it is called."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


def helper(function: Callable[..., Any]) -> Any:
    """A helper that Numba types and translates once, whatever constants it is called with.

    For one marked :func:`inline` Numba makes a version for each constant, which takes longer
    than all the work of LLVM.
    """
    dispatcher = inline(function)
    template = dispatcher.get_call_template

    def plain(args: Any, kws: Any) -> Any:
        return template([types.unliteral(a) for a in args], {k: types.unliteral(v) for k, v in kws.items()})

    dispatcher.get_call_template = plain
    return dispatcher


@inline
def arg(args: int, i: int) -> int:
    """The i-th argument of a step."""
    return load_i64(args + 8 * i)


@inline
def arg_f64(args: int, i: int) -> float:
    """The i-th argument of a step, a float64."""
    return load_f64(args + 8 * i)


@inline
def share(n: int, thread: int, n_threads: int) -> tuple[int, int]:
    """The part [start, stop) of n items that a thread takes."""
    return n * thread // n_threads, n * (thread + 1) // n_threads


CONTROL_TOKENS = 8 * FIELDS["n_tokens"]
CONTROL_POSITIONS = 8 * FIELDS["positions"]
CONTROL_SEQUENCES = 8 * FIELDS["sequences"]
CONTROL_OUTPUT_ROWS = 8 * FIELDS["output_rows"]


@inline
def control_field(control: int, at: int) -> int:
    """A field of the control block (CONTROL_...)."""
    return load_i64(control + at)


@inline
def tokens_of(control: int, split_tokens: int, thread: int, n_threads: int) -> tuple[int, int]:
    """The tokens [first, last) of this thread: all, or with ``split_tokens`` its own tiles of eight."""
    n = control_field(control, CONTROL_TOKENS)
    if split_tokens:
        first, last = share((n + TILE_TOKENS - 1) // TILE_TOKENS, thread, n_threads)
        return first * TILE_TOKENS, min(last * TILE_TOKENS, n)
    return 0, n
