"""The most 8-bit multiplications and additions a second that this processor's dot product unit can do.

    python scripts/dot_peak.py [-t 2]

A loop of nothing but dot product instructions on registers: the limit of any prompt.  The
instruction is that of the kernel level (see llmgen/backends/cpu/kernels/dot.py).
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.simd import call_intrinsic, pointer
from llmgen.backends.cpu.runtime.cpu import target
from llmgen.backends.cpu.runtime.threads import usable_cores

_CHAINS = 12  # independent sums: more than latency times instructions a cycle
_SUM_TILES, _TILES = 4, (4, 5, 6, 7)  # of AMX's eight: four sums, two left and two right factors
_STEPS = 20_000_000


def _instruction(level: str) -> tuple[str, int, int]:
    """(LLVM's name of the instruction, its bytes, bits of one sum)."""
    if level in ("amx", "avx512vnni"):
        return "llvm.x86.avx512.vpdpbusd.512", 64, 32
    if level == "avxvnni":
        return "llvm.x86.avx512.vpdpbusd.256", 32, 32
    if level == "avx2":
        return "llvm.x86.avx2.pmadd.ub.sw", 32, 16
    raise SystemExit(f"the peak of level {level} is not known: no dot product instruction")


def _vector_loop(level: str) -> tuple[Any, int]:
    """(loop(n, bytes), products of one step)."""
    name, width, bits = _instruction(level)
    sums, factors = ir.VectorType(ir.IntType(bits), 8 * width // bits), ir.VectorType(ir.IntType(8), width)

    @intrinsic
    def loop(typing_context: Any, n: Any, data: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            chains = [cgutils.alloca_once(b, sums) for _ in range(_CHAINS)]
            for chain in chains:
                b.store(ir.Constant(sums, [0] * sums.count), chain)
            place = pointer(b, args[1])
            u = b.load(place, align=1, typ=factors)
            with cgutils.for_range(b, args[0]):
                for chain in chains:
                    acc = b.load(chain, typ=sums)
                    if bits == 32:
                        acc = call_intrinsic(b, name, sums, [acc, u, u])
                    else:
                        acc = b.add(acc, call_intrinsic(b, name, sums, [u, b.bitcast(acc, factors)]))
                    b.store(acc, chain)
            total = b.load(chains[0], typ=sums)
            for chain in chains[1:]:
                total = b.add(total, b.load(chain, typ=sums))
            return b.sext(b.extract_element(total, ir.Constant(ir.IntType(32), 0)), ir.IntType(64))

        return types.intp(types.intp, types.intp), generate

    @njit(nogil=True)
    def run(n, data):  # type: ignore[no-untyped-def]
        return loop(n, data)

    return run, _CHAINS * width


def _tile_loop() -> tuple[Any, int]:
    """The same with AMX's tiles: 16 x 16 sums of 64 products an instruction."""
    configuration = bytearray(64)
    configuration[0] = 1
    for tile in range(8):
        configuration[16 + 2 * tile] = 64
        configuration[48 + tile] = 16
    words = tuple(int.from_bytes(configuration[i : i + 8], "little") for i in range(0, 64, 8))

    @intrinsic
    def loop(typing_context: Any, n: Any, data: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            nothing = ir.VoidType()

            def number(tile: int) -> ir.Constant:
                return ir.Constant(ir.IntType(8), tile)

            place = cgutils.alloca_once(b, ir.ArrayType(ir.IntType(64), 8))
            b.store(ir.Constant(ir.ArrayType(ir.IntType(64), 8), list(words)), place)
            call_intrinsic(b, "llvm.x86.ldtilecfg", nothing, [place])
            for tile in range(8):
                call_intrinsic(b, "llvm.x86.tilezero", nothing, [number(tile)])
            with cgutils.for_range(b, args[0]):
                for tile in range(_SUM_TILES):
                    factors = [number(_TILES[tile // 2]), number(_TILES[2 + tile % 2])]
                    call_intrinsic(b, "llvm.x86.tdpbusd", nothing, [number(tile), *factors])
            call_intrinsic(b, "llvm.x86.tilerelease", nothing, [])
            return ir.Constant(ir.IntType(64), 0)

        return types.intp(types.intp, types.intp), generate

    @njit(nogil=True)
    def run(n, data):  # type: ignore[no-untyped-def]
        return loop(n, data)

    return run, _SUM_TILES * 16 * 16 * 64


def dot_peak(threads: int, repetitions: int = 3) -> float:
    """Products per second of ``threads`` threads together, the best of the repetitions."""
    level = target().level
    run, products = _tile_loop() if level == "amx" else _vector_loop(level)
    steps = _STEPS // 100 if level == "amx" else _STEPS
    data = np.ones(64, np.uint8)
    run(1, data.ctypes.data)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repetitions):
            started = time.perf_counter()
            list(pool.map(lambda _: run(steps, data.ctypes.data), range(threads)))
            best = max(best, threads * steps * products / (time.perf_counter() - started))
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="the peak of the 8-bit dot product")
    parser.add_argument("-t", "--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    print(f"{target().level}, {options.threads} threads: {dot_peak(options.threads) / 1e9:.0f} GMAC/s")
