"""What the shell offers after Tab."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmgen.cli.app import COMMANDS
from llmgen.cli.common.bash import rejoined
from llmgen.cli.common.completion import QUANTIZED, TEMPLATES
from llmgen.hub import state
from llmgen.model.kv_config import KV_KINDS
from llmgen.quantize.mixes import MIXES
from llmgen.tokenizer.builtin import FORMATS
from program import HANGS_S, environment

MODEL_LAYER = "application/vnd.ollama.image.model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in a folder, two in the hub's cache, one of Ollama's, and an alias."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LLMGEN_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--own--rep" / "snapshots" / COMMIT
    manifest = home / ".ollama" / "models" / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "1b"
    digest = "ab" * 32
    files = {
        tmp_path / "models" / "mine.gguf": "GGUF",
        snapshot / "m-Q4_K_M.gguf": "GGUF",
        snapshot / "m-Q8_0.gguf": "GGUF",
        snapshot.parent.parent / "refs" / "main": COMMIT,
        manifest: json.dumps({"layers": [{"mediaType": MODEL_LAYER, "digest": f"sha256:{digest}"}]}),
        manifest.parents[4] / "blobs" / f"sha256-{digest}": "GGUF",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    state.set_alias("fast", "hf.co/own/rep:Q8_0")


def offered(shell: str, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """What a shell gets; the cursor is at the end of the last word."""
    typed = " ".join(("llmgen", *words))
    variables = {
        "_LLMGEN_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(("llmgen", *words)),
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": typed,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    return subprocess.run(
        [sys.executable, *options, "-m", "llmgen"],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )


def in_bash(*words: str) -> list[str]:
    return offered("bash", *words).stdout.split()


def test_commands() -> None:
    assert in_bash("ru") == ["run"]
    assert in_bash("p") == [name for name in COMMANDS if name.startswith("p")]
    assert in_bash("chats", "ex") == ["export"]
    assert "--ctx" in in_bash("run", "--c")


def test_models() -> None:
    assert in_bash("run", "") == [
        "fast",
        "gemma3-270m",
        "hf.co/own/rep:Q4_K_M",
        "hf.co/own/rep:Q8_0",
        "mine",
        "smollm2",
    ]
    assert in_bash("run", "fa") == ["fast"]
    assert in_bash("rm", "mine", "sm") == ["smollm2"]
    assert in_bash("run", "smollm2", "--draft", "mi") == ["mine"]
    assert in_bash("run", "mine", "fa") == []  # the prompt


def test_bash_cuts_words_at_colons() -> None:
    assert in_bash("run", "hf.co/own/rep", ":") == ["Q4_K_M", "Q8_0"]
    assert in_bash("run", "hf.co/own/rep", ":", "Q8") == ["Q8_0"]
    assert in_bash("run", "ollama", ":", "tiny", ":") == ["1b"]
    assert in_bash("run", "hf.co/own/rep", ":", "Q8_0", "--kv-type", "=", "f3") == ["f32"]


@pytest.mark.parametrize(
    ("words", "cursor", "means"),
    [
        (["llmgen", "run", "a", ":", "b", "c"], 4, (["llmgen", "run", "a:b", "c"], 2)),
        (["llmgen", "run", "a", ":"], 3, (["llmgen", "run", "a:"], 2)),
        (["llmgen", "run", "a", ":", "b", ""], 5, (["llmgen", "run", "a:b", ""], 3)),
        (["llmgen", "--x", "=", "1"], 3, (["llmgen", "--x", "1"], 2)),
        (["llmgen", "--x", "="], 2, (["llmgen", "--x", ""], 2)),
        (["llmgen", "run"], 2, (["llmgen", "run"], 2)),
        ([""], 0, ([""], 0)),
    ],
)
def test_words_are_joined_again(words: list[str], cursor: int, means: tuple[list[str], int]) -> None:
    assert rejoined(words, cursor) == means


def test_the_values_of_options() -> None:
    assert in_bash("run", "mine", "--kv-type", "") == [*KV_KINDS, "auto"]
    assert in_bash("run", "mine", "--context-full", "s") == ["stop", "shift"]
    assert in_bash("run", "mine", "--template", "ch") == ["chatml"]
    assert in_bash("chat", "mine", "--think", "f") == ["fold"]
    assert in_bash("bench", "--format", "j") == ["json", "jsonl"]
    assert in_bash("quantize", "mine", "Q4_K") == ["Q4_K_M", "Q4_K_S"]


def test_zsh_and_fish() -> None:
    assert (
        offered("zsh", "run", "hf.co/own/rep:Q8").stdout
        == "_arguments '*: :((\"hf.co/own/rep\\\\:Q8_0\"))'\n"
    )
    assert offered("fish", "run", "hf.co/").stdout.split() == ["hf.co/own/rep:Q4_K_M", "hf.co/own/rep:Q8_0"]
    assert offered("fish", "ru").stdout == "run\tComplete one prompt.\n"


def test_it_loads_nothing_slow() -> None:
    loaded = offered("bash", "run", "mine", "--kv-type", "", options=("-X", "importtime"))
    assert "f16" in loaded.stdout
    for module in ("numpy", "pydantic", "rich.console", "httpx2", "urllib.request", "tokenizers", "jinja2"):
        assert f" {module}\n" not in loaded.stderr


def test_the_lists_that_are_kept_here_are_right() -> None:
    assert set(TEMPLATES) == set(FORMATS)
    assert list(QUANTIZED) == list(MIXES)
