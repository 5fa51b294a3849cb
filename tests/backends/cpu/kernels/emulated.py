"""Kernels of 64-bit Arm, compiled here and run by an emulator: qemu-aarch64, with a C compiler for Arm to link them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.layout import FIELDS, STEP_ARGS
from llmgen.backends.cpu.runtime.compile import native_symbol

TRIPLE = "aarch64-unknown-linux-gnu"
LEVELS = ("i8mm", "neon")
_EMULATOR, _COMPILER = "qemu-aarch64", "aarch64-linux-gnu-gcc"
AVAILABLE = bool(shutil.which(_EMULATOR) and shutil.which(_COMPILER))

# The memory of a step comes in a file: int64 [0] where its arguments are, [1] how many numbers of the file
# are offsets that must become addresses, [2...] where these are.
_PROGRAM = """
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
void STEP(int64_t, int64_t, int64_t);
int main(int argc, char **argv) {
    int file = open(argv[1], O_RDWR);
    struct stat facts;
    if (file < 0 || fstat(file, &facts)) return 1;
    char *memory = mmap(0, facts.st_size + 65536, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return 2;
    int64_t *head = (int64_t *)memory;
    for (int64_t i = 0; i < head[1]; i++) *(int64_t *)(memory + head[2 + i]) += (int64_t)memory;
    STEP((int64_t)(memory + head[0]), atoll(argv[2]), atoll(argv[3]));
    return 0;
}
"""


_objects: dict[tuple[str, str], bytes] = {}


def compiled(names: list[str], level: str = "neon") -> dict[str, bytes]:
    """Object code for Arm of kernels, by name."""
    missing = [name for name in names if (level, name) not in _objects]
    if missing:
        command = [sys.executable, "-P", "-m", "llmgen.backends.cpu.runtime.compile", level, TRIPLE]
        done = subprocess.run(command, input="\n".join(missing).encode() + b"\n", capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        rest = done.stdout
        while rest:
            line, _, rest = rest.partition(b"\n")
            name, size = line.decode().split()
            _objects[level, name], rest = rest[: int(size)], rest[int(size) :]
    return {name: _objects[level, name] for name in names}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@cache
def _executable(kernel: str, level: str) -> Path:
    """A program for Arm that runs the kernel once."""
    base = Path(_folder().name) / f"{level}-{native_symbol(kernel)}"
    base.with_suffix(".o").write_bytes(compiled([kernel], level)[kernel])
    base.with_suffix(".c").write_text(_PROGRAM)
    files = [base.with_suffix(".c"), base.with_suffix(".o")]
    command = [_COMPILER, "-static", f"-DSTEP={native_symbol(kernel)}", *files, "-o", base]
    subprocess.run(command, check=True)
    return base


class _Memory:
    """Arrays side by side, and which of their numbers are offsets in that memory."""

    def __init__(self) -> None:
        self.data = bytearray(1 << 14)  # the head
        self.offsets: list[int] = []
        self._arrays: dict[int, tuple[np.ndarray, int]] = {}

    def place(self, array: np.ndarray) -> int:
        """The offset of an array; what lies around it in its memory comes along."""
        whole = array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        if id(whole) not in self._arrays:
            self.data += bytes(-(len(self.data) - whole.ctypes.data) % 64)  # as it is aligned here
            self._arrays[id(whole)] = whole, len(self.data)
            self.data += whole.tobytes()
        return self._arrays[id(whole)][1] + array.ctypes.data - whole.ctypes.data

    def read_back(self, data: bytes) -> None:
        """What the step has written."""
        for array, start in self._arrays.values():
            if array.flags.writeable:
                found = np.frombuffer(data, array.dtype, array.size, start)
                array.reshape(-1)[:] = found


def _within(memory: _Memory, arrays: Sequence[np.ndarray], address: int) -> int:
    """The offset of an address in one of the arrays."""
    array = next(a for a in arrays if 0 <= address - a.ctypes.data < a.nbytes)
    return memory.place(array) + int(address) - array.ctypes.data


def run(kernel: str, level: str, thread: int, n_threads: int, arguments: list[Any], bits: Any) -> None:
    """Run a step; ``arguments`` as ``call.step`` has them, ``bits`` makes numbers of those that are no arrays."""
    memory = _Memory()
    table = np.zeros(STEP_ARGS + 1, np.int64)
    pointers: list[tuple[np.ndarray, int]] = []
    for i, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            table[i] = memory.place(value)
            pointers.append((table, i))
        elif hasattr(value, "fields"):  # a control block
            fields = value.fields.copy()
            for name, array in value.arrays.items():
                if name == "sequences" and value.memories:
                    array = np.array([_within(memory, value.memories, address) for address in array])
                    pointers += [(array, i) for i in range(len(array))]
                fields[FIELDS[name]] = memory.place(array)
                pointers.append((fields, FIELDS[name]))
            table[i] = memory.place(fields)
            pointers.append((table, i))
        else:
            table[i] = bits(value)
    where = memory.place(table)
    spots = [memory.place(array) + 8 * i for array, i in pointers]
    memory.data[: 8 * (2 + len(spots))] = np.array([where, len(spots), *spots], np.int64).tobytes()
    # arrays were placed before their numbers were known
    for array in {id(a): a for a, _ in pointers}.values():
        start = memory.place(array)
        memory.data[start : start + array.nbytes] = array.tobytes()
    with tempfile.NamedTemporaryFile(dir=_folder().name) as file:
        file.write(memory.data)
        file.flush()
        command = [
            _EMULATOR,
            "-cpu",
            "max",
            str(_executable(kernel, level)),
            file.name,
            str(thread),
            str(n_threads),
        ]
        subprocess.run(command, check=True)
        memory.read_back(Path(file.name).read_bytes())
