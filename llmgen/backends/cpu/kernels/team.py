"""The native side of the thread team: the step loop, the barrier, the mailbox.

One thread posts a job (the tables of a program) and takes part in it as thread 0;
the workers wait in compiled code, spinning for about a millisecond before they sleep.
TEAM_... in layout.py is the layout of the memory they share, each busy word on its own
cache line.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.abi import I, inline, native
from llmgen.backends.cpu.kernels.layout import (
    STEP_BARRIER,
    STEP_BYTES,
    STEP_HEADER,
    STEP_NEXT,
    TEAM_ACK,
    TEAM_ACTIVE,
    TEAM_BARRIER,
    TEAM_COUNT,
    TEAM_EXIT,
    TEAM_LINE,
    TEAM_MAIL,
    TEAM_STEPS,
    TEAM_STOP,
    TEAM_TABLE,
    TEAM_TABLE_BYTES,
    TEAM_WAITS,
)
from llmgen.backends.cpu.kernels.simd import load_i64, pointer, prefetch, store_i64
from llmgen.backends.cpu.runtime.cpu import target

_I64 = ir.IntType(64)

TEAM_PASSED = TEAM_STOP + 16
"""The arrivals at which a barrier was last passed, beside the stop flag, which is read right afterwards."""


@intrinsic
def call_step(typing_context: Any, function: Any, args: Any, thread: Any, n_threads: Any) -> Any:
    def generate(context: Any, b: Any, sig: Any, a: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 3)
        b.call(b.inttoptr(a[0], kind.as_pointer()), a[1:])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), generate


@intrinsic
def atomic_add(typing_context: Any, address: Any, value: Any) -> Any:
    """Add, and return the value before."""

    def generate(context: Any, b: Any, sig: Any, a: Any) -> Any:
        return b.atomic_rmw("add", pointer(b, a[0]), a[1], "acq_rel")

    return types.int64(types.intp, types.int64), generate


@intrinsic
def atomic_load(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, b: Any, sig: Any, a: Any) -> Any:
        return b.load_atomic(pointer(b, a[0]), "acquire", 8, typ=_I64)

    return types.int64(types.intp), generate


@intrinsic
def atomic_store(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, b: Any, sig: Any, a: Any) -> Any:
        b.store_atomic(a[1], b.inttoptr(a[0], _I64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), generate


def _system_call(name: str, n_args: int) -> Any:
    """A call that ``threads.register_system_calls`` has registered under this name."""

    def emit(b: Any, args: list[Any]) -> None:
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(b.module, ir.FunctionType(i32, [i32] * n_args), name)
        b.call(function, [b.trunc(a, i32) for a in args])

    if n_args == 0:

        @intrinsic
        def without(typing_context: Any) -> Any:
            def generate(context: Any, b: Any, sig: Any, a: Any) -> Any:
                emit(b, [])
                return context.get_dummy_value()

            return types.void(), generate

        return without

    @intrinsic
    def with_one(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, a: Any) -> Any:
            emit(b, list(a))
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return with_one


yield_processor = _system_call("llmgen_yield", 0)
sleep = _system_call("llmgen_sleep", 1)


@intrinsic
def relax(typing_context: Any) -> Any:
    """Tell the core that this is a waiting loop."""

    def generate(context: Any, b: Any, sig: Any, a: Any) -> Any:
        i32 = ir.IntType(32)
        if target().is_x86:
            name, args = "llvm.x86.sse2.pause", []
        elif target().is_arm:
            name, args = "llvm.aarch64.hint", [ir.Constant(i32, 1)]
        else:
            return context.get_dummy_value()
        kind = ir.FunctionType(ir.VoidType(), [v.type for v in args])
        b.call(cgutils.get_or_insert_function(b.module, kind, name), args)
        return context.get_dummy_value()

    return types.void(), generate


SPINS = 2000  # looks at the barrier before a thread yields its processor
PARK_AFTER = 20000  # looks at the mailbox before a worker sleeps between looks
NAPS = 500  # short sleeps between looks before the long ones: about 50 ms
PREFETCH = 32  # cache lines of the next weights that a waiting thread prefetches


@inline
def wait_at_barrier(team, goal, weights, thread):  # type: ignore[no-untyped-def]
    """Wait until all threads are here (True) or the job is stopped (False); counts how often thread 0 yields."""
    if weights:
        for i in range(PREFETCH):
            prefetch(weights + 64 * i)
    looks = 0
    while atomic_load(team + TEAM_PASSED) < goal:
        if atomic_load(team + TEAM_STOP):
            return False
        looks += 1
        if looks > SPINS:
            if thread == 0:
                store_i64(team + TEAM_WAITS, load_i64(team + TEAM_WAITS) + 1)
            yield_processor()
        else:
            relax()
    return True


@inline
def run_table(table, steps, thread, n_threads, team, count):  # type: ignore[no-untyped-def]
    """Run one thread's table.  count: the barrier's counter at the start; returns it at the end, or -1 when stopped."""
    for _ in range(steps):
        # the weights push the table out of the caches
        prefetch(table + 2 * STEP_BYTES)
        prefetch(table + 2 * STEP_BYTES + 64)
        prefetch(table + 2 * STEP_BYTES + 128)
        prefetch(table + 2 * STEP_BYTES + 192)
        call_step(load_i64(table), table + STEP_HEADER, thread, n_threads)
        if load_i64(table + STEP_BARRIER):
            if n_threads > 1:
                count += n_threads
                if atomic_add(team + TEAM_BARRIER, 1) + 1 < count:
                    if not wait_at_barrier(team, count, load_i64(table + STEP_NEXT), thread):
                        return -1
                else:
                    # a cache line of its own: those who wait must not slow down those who arrive
                    atomic_store(team + TEAM_PASSED, count)
            if atomic_load(team + TEAM_STOP):
                return -1
        table += STEP_BYTES
    return count


@native(I(I, I))
def work(team: int, thread: int) -> int:
    """A worker: run every job posted to its mailbox until told to exit."""
    mail = team + TEAM_MAIL + TEAM_LINE * thread
    seen = atomic_load(mail + TEAM_ACK)
    while True:
        looks = 0
        while atomic_load(mail) == seen:
            looks += 1
            if looks > PARK_AFTER + NAPS:
                sleep(1000)
            elif looks > PARK_AFTER:
                sleep(50)
            else:
                relax()
        seen = atomic_load(mail)
        if atomic_load(team + TEAM_EXIT):
            atomic_store(mail + TEAM_ACK, seen)
            return seen
        table = load_i64(team + TEAM_TABLE) + thread * load_i64(team + TEAM_TABLE_BYTES)
        active = load_i64(team + TEAM_ACTIVE)
        run_table(table, load_i64(team + TEAM_STEPS), thread, active, team, load_i64(team + TEAM_COUNT))
        atomic_store(mail + TEAM_ACK, seen)


@native(I(I, I, I, I, I))
def post(team: int, table: int, table_bytes: int, steps: int, active: int) -> int:
    """Run a program with ``active`` threads, this one being thread 0; 0, or -1 if it was stopped.

    Writes only to the mailboxes of the workers that take part; the others stay parked.
    Returns when all of these have left the job, so its memory may change afterwards.
    """
    count = load_i64(team + TEAM_BARRIER)
    store_i64(team + TEAM_TABLE, table)
    store_i64(team + TEAM_TABLE_BYTES, table_bytes)
    store_i64(team + TEAM_STEPS, steps)
    store_i64(team + TEAM_ACTIVE, active)
    store_i64(team + TEAM_COUNT, count)
    for thread in range(1, active):
        atomic_add(team + TEAM_MAIL + TEAM_LINE * thread, 1)
    result = run_table(table, steps, 0, active, team, count)
    for thread in range(1, active):
        mail = team + TEAM_MAIL + TEAM_LINE * thread
        posted = atomic_load(mail)
        looks = 0
        while atomic_load(mail + TEAM_ACK) != posted:
            looks += 1
            if looks > SPINS:
                yield_processor()
            else:
                relax()
    if result < 0:
        # the threads left at different barriers: reset the counter
        atomic_store(team + TEAM_BARRIER, 0)
        atomic_store(team + TEAM_PASSED, 0)
    return min(result, 0)


@native(I(I, I))
def dismiss(team: int, n_threads: int) -> int:
    """Tell the workers 1..n_threads - 1 to exit."""
    atomic_store(team + TEAM_EXIT, 1)
    for thread in range(1, n_threads):
        atomic_add(team + TEAM_MAIL + TEAM_LINE * thread, 1)
    return 0
