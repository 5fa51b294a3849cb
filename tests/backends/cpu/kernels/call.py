"""Kernels called one at a time, through their addresses, with numpy arrays as arguments.

control = ControlBlock(n_tokens=3)
step("norms:rms_norm", x=x, x_stride=4 * n, ..., control=control, eps=1e-5)
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import pkgutil
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from kernels import emulated

from llmgen.backends.cpu import kernels
from llmgen.backends.cpu.kernels import attention_arguments, recurrent_arguments  # noqa: F401 - tables of steps
from llmgen.backends.cpu.kernels.arguments import table_of
from llmgen.backends.cpu.kernels.decode_plan import CONTROL_WORDS, LOCAL, STREAMS, TOGETHER
from llmgen.backends.cpu.kernels.kv import TABLE as KV_KINDS
from llmgen.backends.cpu.kernels.kv import attention_kernel, store_kernel
from llmgen.backends.cpu.kernels.layout import FIELDS, MAX_COLUMNS, STEP_ARGS
from llmgen.backends.cpu.kernels.quants import TABLE, QuantType
from llmgen.backends.cpu.runtime.cpu import LEVELS, target
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.errors import KernelError

COUNT_TOKENS, COUNT_OUTPUTS = 8 * FIELDS["n_tokens"], 8 * FIELDS["n_outputs"]

ATTENTION = [attention_kernel(role, kind, kind) for role in ("blocks", "tiles") for kind in KV_KINDS]
STORE = [store_kernel(kind, kind) for kind in KV_KINDS]
GATES = [
    f"{name}_mul" for name in ("silu", "gelu", "gelu_erf", "gelu_quick", "relu", "sigmoid", "swiglu_oai")
]
UNARY = [
    "silu",
    "gelu",
    "gelu_erf",
    "gelu_quick",
    "relu",
    "relu_squared",
    "sigmoid",
    "softplus",
    "exp",
    "tanh",
]
_OTHERS = ["add", "mul", "copy", "softcap", "add_row", "scale", "clamp", "at_most", "gate_heads", "head_part"]
_OTHERS += ["gate_heads_softplus"]
RECURRENT = [f"recurrent:{name}" for name in ("convolve", "linear_attend", "delta_rule", "selective_scan")]
POINTWISE = [f"pointwise:{name}" for name in (*GATES, *UNARY, *_OTHERS)]


@cache
def levels() -> list[str]:
    """The levels this CPU can run, the best one first."""
    found = []
    for level in LEVELS:
        with suppress(KernelError):
            found.append(target(level).level)
    return found


def lower_float_levels() -> list[str]:
    """Of the levels below the best one, those that compute floats in another way: amx does it as avx512vnni,
    avxvnni as avx2."""
    best, *lower = levels()
    return [level for level in lower if level in ("avx2", "generic") and (best, level) != ("avxvnni", "avx2")]


def require(names: list[str], level: str | None = None) -> KernelLibrary:
    """Compile or load many kernels at once, which several processes do in parallel."""
    library = KernelLibrary.for_level(level)
    library.require(names)
    return library


class ControlBlock:
    """The control block of a run."""

    def __init__(
        self,
        n_tokens: int,
        *,
        ids: Any = None,
        positions: Any = None,
        sequences: Any = None,
        outputs: Any = None,
        run_ends: Any = None,
        together: int = MAX_COLUMNS,
        local: int = 0,
        streams: int = 1,
        memories: Sequence[np.ndarray] = (),
    ) -> None:
        """memories: those that the addresses in ``sequences`` belong to, for an emulator."""
        self.memories = memories
        arrays = {"ids": ids, "positions": positions, "sequences": sequences, "output_rows": outputs}
        arrays["run_ends"] = run_ends
        self.arrays = {k: np.array(v, dtype=np.int64) for k, v in arrays.items() if v is not None}
        self.fields = np.zeros(CONTROL_WORDS, dtype=np.int64)
        self.fields[TOGETHER // 8], self.fields[LOCAL // 8] = together, local
        self.fields[STREAMS // 8] = streams.bit_length() - 1
        self.fields[FIELDS["n_tokens"]] = n_tokens
        self.fields[FIELDS["n_outputs"]] = 0 if outputs is None else len(self.arrays["output_rows"])
        for name, array in self.arrays.items():
            self.fields[FIELDS[name]] = array.ctypes.data
        self.address = self.fields.ctypes.data


def _bits(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data)
    if isinstance(value, ControlBlock):
        return int(value.address)
    if isinstance(value, float):
        return int(struct.unpack("<q", struct.pack("<d", value))[0])
    return int(value)


def step(
    kernel: str,
    thread: int = 0,
    n_threads: int = 1,
    level: str | None = None,
    **arguments: Any,
) -> None:
    """ControlBlock one step as one of its threads.

    arguments: by the names of its table; arrays stand for their address, floats for
    their float64 bits; what is not given is 0.
    """
    names = table_of(kernel)
    filled = names(**{**dict.fromkeys(names._fields, 0), **arguments})
    if level in emulated.LEVELS and level not in levels():
        emulated.run(kernel, level, thread, n_threads, list(filled), _bits)
        return
    table = np.zeros(STEP_ARGS + 1, dtype=np.int64)  # behind them: what is read next, nothing
    table[: len(filled)] = [_bits(value) for value in filled]
    _function(kernel, level)(table.ctypes.data, thread, n_threads)


@cache
def _function(kernel: str, level: str | None) -> Any:
    return KernelLibrary.for_level(level).function(kernel, 3, returns=False)


def aligned(shape: Any, dtype: Any = np.float32, fill: Any = 0) -> np.ndarray:
    """An array at an address that is a multiple of 64, as all buffers of a program are."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + nbytes].view(dtype).reshape(shape)
    out[...] = fill
    return out


