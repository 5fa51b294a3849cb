"""The files that a kernel is compiled from; a change to any other file recompiles nothing."""

from __future__ import annotations

import hashlib
import re
import sys
from functools import cache, lru_cache
from pathlib import Path

from llmgen.backends.cpu.kernels.quants import TABLE

_RUNTIME = Path(__file__).parent
_KERNELS = _RUNTIME.parent / "kernels"
_COMPILER = (_RUNTIME / "compile.py", _RUNTIME / "cpu.py")
"""How every kernel is compiled."""
_BLOCK_SIZES = _RUNTIME.parents[2] / "gguf" / "types.py"
"""Where the kernels of tensor types take the sizes of blocks from."""
_PACKAGE = "llmgen.backends.cpu.kernels"
_IMPORT = re.compile(
    rf"^[ \t]*from {re.escape(_PACKAGE)}([\w.]*) import (\([^)]*\)|[^\n]*)|^[ \t]*import ({re.escape(_PACKAGE)}[\w.]*)",
    re.MULTILINE,
)


def modules_of(kernel: str) -> tuple[str, ...]:
    """The modules that a kernel ("module:name") is made of: its own and, for one of a tensor type, the type's."""
    module, _, name = kernel.partition(":")
    line = TABLE.get(name) if module.startswith("quants.") else None
    return (module,) if line is None else (module, f"quants.{line.module}")


@cache
def sources_of(*modules: str) -> tuple[Path, ...]:
    """The files of kernel modules (names below the package) and all that they import of the package, sorted."""
    found: set[Path] = set()
    waiting = [_file_of(module) for module in modules]
    while waiting:
        path = waiting.pop()
        if path is not None and path not in found:
            found.add(path)
            waiting.extend(_imports(path))
    return tuple(sorted(found))


def sources_hash(kernel: str) -> str:
    """Hash of a kernel's sources, of how they are compiled, and of the compiler's versions."""
    digest = hashlib.sha256(_versions())
    sizes = [_BLOCK_SIZES] if kernel.startswith("quants.") else []
    for path in (*_COMPILER, *sizes, *sources_of(*modules_of(kernel))):
        digest.update(path.name.encode() + b"\0" + _content(path))
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _versions() -> bytes:
    from importlib.metadata import version

    return "\n".join([version("numba"), version("llvmlite"), sys.version, sys.platform]).encode()


@cache
def _content(path: Path) -> bytes:
    """A digest of the file; each is read once."""
    return hashlib.sha256(path.read_bytes()).digest()


@cache
def _imports(path: Path) -> tuple[Path, ...]:
    """The files of the package that a file imports."""
    found: list[Path] = []
    for match in _IMPORT.finditer(path.read_text(encoding="utf-8")):
        base, names, whole = match.groups()
        if whole is not None:
            modules = [whole.removeprefix(_PACKAGE).lstrip(".")]
        else:
            base = base.lstrip(".")
            listed = [name.split(" as ")[0].strip() for name in names.strip("()").split(",")]
            # "from package import name" may mean a module, "from module import name" may not
            modules = [base, *(f"{base}.{name}".lstrip(".") for name in listed if name.isidentifier())]
            modules.append(base.rpartition(".")[0])  # its package, which Python loads with it
        found.extend(file for module in modules if (file := _file_of(module)) is not None)
    return tuple(found)


def _file_of(module: str) -> Path | None:
    """The file of a module of the package; None where there is none."""
    path = _KERNELS.joinpath(*module.split(".")) if module else _KERNELS
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def forget() -> None:
    """Forget what was read; for tests that change sources."""
    for function in (sources_of, _content, _imports, _versions):
        function.cache_clear()
