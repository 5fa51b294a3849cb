"""Levels of 64-bit Arm: their code has its dot products, and where an emulator is installed, the same bits come out."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from kernels import emulated
from kernels.caches import Cache, prompt
from kernels.call import TABLE
from kernels.matrices import activations, embed, matvec, panel, random_matrix, scale_bytes, sizes

from llmgen.backends.cpu.runtime import cpu

EVERY_WAY = ("q4_0", "q8_0", "q6_k", "iq4_nl")
"""Unsigned and signed, by blocks, halves and superblocks, rows in lanes and one by one, with a table."""
PANELS = ("q4_0", "q4_1", "q6_k")
"""What differs at level i8mm: of blocks without offsets, with them, and of halves."""
if os.environ.get("LLMGEN_TEST_EVERY_TYPE"):
    EVERY_WAY = tuple(TABLE)
    PANELS = tuple(key for key in TABLE if not TABLE[key].is_float)
INTEGERS = [key for key in EVERY_WAY if TABLE[key].activations not in ("int16", "float32")]
emulator = pytest.mark.skipif(not emulated.AVAILABLE, reason="needs qemu-aarch64 and aarch64-linux-gnu-gcc")


def instructions(code: bytes, wanted: int, mask: int) -> int:
    """How many of the 32-bit words of an object file are an instruction, as the manual encodes it."""
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    return int(np.count_nonzero((words & mask) == wanted))


# Arm Architecture Reference Manual, A64 instruction set: 128-bit vectors
SDOT = 0x4E809400, 0xFFE0FC00  # SDOT (vector)
SDOT_BY_ELEMENT = 0x4F80E000, 0xFFC0F400
SMMLA = 0x4E80A400, 0xFFE0FC00
FMLA = 0x4E20CC00, 0xFFE0FC00  # FMLA (vector), Vd.4S, Vn.4S, Vm.4S


def dot_products(code: bytes) -> int:
    return instructions(code, *SDOT) + instructions(code, *SDOT_BY_ELEMENT)


ATTENTION = ["attention:tiles_f16_f16", "attention:tiles_nf4_nf4"]


@pytest.fixture(scope="module")
def codes() -> dict[str, bytes]:
    """All that is looked at or run here, from one compiling process."""
    kernels = [TABLE[key] for key in EVERY_WAY]
    names = [name for kind in kernels for name in (kind.matvec, kind.panel, kind.embed)]
    names += sorted({f"activations:{kind.activations}" for kind in kernels})
    return emulated.compiled([*names, "activations:tiles", "quants.matvec:f16", *ATTENTION])


@pytest.mark.parametrize("key", INTEGERS)
def test_the_dot_products_are_sdot(key: str, codes: dict[str, bytes]) -> None:
    for name in (TABLE[key].matvec, TABLE[key].panel):
        assert codes[name].startswith(b"\x7fELF")
        assert codes[name][18] == 183  # EM_AARCH64
        assert dot_products(codes[name]) >= 8, name
        assert instructions(codes[name], *SMMLA) == 0, name


@pytest.fixture(scope="module")
def codes_by_matrices() -> dict[str, bytes]:
    return emulated.compiled(
        ["activations:tiles", *(TABLE[key].panel for key in PANELS), "quants.matvec:q4_0"], "i8mm"
    )


def test_prompts_with_products_of_matrices(codes_by_matrices: dict[str, bytes]) -> None:
    codes = codes_by_matrices
    for name in (TABLE[key].panel for key in PANELS):
        # two halves of the rows, 32 weights of eight rows and four tokens
        assert instructions(codes[name], *SMMLA) >= 2 * 32, name
        assert dot_products(codes[name]) == 0, name
    assert instructions(codes["quants.matvec:q4_0"], *SMMLA) == 0
    assert dot_products(codes["quants.matvec:q4_0"]) >= 8


def test_wide_activations_and_floats(codes: dict[str, bytes]) -> None:
    """Signed 8-bit weights meet 16-bit activations when a token is generated; prompts have 8 bits."""
    assert dot_products(codes["quants.panel:q8_0"]) >= 8
    assert dot_products(codes["quants.matvec:q8_0"]) == 0
    for name in ("quants.matvec:f16", "attention:tiles_f16_f16"):
        assert instructions(codes[name], *FMLA) >= 8, name


def test_no_function_is_missing(codes: dict[str, bytes]) -> None:
    """No kernel calls a library that is not in the process (a conversion, a rounding)."""
    for name, code in codes.items():
        for symbol in (b"__extendhfsf2", b"__truncsfhf2", b"rintf", b"fmaf", b"memcpy"):
            assert symbol + b"\0" not in code, (name, symbol)


def arm(monkeypatch: pytest.MonkeyPatch, **features: bool) -> None:
    """Let this be an Arm machine with these features."""
    monkeypatch.setattr(cpu, "_host_features", lambda: features)
    monkeypatch.setattr(llvm, "get_process_triple", lambda: emulated.TRIPLE)
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "neoverse-n1")
    for function in (cpu.best_level, cpu.target):
        monkeypatch.setattr(cpu, function.__name__, function.__wrapped__)
    monkeypatch.delenv("LLMGEN_KERNEL_LEVEL", raising=False)


def test_the_level_of_an_arm_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, neon=True, dotprod=True, lse=True)
    chosen = cpu.target()
    assert (chosen.level, chosen.cpu, chosen.is_arm, chosen.is_x86) == ("neon", "neoverse-n1", True, False)
    assert chosen.features == "+dotprod,+lse,+neon"
    assert cpu.target("generic").triple == emulated.TRIPLE


def test_an_arm_machine_with_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, neon=True, dotprod=True, i8mm=True)
    assert cpu.target().level == "i8mm"
    assert cpu.target().features == "+dotprod,+i8mm,+neon"
    assert cpu.target("neon").features == "+dotprod,-i8mm,+neon"


def test_an_arm_machine_without_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    arm(monkeypatch, neon=True, dotprod=False)
    assert cpu.target().level == "generic"


class System:
    """A system library that knows the features of an Arm CPU."""

    def __init__(self, *features: str) -> None:
        asked = [cpu._ARM_FEATURES[name] for name in features]
        self._bits, self._controls, self._numbers = zip(*asked, strict=True) if asked else ((), (), ())
        self.kernel32 = self

    def sysctlbyname(self, name: bytes, value: Any, size: Any, new: Any, new_size: int) -> int:
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int))[0] = name.decode() in self._controls
        return 0 if name.startswith(b"hw.optional.arm.") else -1

    def IsProcessorFeaturePresent(self, number: int) -> int:
        return number in self._numbers

    @property
    def getauxval(self) -> Any:
        def ask(entry: ctypes.c_ulong) -> int:
            return sum(1 << bit for where, bit in self._bits if where == entry.value)

        return ask


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("features", [(), ("dotprod",), ("dotprod", "i8mm")])
def test_the_system_is_asked(
    platform: str, features: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM may say nothing of them."""
    monkeypatch.setattr(cpu.sys, "platform", platform)
    monkeypatch.setattr(cpu.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda name: System(*features))
    monkeypatch.setattr(cpu.ctypes, "windll", System(*features), raising=False)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {"neon": True})
    found = cpu._host_features.__wrapped__()
    assert found == {"neon": True, "dotprod": "dotprod" in features, "i8mm": "i8mm" in features}


