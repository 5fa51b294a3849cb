"""The compiler process: turns kernel sources into object code with Numba and LLVM.

    python -m llmgen.backends.cpu.runtime.compile LEVEL [TRIPLE] < names

Reads kernel names, one a line ("module:function", below llmgen.backends.cpu.kernels), and writes
for each a line with its name and the size of its object code, then the code itself.  A
separate process keeps the compilers' memory out of the program, lets several run at once,
and can simply be killed on Ctrl-C.

With a TRIPLE, such as aarch64-unknown-linux-gnu, it compiles for another kind of machine, whose
code this one cannot run but can look at.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OWN_MACHINE = re.compile(r"^target (?:triple|datalayout) = .*$", re.MULTILINE)
_MADE_BETWEEN_COLLECTIONS = 200_000
"""New objects after which Python looks for garbage: a translation makes many and drops few (a tenth of its time)."""


def native_symbol(name: str) -> str:
    """The linker symbol of a kernel."""
    return "llmgen_" + "".join(c if c.isalnum() else "_" for c in name)


def _wrapper(symbol: str, target: str, n_args: int, returns: bool) -> str:
    """LLVM text of a plain C function around Numba's calling convention (status, result pointer, error pointer)."""
    params = ", ".join(f"i64 %a{i}" for i in range(n_args))
    return f"""
define {"i64" if returns else "void"} @{symbol}({params}) {{
  %result = alloca i64
  %error = alloca ptr
  %status = call i32 @"{target}"(ptr %result, ptr %error{"".join(f", i64 %a{i}" for i in range(n_args))})
  {"%value = load i64, ptr %result" if returns else ""}
  ret {"i64 %value" if returns else "void"}
}}
"""


def compile_kernel(name: str) -> bytes:
    """Object code of one kernel for the level of this process."""
    import importlib

    import llvmlite.binding as llvm
    from numba import njit, types

    from llmgen.backends.cpu.kernels.abi import OPTIONS

    module, function_name = name.split(":")
    function = getattr(importlib.import_module(f"llmgen.backends.cpu.kernels.{module}"), function_name)
    signature = function.signature
    foreign = _target_machine().triple != llvm.get_process_triple()
    with translating_only():
        dispatcher = njit(signature, no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)(function)
    (overload,) = dispatcher.overloads.values()
    inner = overload.fndesc.llvm_func_name
    returns = signature.return_type != types.void
    text = dispatcher.inspect_llvm(dispatcher.signatures[0])
    text += _wrapper(native_symbol(name), inner, len(signature.args), returns)
    if foreign:  # Numba translates for its own machine
        text = _OWN_MACHINE.sub("", text)
    return _emit(llvm.parse_assembly(text), native_symbol(name))


def _emit(module: Any, symbol: str) -> bytes:
    """Keep only ``symbol``, optimize, and emit machine code."""
    import llvmlite.binding as llvm

    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    module.verify()
    machine = _target_machine()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def _target_machine() -> Any:
    """LLVM's target machine for the level of this process."""
    import llvmlite.binding as llvm

    from llmgen.backends.cpu.runtime.cpu import target

    chosen = target()
    return llvm.Target.from_triple(chosen.triple).create_target_machine(
        cpu=chosen.cpu, features=chosen.features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


@contextmanager
def translating_only() -> Iterator[None]:
    """Make Numba translate to LLVM and do nothing else.

    For each helper it would also make wrappers to call it from Python, an optimized copy and
    machine code, all of which :func:`_emit` makes again for the whole kernel; that took 40% of
    the time.  These are private parts of Numba; a version without them compiles as usual.
    """
    from numba.core import codegen, cpu, dispatcher

    parts: list[tuple[Any, str, Any]] = [
        (getattr(dispatcher, "_FunctionCompiler", None), "_customize_flags", _without_wrappers),
        (getattr(codegen, "CPUCodeLibrary", None), "_optimize_final_module", lambda self: None),
        (getattr(codegen, "JITCodeLibrary", None), "_finalize_specific", lambda self: None),
        (getattr(codegen, "JITCPUCodegen", None), "_add_module", lambda self, module: None),
        (getattr(cpu, "CPUContext", None), "get_executable", _no_executable),
    ]
    if not all(hasattr(owner, name) for owner, name, _ in parts):
        yield
        return
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in parts]
    try:
        for owner, name, replacement in parts:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def _without_wrappers(compiler: Any, flags: Any) -> Any:
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    return flags


def _no_executable(context: Any, library: Any, descriptor: Any, environment: Any) -> Any:
    """Link the library; return an object that identifies the overload to Numba instead of a function to call."""
    library._ensure_finalized()
    return [].append


def main() -> None:
    """Compile the kernels named on stdin, in order."""
    import llvmlite.binding as llvm

    from llmgen.backends.cpu.runtime.cpu import FOREIGN, target

    level, foreign = sys.argv[1], sys.argv[2:]
    os.environ["LLMGEN_KERNEL_LEVEL"] = level
    if foreign:
        os.environ[FOREIGN] = foreign[0]
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        chosen = target(level)
        # Numba compiles for the process's own CPU unless told otherwise before it is imported
        os.environ["NUMBA_CPU_NAME"] = chosen.cpu
        os.environ["NUMBA_CPU_FEATURES"] = chosen.features
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    from llmgen.backends.cpu.runtime.threads import register_system_calls

    register_system_calls(llvm.add_symbol)
    gc.set_threshold(_MADE_BETWEEN_COLLECTIONS)
    # Nothing that other code prints may mix with the answers.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    for line in sys.stdin:
        name = line.strip()
        code = compile_kernel(name)
        answers.write(f"{name} {len(code)}\n".encode() + code)
        answers.flush()


if __name__ == "__main__":
    main()
