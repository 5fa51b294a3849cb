"""Every architecture in plain numpy, one formula after another: slow, and easy to believe.

It is the oracle in the tests of the fast backends, and the shortest answer to the question
what a forward pass computes.
"""

from __future__ import annotations

from llmgen.backends.numpy.model import NumpyModel, NumpySequence, Precision

__all__ = ["NumpyModel", "NumpySequence", "Precision"]
