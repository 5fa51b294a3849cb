"""The sizes of this machine's caches, and what follows from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_USUAL_L2 = 1 << 19
"""Bytes of second-level cache if the system does not tell; no recent server or laptop has less."""


@cache
def l2_bytes() -> int:
    """Bytes of the second-level cache that a core has for itself."""
    # Linux: Documentation/ABI/testing/sysfs-devices-system-cpu
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (index / "level").read_text().strip() == "2":
                size = (index / "size").read_text().strip()
                return int(size.removesuffix("K")) * 1024 if size.endswith("K") else int(size)
        except (OSError, ValueError):
            continue
    return _USUAL_L2


def panels_together() -> int:
    """Panels that the panel kernel takes at once; with more of them it reads the activations less often."""
    return 8 if l2_bytes() >= 1 << 20 else 4
