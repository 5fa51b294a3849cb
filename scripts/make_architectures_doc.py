"""Write docs/architectures.md anew: every architecture that llmgen runs, from its class and its tests.

    python scripts/make_architectures_doc.py

Needs the fixtures of tests/shared.py, since the page tells what was compared with llama.cpp.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT / "tests"))

from archs import CHANGED, SPECS, build_arch  # noqa: E402
from llmgen.gguf import GGUFFile  # noqa: E402
from llmgen.model.archs import find, names, read_model  # noqa: E402
from llmgen.model.states import KV, Contents, Latent, Recurrent  # noqa: E402

PAGE = _ROOT / "docs" / "architectures.md"
_HEAD = """# The architectures that llmgen runs

A GGUF file names its architecture in `general.architecture` (`llmgen inspect FILE` shows it). This page
is made from the code by `scripts/make_architectures_doc.py`; [adding_an_architecture.md](adding_an_architecture.md)
shows how to add one.

*Proven* says what was compared with llama.cpp's logits on tiny random models in float32: always as
one run, token by token, and in uneven pieces, with a normalized mean squared error under 1e-6.
*layers*: also with six layers instead of two; *YaRN*: with stretched rotations; *scale*: with scaled logits;
*experts*: with three of eight experts instead of two of two; *norm*: with keys that normalize and scale their weights.

| architecture | models | what it is | remembers | proven |
|---|---|---|---|---|
"""
_FOOT = """
Of models that write by diffusion, `LLM.logits` computes the logits of a text with its masks, in one run;
filling the masks in is not there yet, so `llmgen run` and the others refuse them.

A file of any other architecture is refused with the nearest names.
"""
_KINDS = {"layers": "layers", "yarn": "YaRN", "scale": "scale", "experts": "experts", "norm": "norm"}


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_row(name) for name in names()) + _FOOT


def _row(name: str) -> str:
    cls = find(name)
    assert cls is not None
    assert cls.__doc__ is not None
    summary = " ".join(cls.__doc__.split("\n\n")[0].split())
    specs = [spec for spec in SPECS if spec in (f"{name}-dense", f"{name}-moe")]
    changed = {kind for spec, kind in CHANGED if spec in specs}
    proven = ", ".join(["logits", *(words for kind, words in _KINDS.items() if kind in changed)])
    if not specs:
        return f"| `{name}` | {cls.models} | {summary} | | no reference at hand |\n"
    return f"| `{name}` | {cls.models} | {summary} | {_remembers(specs[0])} | {proven} |\n"


def _remembers(spec: str) -> str:
    with GGUFFile.open(build_arch(spec)) as file:
        states = read_model(file).states()
    words = "keys and values" if any(isinstance(state, KV) for state in states) else ""
    if any(isinstance(state, KV) and not state.causal for state in states):
        words += " of a whole text"
    if any(isinstance(state, KV) and state.window for state in states):
        words += ", some in a sliding window"
    if any(isinstance(state, Latent) for state in states):
        words = "latents of keys and values"
    if any(isinstance(state, Contents) for state in states):
        words = "contents of the last tokens, summaries of all"
    if any(isinstance(state, Recurrent) for state in states):
        words += f"{' and ' if words else ''}a recurrent state"
    return words


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
