"""Memory that is touched only where it is used."""

from __future__ import annotations

import mmap

import numpy as np

from llmgen.errors import LLMGenError


class Arena:
    """``nbytes`` of zeroed address space, aligned to a page."""

    def __init__(self, nbytes: int, purpose: str) -> None:
        try:
            self._memory = mmap.mmap(-1, max(nbytes, 1))
        except (OSError, ValueError, OverflowError) as error:
            raise LLMGenError(
                f"{purpose} needs {nbytes / 2**20:.0f} MiB of memory, which this machine does not give; "
                "choose a smaller context (-c) or a smaller model"
            ) from error
        self.data = np.frombuffer(self._memory, dtype=np.uint8)
        self.address = int(self.data.ctypes.data)
        self.nbytes = nbytes
