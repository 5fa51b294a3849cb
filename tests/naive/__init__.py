"""The slow, obviously correct twin of llmgen: plain numpy, no llmgen code.

`naive.kernels` holds one function per kernel, `naive.settings` the numbers an
architecture reads from its file and their defaults, `naive.oracle` the forward
pass of ten architectures. Files are read and dequantized by the gguf package.
"""

from __future__ import annotations

from naive.oracle import Oracle, logits, nmse

__all__ = ["Oracle", "logits", "nmse"]
