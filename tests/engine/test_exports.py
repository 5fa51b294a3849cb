from __future__ import annotations

import subprocess
import sys

import llmgen


def test_importing_llmgen_loads_neither_numpy_nor_numba():
    code = "import sys, llmgen; sys.exit(any(m in sys.modules for m in ('numpy', 'numba', 'llmgen.engine')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_is_there():
    for name in llmgen.__all__:
        assert getattr(llmgen, name) is not None
    import llmgen.engine as generation

    for name in generation.__all__:
        assert getattr(generation, name) is not None
