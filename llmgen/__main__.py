"""``python -m llmgen``: the same as the ``llmgen`` command."""

from __future__ import annotations

from llmgen.cli import main

if __name__ == "__main__":
    main()
