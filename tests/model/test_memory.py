"""How much memory there is: the limits of a process count, too."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space, and /proc")
@pytest.mark.parametrize(("limit", "field"), [("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)])
def test_a_limit_of_the_process_is_a_limit(limit: str, field: int) -> None:
    """Two GiB more than it has; a library that starts a thread on each of many processors reserves as much for them."""
    code = (
        "import resource\n"
        "from llmgen.backends.cpu.memory import available_bytes\n"
        "free = available_bytes()\n"
        f"resource.setrlimit(resource.{limit}, (1 << 40, resource.RLIM_INFINITY))\n"
        "same = available_bytes()\n"
        f"pages = int(open('/proc/self/statm').read().split()[{field}])\n"
        "limit = pages * resource.getpagesize() + (2 << 30)\n"
        f"resource.setrlimit(resource.{limit}, (limit, resource.RLIM_INFINITY))\n"
        "less = available_bytes()\n"
        f"resource.setrlimit(resource.{limit}, (1 << 20, resource.RLIM_INFINITY))\n"
        "print(free, same, less, available_bytes())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    free, same, less, none = map(int, done.stdout.split())
    assert same > free // 2
    assert 0 < less < (2 << 30) - 200 * MIB  # 256 MiB are left for what else a model takes
    assert none == 0
