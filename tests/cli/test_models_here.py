"""Models by their names at the command line: the hub, ``list``, ``alias``, ``cp``, ``rm`` and ``ps``."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gguf
import hub_server
import tiny
from hub_server import Hub
from program import HANGS_S, PROGRAM, environment, in_terminal, llmgen, refused


@dataclass
class Place:
    """A hub with a tiny model, and the variables that lead to it and to empty folders."""

    hub: Hub
    variables: dict[str, str]
    data: bytes

    def run(self, *arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        return llmgen(*arguments, **{**self.variables, **changes})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    tiny.write(tmp_path / "m.gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    monkeypatch.chdir(tmp_path)
    with hub_server.serving() as hub:
        hub.add("o/r", {"tiny-F32.gguf": data, "mmproj-F16.gguf": b"GGUF"})
        variables = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "LLMGEN_MODELS": str(tmp_path / "models"),
            "HOME": str(tmp_path / "home"),
            **hub_server.DIRECTLY,
        }
        if "LLMGEN_CACHE" not in os.environ:  # it would follow the home
            import platformdirs

            variables["LLMGEN_CACHE"] = platformdirs.user_cache_dir("llmgen", appauthor=False)
        yield Place(hub, variables, data)


def test_a_model_of_the_hub_is_fetched_once_and_run(place: Place) -> None:
    first = place.run("run", "hf.co/o/r", "--raw", "-n", "3", "--temp", "0", "ab")
    assert first.returncode == 0, first.stderr
    assert first.stderr.splitlines()[:1] == [f"fetching hf.co/o/r: {len(place.data) / 1000:.1f} kB"]
    asked = len(place.hub.asked)
    again = place.run("run", "o/r:F32", "--raw", "-n", "3", "--temp", "0", "ab")
    assert again.stdout == first.stdout
    plain = place.run("run", "o/r", "--raw", "-n", "3", "--temp", "0", "ab")
    assert plain.stderr.splitlines()[0] == "hf.co/o/r: tiny-F32.gguf, which is here"
    assert "which is here" not in again.stderr
    assert len(place.hub.asked) == asked
    listed = json.loads(place.run("list", "--json").stdout)["models"]
    assert [(entry["name"], entry["runs"], entry["place"]) for entry in listed] == [
        ("hf.co/o/r:F32", True, "hub cache")
    ]
    assert listed[0]["fetched_from"] == "hf.co/o/r"
    assert listed[0]["last_used"] > 0
    assert place.run("inspect", "hf.co/o/r:F32").returncode == 0


def test_a_split_model_is_fetched_whole_and_run(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts").mkdir()
    monkeypatch.setattr(gguf, "GGUFWriter", functools.partial(gguf.GGUFWriter, split_max_tensors=8))
    tiny.write(tmp_path / "parts" / "m-F32.gguf")
    parts = {f"F32/{path.name}": path.read_bytes() for path in sorted((tmp_path / "parts").iterdir())}
    assert len(parts) > 2
    place.hub.add("o/split", parts)
    done = place.run("run", "o/split:F32", "--raw", "-n", "3", "--temp", "0", "ab")
    assert done.returncode == 0, done.stderr
    assert done.stdout == place.run("run", "m.gguf", "--raw", "-n", "3", "--temp", "0", "ab").stdout
    assert len(place.hub.bodies) == len(parts)
    assert place.run("list").stdout.splitlines()[1].split()[0] == "hf.co/o/split:F32"
    assert place.run("rm", "-y", "o/split").returncode == 0


def test_pull_prints_the_path_and_draws_a_bar(place: Place) -> None:
    place.hub.add("o/big", {"big.gguf": b"GGUF" + bytes(2_000_000)})
    seen = in_terminal("pull", "hf.co/o/big", **place.variables)
    assert seen.code == 0
    assert "fetching hf.co/o/big" in seen.terminal
    assert "2.0 MB" in seen.terminal
    path = next((Path(place.variables["HF_HOME"]) / "hub").rglob("snapshots/*/big.gguf"))
    assert str(path) in "".join(seen.screen)
    done = place.run("pull", "o/big", "o/r")
    assert done.stdout.splitlines()[0] == str(path)
    assert len(place.hub.bodies) == 2


def test_errors_are_one_sentence(place: Place) -> None:
    assert "has no o/nothing" in refused(place.run("run", "o/nothing", "hi"))
    assert "has no file of the type Q8_0; it has F32" in refused(place.run("pull", "o/r:Q8_0"))
    assert "is the part that reads images" not in refused(place.run("pull", "o/r/x.gguf"))
    assert "reads images or sound (mmproj), not a model" in refused(place.run("pull", "o/r/mmproj-F16.gguf"))
    assert "cannot reach 127.0.0.1:9" in refused(
        place.run("run", "o/r", "hi", HF_ENDPOINT="http://127.0.0.1:9")
    )
    for address in ("nonsense", "ftp://x", "http://h:99999", "http://[bad"):
        assert "HF_ENDPOINT" in refused(place.run("run", "o/r", "hi", HF_ENDPOINT=address), 2)
    url = f"{place.hub.files_url}/m.gguf"
    assert "HF_ENDPOINT" in refused(place.run("run", url, "hi", HF_ENDPOINT="http://[bad"), 2)
    for arguments in (("list",), ("run", "o/r", "hi")):
        assert "cannot be read: " in refused(place.run(*arguments, HF_HUB_ETAG_TIMEOUT="ten"), 2)
    assert "HF_HUB_OFFLINE" in refused(place.run("run", "o/r", "hi", HF_HUB_OFFLINE="1"))


def test_aliases(place: Place) -> None:
    assert place.run("alias").stderr == "there is no alias yet; llmgen alias NAME MODEL makes one\n"
    assert place.run("alias", "fast", "hf.co/o/r").stderr == "fast stands for hf.co/o/r\n"
    assert place.run("cp", "m.gguf", "near").returncode == 0
    assert place.run("alias", "near").stdout == f"{Path('m.gguf').absolute()}\n"
    assert place.run("run", "near", "--raw", "-n", "1", "ab").returncode == 0
    assert place.run("run", "fast", "--raw", "-n", "1", "ab").returncode == 0
    assert place.run("cp", "fast", "faster").stderr == "faster stands for hf.co/o/r\n"
    assert set(json.loads(place.run("alias", "--json").stdout)) == {"fast", "faster", "near"}
    assert place.run("pull", "faster").stdout.endswith("tiny-F32.gguf\n")
    assert "'near' to fetch" in refused(place.run("pull", "near"))
    assert place.run("alias", "--remove", "near").returncode == 0
    assert "no alias 'near'" in refused(place.run("alias", "--remove", "near"))
    assert "is the name of a model" in refused(place.run("alias", "smollm2", "fast"), 2)
    assert "cannot be an alias" in refused(place.run("alias", "a/b", "fast"), 2)
    assert "no file nowhere.gguf" in refused(place.run("alias", "x", "nowhere.gguf"))


def test_rm_asks_and_frees_the_space(place: Place) -> None:
    [path] = place.run("pull", "o/r").stdout.split()
    for answer, remains in (("n", True), ("", True), ("y", False)):
        seen = _answered(place, answer, "rm", "o/r")
        assert seen.startswith(f"remove o/r ({len(place.data) / 1000:.1f} kB) for good? [y/N]")
        assert Path(path).exists() is remains
        assert ("nothing was removed" in seen) is remains
    place.run("pull", "o/r")
    assert "add --yes" in refused(place.run("rm", "o/r"), 2)
    assert "was not fetched by llmgen" in refused(place.run("rm", "m.gguf"))
    place.run("alias", "fast", "o/r")
    assert place.run("rm", "fast").stderr == "removed the alias fast; o/r stays\n"
    assert Path(path).exists()
    done = place.run("rm", "-y", "hf.co/o/r:F32")
    assert done.stderr == f"removed hf.co/o/r:F32, {len(place.data) / 1000:.1f} kB\n"
    assert [p for p in Path(place.variables["HF_HOME"]).rglob("*") if p.is_file()] == []
    assert "is not here" in refused(place.run("rm", "-y", "o/r"))


def _answered(place: Place, answer: str, *arguments: str) -> str:
    """What a command that asks writes to a terminal, where that is typed."""
    import pexpect

    child = pexpect.spawn(
        PROGRAM[0],
        [*PROGRAM[1:], *arguments],
        env=environment(**place.variables),
        encoding="utf-8",
        timeout=HANGS_S,
    )
    child.expect_exact("[y/N]")
    before = str(child.before) + str(child.after)
    child.sendline(answer)
    child.expect(pexpect.EOF)
    return before + str(child.before)


def test_the_models_of_other_programs_are_listed_and_run(place: Place) -> None:
    root = Path(place.variables["HOME"]) / ".ollama" / "models"
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "1b"
    manifest.parent.mkdir(parents=True)
    digest = hub_server.sha256(place.data)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    (root / "blobs").mkdir()
    (root / "blobs" / f"sha256-{digest}").write_bytes(place.data)
    assert "ollama:" not in place.run("list").stdout
    lines = place.run("list", "--all").stdout.splitlines()
    assert lines[1].split()[:1] + lines[1].split()[-1:] == ["ollama:tiny:1b", "Ollama"]
    assert place.run("run", "ollama:tiny:1b", "--raw", "-n", "1", "ab").returncode == 0
    assert "was not fetched by llmgen" in refused(place.run("rm", "-y", "ollama:tiny:1b"))


def test_ps_lists_a_chat_while_it_is_open(place: Place) -> None:
    assert place.run("ps").stderr == "no llmgen process has a model open\n"
    variables = environment(**place.variables)
    chat = subprocess.Popen(
        [*PROGRAM, "chat", "m.gguf", "--json", "--no-save", "--ignore-eos", "-n", "5"],
        *(-1, None, subprocess.PIPE, subprocess.PIPE, subprocess.DEVNULL),
        env=variables,
    )
    assert chat.stdin is not None
    assert chat.stdout is not None
    chat.stdin.write(b"ab\n")
    chat.stdin.flush()
    assert chat.stdout.readline()
    [entry] = json.loads(place.run("ps", "--json").stdout)["processes"]
    assert (entry["pid"], entry["command"], entry["model"]) == (
        chat.pid,
        "chat",
        str(Path("m.gguf").absolute()),
    )
    assert entry["prompt_tokens"] > 0
    assert entry["generated_tokens"] > 0
    assert entry["generated_tokens_per_s"] > 0
    assert place.run("ps").stdout.splitlines()[1].split()[:2] == [str(chat.pid), "chat"]
    chat.kill()
    chat.wait()
    assert json.loads(place.run("ps", "--json").stdout) == {"processes": []}
