"""Which instructions this CPU has, and the kernel level that follows.

A *level* names the way the 8-bit dot product is computed; everything else LLVM
chooses by itself.  All levels produce the same integers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from functools import cache

LEVELS = ("amx", "avx512vnni", "avxvnni", "avx2", "i8mm", "neon", "generic")
"""From the most capable to the one that runs anywhere."""

_AVX512_VNNI = ("avx512vnni", "avx512bw", "avx512vl", "avx512f", "fma", "f16c")
_REQUIRED = {
    "amx": ("amx-tile", "amx-int8", *_AVX512_VNNI),
    "avx512vnni": _AVX512_VNNI,
    "avxvnni": ("avxvnni", "avx2", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
    "i8mm": ("dotprod", "i8mm"),
    "neon": ("dotprod",),
    "generic": (),
}
# What a lower level must not use: taken from the CPU's feature string when a level is forced.
_AVX512 = (
    "avx512f avx512bw avx512cd avx512dq avx512vl avx512vnni avx512vbmi avx512vbmi2 avx512bitalg avx512vpopcntdq "
    "avx512ifma avx512bf16 avx512fp16 avx512vp2intersect evex512 avx10.1 avx10.1-256 avx10.1-512 avx10.2 "
    "avx10.2-256 avx10.2-512 amx-int8 amx-tile amx-bf16"
).split()
_VNNI = ["avxvnni", "avxvnniint8", "avxvnniint16"]


@dataclass(frozen=True)
class Target:
    """What machine code is made for: a level, LLVM's CPU name, its feature string, and the kind of machine."""

    level: str
    cpu: str
    features: str
    triple: str

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith(("x86_64", "amd64"))

    @property
    def is_arm(self) -> bool:
        return self.triple.startswith(("aarch64", "arm64"))


FOREIGN = "LLMGEN_COMPILE_FOR"
"""A triple such as aarch64-unknown-linux-gnu: compile for another machine, to look at the code (see ``compile``)."""
_FOREIGN_FEATURES = {"i8mm": "+neon,+dotprod,+i8mm", "neon": "+neon,+dotprod", "generic": ""}
_ARM_FEATURES = {
    "dotprod": ((16, 20), "hw.optional.arm.FEAT_DotProd", 43),
    "i8mm": ((26, 13), "hw.optional.arm.FEAT_I8MM", 66),
}
"""How the system is asked for a feature of Arm, which not every LLVM looks for.

Linux: an entry of the auxiliary vector, AT_HWCAP or AT_HWCAP2, and a bit of it (arch/arm64/include/uapi/asm/hwcap.h);
macOS: a sysctl; Windows: a number for IsProcessorFeaturePresent (winnt.h).
"""


@cache
def _host_features() -> dict[str, bool]:
    import llvmlite.binding as llvm

    features = dict(llvm.get_host_cpu_features())
    if platform.machine().lower() in ("aarch64", "arm64"):
        for name in _ARM_FEATURES:
            features[name] = features.get(name, False) or _arm_has(name)
    return features


def _arm_has(name: str) -> bool:
    """Whether the system says that this Arm CPU has a feature, a name of ``_ARM_FEATURES``."""
    (entry, bit), control, number = _ARM_FEATURES[name]
    try:
        if sys.platform == "win32":
            return bool(ctypes.windll.kernel32.IsProcessorFeaturePresent(number))
        libc = ctypes.CDLL(None)
        if sys.platform == "darwin":
            value, size = ctypes.c_int(0), ctypes.c_size_t(4)
            answer = libc.sysctlbyname(control.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
            return answer == 0 and value.value == 1
        libc.getauxval.restype = ctypes.c_ulong
        return bool(libc.getauxval(ctypes.c_ulong(entry)) >> bit & 1)
    except (OSError, AttributeError):
        return False


@cache
def best_level() -> str:
    """The highest level that this CPU can run."""
    return next(level for level in LEVELS if _runs(level))


def _runs(level: str) -> bool:
    """Whether this CPU has the level's instructions, and the system lets this process use them."""
    features = _host_features()
    return all(features.get(name) for name in _REQUIRED[level]) and (level != "amx" or _tiles_granted())


@cache
def _tiles_granted() -> bool:
    """Ask Linux for the use of AMX's tiles, which it grants a process for all its threads.

    arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA): Documentation/arch/x86/xstate.rst.
    """
    if not sys.platform.startswith("linux"):
        return False
    system_call, request, tile_data = 158, 0x1023, 18
    try:
        return ctypes.CDLL(None).syscall(system_call, request, tile_data) == 0
    except (OSError, AttributeError):
        return False


@cache
def target(level: str | None = None) -> Target:
    """The target of ``level``: by default ``$LLMGEN_KERNEL_LEVEL``, else the best one for this CPU."""
    import llvmlite.binding as llvm

    from llmgen.errors import KernelError, shown

    if foreign := os.environ.get(FOREIGN):
        level = level or os.environ.get("LLMGEN_KERNEL_LEVEL") or "neon"
        return Target(level, "generic", _FOREIGN_FEATURES[level], foreign)
    best = best_level()
    level = level or os.environ.get("LLMGEN_KERNEL_LEVEL") or best
    if level not in LEVELS:
        raise KernelError(
            f"the kernel level (LLMGEN_KERNEL_LEVEL) is {shown(level)}, expected one of {', '.join(LEVELS)}"
        )
    # the levels are no sequence: a CPU with AVX-512 VNNI need not have AVX-VNNI
    if not _runs(level):
        raise KernelError(
            f"the kernel level (LLMGEN_KERNEL_LEVEL) {level} needs instructions that this CPU lacks; the best here "
            f"is {best}"
        )
    features, triple = dict(_host_features()), llvm.get_process_triple()
    off: list[str] = []
    if level not in ("amx", "avx512vnni"):
        off += _AVX512
    if level in ("avx2", "generic"):
        off += _VNNI
    if level == "neon":
        off.append("i8mm")
    if level == "generic" and Target("", "", "", triple).is_x86:
        # the plain x86-64 of any machine: SSE2 only
        return Target(level, "x86-64", "", triple)
    for name in off:
        if name in features:
            features[name] = False
    flat = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))
    # the CPU's name implies features and a preference for 256 bits; the explicit list overrides them
    return Target(level, llvm.get_host_cpu_name(), flat, triple)
