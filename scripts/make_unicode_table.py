"""Write llmgen/tokenizer/unicode_table.py, the general categories of Unicode 15.1.

The table is fixed to one version of Unicode, the one that llama.cpp's tokenizers use,
so that a text has the same tokens under every Python.  Needs a module with the data of
just that version: ``pip install unicodedata2==15.1.0``.
"""

from __future__ import annotations

from pathlib import Path

import unicodedata2

VERSION = "15.1.0"
TARGET = Path(__file__).resolve().parents[1] / "llmgen" / "tokenizer" / "unicode_table.py"
HEAD = '''"""The general categories of Unicode {version}, by code point.

Written by scripts/make_unicode_table.py; do not edit.  Each entry is the length of a run
of code points in hexadecimal and the first letter of their category: (L)etter, (M)ark,
(N)umber, (P)unctuation, (S)ymbol; O is everything else.
"""

from __future__ import annotations

# fmt: off
RUNS = (
'''


def main() -> None:
    """Write the table."""
    if unicodedata2.unidata_version != VERSION:
        raise SystemExit(f"found Unicode {unicodedata2.unidata_version}, need {VERSION}")
    runs: list[list] = []
    for point in range(0x110000):
        letter = unicodedata2.category(chr(point))[0]
        letter = letter if letter in "LMNPS" else "O"
        if runs and runs[-1][1] == letter:
            runs[-1][0] += 1
        else:
            runs.append([1, letter])
    text = "".join(f"{count:x}{letter}" for count, letter in runs)
    lines = [f'    "{text[i : i + 100]}"\n' for i in range(0, len(text), 100)]
    TARGET.write_text(HEAD.format(version=VERSION) + "".join(lines) + ")\n# fmt: on\n")


if __name__ == "__main__":
    main()
