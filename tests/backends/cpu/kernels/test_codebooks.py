"""The numbers of the codebooks: one that is wrong would only make a model a little worse."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from llmgen.backends.cpu.kernels.quants import grids


@pytest.mark.parametrize(
    ("name", "n", "digest"),
    [
        ("IQ1", 2048, "07540ffc1aeaf6ad"),
        ("IQ2_XXS", 256, "05826b5d3e472a3a"),
        ("IQ2_XS", 512, "06e47aaca60b4dc1"),
        ("IQ2_S", 1024, "e1aa1473412b0552"),
        ("IQ3_XXS", 256, "46e35f5a997efdee"),
        ("IQ3_S", 512, "bd1af4945a1717c6"),
    ],
)
def test_every_number(name: str, n: int, digest: str) -> None:
    codebook: grids.Codebook = getattr(grids, name)
    vectors = np.array(codebook.vectors(), np.int8)
    assert vectors.shape == (n, codebook.width)
    assert hashlib.sha256(vectors.tobytes()).hexdigest()[:16] == digest
    words = np.array(grids.as_words(codebook.vectors()), f"<u{codebook.width}")
    np.testing.assert_array_equal(words.view(np.int8).reshape(n, -1), vectors)


def test_the_codebooks_stay_out_of_a_program() -> None:
    """Only the compiler process reads them."""
    code = "import llmgen.backends.cpu.model, sys; print(any(name.endswith('quants.grids') for name in sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
