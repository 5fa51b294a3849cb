"""Every architecture in plain numpy, one formula after another: slow, but easy to verify.

It is the oracle in the tests of the compiled backend, and shows most directly what a forward
pass computes.
"""

from __future__ import annotations

from llmgen.backends.numpy.model import NumpyModel, NumpySequence, Precision

__all__ = ["NumpyModel", "NumpySequence", "Precision"]
