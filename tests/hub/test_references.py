"""Which names are places elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgen import hub
from llmgen.errors import ModelFileError
from llmgen.hub.references import HubReference, UrlReference, parse, safe_path

BASE = HubReference("o", "r")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and no settings of the hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMGEN_MODELS", str(tmp_path / "none"))
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("hf.co/o/r", BASE),
        ("HF.co/o/r", BASE),
        ("huggingface.co/o/r", BASE),
        ("o/r", BASE),
        ("o/r:latest", BASE),
        ("o/r:Q4_K_M", HubReference("o", "r", tag="Q4_K_M")),
        ("hf.co/o.x/r-1.5_b:q8_0", HubReference("o.x", "r-1.5_b", tag="q8_0")),
        ("o/r/a.gguf", HubReference("o", "r", file="a.gguf")),
        ("o/r/sub/A b.GGUF", HubReference("o", "r", file="sub/A b.GGUF")),
        ("o/r/a-00002-of-00003.gguf", HubReference("o", "r", file="a-00001-of-00003.gguf")),
        ("https://huggingface.co/o/r", BASE),
        ("https://huggingface.co/o/r/tree/main", BASE),
        ("https://hf.co/o/r/blob/main/a.gguf", HubReference("o", "r", file="a.gguf")),
        (
            "https://huggingface.co/o/r/resolve/v1/s/a.gguf?download=true",
            HubReference("o", "r", file="s/a.gguf", revision="v1"),
        ),
        ("https://e.org/x/a.gguf?key=1", UrlReference("https://e.org/x/a.gguf?key=1")),
        ("http://e.org:8080/a%20b.gguf", UrlReference("http://e.org:8080/a%20b.gguf")),
        ("https://e.org/a-00002-of-00003.gguf", UrlReference("https://e.org/a-00001-of-00003.gguf")),
    ],
)
def test_places(text: str, means: object) -> None:
    assert parse(text) == means


@pytest.mark.parametrize(
    "text",
    [
        "smollm2",
        "a.gguf",
        "./o/r",
        "../o/r",
        "/o/r",
        "~/o/r",
        "o/a.gguf",
        "o/r/x",
        "o--p/r",
        "o/r/../a.gguf",
        "o/..",
        "",
        "o/r\n",
        "o/r:Q4\n",
    ],
)
def test_paths_and_names(text: str) -> None:
    assert parse(text) is None


def test_a_folder_that_is_here_makes_it_a_path(here: Path) -> None:
    (here / "o").mkdir()
    assert parse("o/r") is None
    with pytest.raises(ModelFileError, match="no file o/r; .*, or hf.co/o/r for that of the hub"):
        hub.find("o/r")
    assert parse("hf.co/o/r") == BASE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hf.co/", "names no model on the hub"),
        ("hf.co/o", "names no model on the hub"),
        ("hf.co/o/r:", "names no model on the hub"),
        ("hf.co/o/r/../../x.gguf", "names no model on the hub"),
        ("hf.co/o/r/x\x1b[2J.gguf", r"r/x\\x1b\[2J"),
        ("https://huggingface.co/datasets/o/r/resolve/main/a.gguf", "names no model on the hub"),
        ("https://huggingface.co/o/r/resolve/../a.gguf", "names no model on the hub"),
        ("https://e.org/", "not the URL of a .gguf file"),
        ("https://e.org/a.zip", "not the URL of a .gguf file"),
        ("https://e.org/..%2fa.gguf/..", "not the URL of a .gguf file"),
        ("https:///a.gguf", "has no host"),
        ("https://me:secret@e.org/a.gguf", "has a password"),
        ("https://e.org:99999999/a.gguf", "is not a URL"),
        ("https://e.org/a b.gguf", "blanks or control"),
        ("https://[::1/a.gguf", "is not a URL"),
    ],
)
def test_places_that_cannot_be(text: str, says: str) -> None:
    with pytest.raises(ModelFileError, match=says) as raised:
        parse(text)
    assert "secret" not in str(raised.value)


def test_the_host_of_a_mirror_is_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror:81")
    assert parse("http://mirror:81/o/r/resolve/main/a.gguf") == HubReference("o", "r", file="a.gguf")
    assert isinstance(parse("http://mirror/o/r/resolve/main/a.gguf"), UrlReference)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "..",
        "a/../b",
        ".",
        "a\\b",
        "C:a",
        "a\nb",
        "a\0",
        "a\u202eb",
        "\udc80",
        "x" * 256,
    ],
)
def test_names_that_lead_elsewhere(path: str) -> None:
    assert not safe_path(path)
    assert safe_path("a/b c/ü.gguf")