class Guarded:
    """Bytes that end where the next page cannot be read; POSIX only."""

    def __init__(self, data: bytes, writable: bool = False) -> None:
        pages = -(-max(len(data), 1) // mmap.PAGESIZE)
        self._memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        base = np.frombuffer(self._memory, dtype=np.uint8).ctypes.data
        start = pages * mmap.PAGESIZE - len(data)
        self._memory[start : start + len(data)] = data
        self.address = base + start
        mprotect = ctypes.CDLL(None, use_errno=True).mprotect
        mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        kept = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        assert mprotect(base, pages * mmap.PAGESIZE, kept) == 0
        assert mprotect(base + pages * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0

    def view(self, nbytes: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))


def all_kernels() -> list[str]:
    """Every step that these tests call."""
    names = ["activations:tiles", "attention:combine", "norms:rms_norm", "norms:layer_norm"]
    names += sorted({f"activations:{k.activations}" for k in TABLE.values()})
    names += [n for k in TABLE.values() for n in (k.matvec, k.panel, k.embed)]
    return [*names, *ATTENTION, *STORE, *POINTWISE, *RECURRENT, "rope:rope"]


def kernels_of_the_suite() -> list[str]:
    """The kernels that many test files call, but for those of mixed kinds of KV caches."""
    return list(
        dict.fromkeys([*all_kernels(), *_fixed_kernels(), *(f"quants.blocks:{key}" for key in TABLE)])
    )


def _fixed_kernels() -> list[str]:
    """Those that are functions of a module, not made when somebody asks for them."""
    found = []
    for info in pkgutil.iter_modules(kernels.__path__):
        module = importlib.import_module(f"{kernels.__name__}.{info.name}")
        for name, value in vars(module).items():
            if hasattr(value, "signature") and getattr(value, "__module__", "") == module.__name__:
                found.append(f"{info.name}:{name}")
    return found


__all__ = [
    "COUNT_OUTPUTS",
    "COUNT_TOKENS",
    "TABLE",
    "Guarded",
    "QuantType",
    "ControlBlock",
    "aligned",
    "all_kernels",
    "kernels_of_the_suite",
    "levels",
    "require",
    "step",
]