@emulator
@pytest.mark.usefixtures("codes")
@pytest.mark.parametrize("key", EVERY_WAY)
def test_the_same_bits(key: str) -> None:
    rng = np.random.default_rng(1)
    n_cols = sizes(key)[2]
    m, x = random_matrix(key, 17, n_cols, rng), activations(9, n_cols, rng)
    for n in (1, 9):
        np.testing.assert_array_equal(matvec(m, x[:n], level="neon"), matvec(m, x[:n]))
    np.testing.assert_array_equal(panel(m, x, level="neon"), panel(m, x))
    np.testing.assert_array_equal(embed(m, [16, 3, 0], 2.5, level="neon"), embed(m, [16, 3, 0], 2.5))


@emulator
@pytest.mark.usefixtures("codes_by_matrices")
@pytest.mark.parametrize("key", PANELS)
def test_the_same_bits_with_matrices(key: str) -> None:
    rng = np.random.default_rng(3)
    n_cols = sizes(key)[2]
    m, x = random_matrix(key, 17, n_cols, rng), activations(13, n_cols, rng)
    np.testing.assert_array_equal(panel(m, x, level="i8mm"), panel(m, x))


@emulator
@pytest.mark.usefixtures("codes")
@pytest.mark.parametrize("key", ["q4_0", "q8_0", "q6_k"])
def test_the_same_integers_at_the_limits(key: str) -> None:
    m = random_matrix(key, 16, 2 * max(TABLE[key].block, 128), np.random.default_rng(2))
    x = np.where(np.arange(m.n_cols) % 3, 3.0, -3.0).astype(np.float32)[None].repeat(9, axis=0)
    x[1::2] *= -1
    for byte in (0x00, 0x80, 0xFF):
        blocks = m.data.reshape(16, m.n_cols // TABLE[key].block, -1)
        blocks[:, :, np.delete(np.arange(blocks.shape[2]), scale_bytes(key))] = byte
        np.testing.assert_array_equal(matvec(m, x, level="neon"), matvec(m, x))
        expected = panel(m, x)
        for level in ("neon", "i8mm") if key in PANELS else ("neon",):
            np.testing.assert_array_equal(panel(m, x, level=level), expected)


@emulator
@pytest.mark.usefixtures("codes")
@pytest.mark.parametrize("kind", ["f16", "nf4"])
def test_attention_with_the_same_bits(kind: str) -> None:
    """Nine tokens of seven heads, so that passes of all sizes take part."""
    rng = np.random.default_rng(4)
    k, v = (rng.normal(0, 1, (69, 1, 40)).astype(np.float32) for _ in range(2))
    cache, q = Cache(1, 40, 40, 2, kind), rng.normal(0, 1, (9, 7, 40)).astype(np.float32)
    cache.store(k, v, range(69))
    np.testing.assert_array_equal(prompt(cache, q, 60, level="neon"), prompt(cache, q, 60))
