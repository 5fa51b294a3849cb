"""The versions that ``llmgen --version`` shows, and this computer's CPU."""

from __future__ import annotations

import platform

from llmgen import __version__
from llmgen.errors import LLMGenError


def versions() -> str:
    """Return the versions of llmgen and its main dependencies, and the kernel level of this CPU."""
    from importlib.metadata import PackageNotFoundError, version

    lines = [f"llmgen {__version__}"]
    for package in ("numba", "numpy"):
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} not installed")
    lines += [f"python {platform.python_version()}", f"kernel level {kernel_level()}"]
    return "\n".join(lines)


def cpu_name() -> str:
    """Return the processor's name as the system reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model"):
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown CPU"


def kernel_level() -> str:
    """Return the kernel level that would be used, or why there is none."""
    try:
        from llmgen.backends.cpu.runtime import cpu

        return cpu.target().level
    except (ImportError, LLMGenError) as error:
        return f"unavailable ({error})"
