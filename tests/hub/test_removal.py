"""What ``rm`` removes: what llmgen has fetched, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from hub_server import COMMIT, Hub, sha256
from llmgen import hub
from llmgen.errors import DownloadError, LLMGenError, ModelFileError
from llmgen.hub import removal as removing
from llmgen.hub.cache import CachedRepository
from llmgen.hub.catalog import KNOWN_MODELS
from llmgen.hub.references import parse
from llmgen.hub.remote import Watch, partial_fetches
from llmgen.hub.removal import plan_removal
from llmgen.hub.state import note_fetched

DATA = b"GGUF" + bytes(1000)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGEN_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def pull(name: str, watch: Watch | None = None) -> Path:
    reference = parse(name)
    assert reference is not None
    return hub.fetch_reference(reference, None, watch)


def there(*folders: Path) -> list[str]:
    """All files and links below some folders."""
    return sorted(p.name for f in folders for p in f.rglob("*") if p.is_file() or p.is_symlink())


def test_a_model_of_the_hub_goes_with_all_that_leads_to_it(hub_at: Hub) -> None:
    repo = hub_at.add("o/r", {"s/m-Q4_K_M.gguf": DATA})
    pull("o/r")
    repo.commit = COMMIT[::-1]
    pull("o/r")
    removal = plan_removal("o/r")
    assert removal.size == len(DATA)
    assert len(removal.links) == 2
    removal.perform()
    cache = Path(constants.HF_HUB_CACHE)
    assert [path.name for path in cache.iterdir()] == [".locks"]
    assert there(cache) == []
    with pytest.raises(ModelFileError, match="'o/r' is not here"):
        plan_removal("o/r")


def test_the_other_model_of_a_repository_stays(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA, "m-Q8_0.gguf": DATA + b"x"})
    kept = pull("o/r:Q8_0")
    pull("o/r:Q4_K_M")
    plan_removal("o/r:Q4_K_M").perform()
    assert hub.find("o/r") == kept
    assert there(Path(constants.HF_HUB_CACHE)) == sorted(["m-Q8_0.gguf", sha256(DATA + b"x"), "main"])


def test_what_another_program_is_fetching_stays(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA})
    hub_at.plain["f/x.gguf"] = DATA
    url = f"{hub_at.files_url}/f/x.gguf"
    refused = []

    def remove(step: str, done: int, total: int) -> None:
        for name, _ in partial_fetches(hub.models_folders()):
            with pytest.raises(LLMGenError, match="is being fetched by another program; wait for that"):
                plan_removal(name).perform()
            refused.append(name)

    for name in ("o/r", url):
        assert pull(name, Watch(remove)).read_bytes() == DATA
    assert set(refused) == {"hf.co/o/r/m-Q4_K_M.gguf", url}
    for name in ("o/r", url):
        plan_removal(name).perform()
    assert there(Path(constants.HF_HUB_CACHE), *hub.models_folders()) == []


def test_killed_in_the_middle_of_fetching_or_removing(hub_at: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that llmgen has fetched is known as such at every moment."""
    hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def pull_and_remove() -> None:
        pull("o/r")
        plan_removal("o/r").perform()

    for place in (CachedRepository, "add"), (removing, "remove_partial"), (removing, "forget"):
        with monkeypatch.context() as patch:
            patch.setattr(*place, killed)
            with pytest.raises(KeyboardInterrupt):
                pull_and_remove()
        pull_and_remove()
        assert there(Path(constants.HF_HUB_CACHE)) == []


def test_a_split_model_goes_whole(hub_at: Hub) -> None:
    hub_at.add("o/r", {f"m-Q8_0-0000{i}-of-00002.gguf": DATA + bytes([i]) for i in (1, 2)})
    pull("o/r")
    removal = plan_removal("o/r")
    assert removal.size == 2 * len(DATA) + 2
    removal.perform()
    assert there(Path(constants.HF_HUB_CACHE)) == []


def test_what_another_program_has_fetched_stays(hub_at: Hub, tmp_path: Path) -> None:
    hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA})
    path = pull("o/r")
    for note in (tmp_path / "state" / "fetched").iterdir():
        note.unlink()
    with pytest.raises(ModelFileError, match="was not fetched by llmgen, so it stays"):
        plan_removal("o/r")
    assert path.read_bytes() == DATA


def test_a_users_own_file_stays(hub_at: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for path in (folder / "mine.gguf", folder / "smollm2.gguf", tmp_path / "other.gguf"):
        path.write_bytes(DATA)
    for name in ("mine", "smollm2", "other.gguf"):
        with pytest.raises(ModelFileError, match="was not fetched by llmgen"):
            plan_removal(name)


def test_a_users_copy_of_a_known_model_stays(hub_at: Hub, tmp_path: Path) -> None:
    """The name and the size of a known model do not say that llmgen has fetched it."""
    path = tmp_path / "models" / "smollm2.gguf"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(KNOWN_MODELS["smollm2"].size)
    with pytest.raises(ModelFileError, match="was not fetched by llmgen, so it stays"):
        plan_removal("smollm2")


@pytest.mark.parametrize("content", [DATA + b"changed", DATA[:-1] + b"x"])
def test_a_users_file_in_the_place_of_a_fetched_one_stays(hub_at: Hub, content: bytes) -> None:
    hub_at.plain["m.gguf"] = DATA
    path = pull(f"{hub_at.files_url}/m.gguf")
    before = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(before + 10**9, before + 10**9))
    with pytest.raises(ModelFileError, match="was not fetched by llmgen"):
        plan_removal("m")


def test_a_users_empty_folders_stay(hub_at: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetched file that was since moved to other models folders is removed without what it lay in."""
    hub_at.plain["m.gguf"] = DATA
    path = pull(f"{hub_at.files_url}/m.gguf")
    mine = tmp_path / "a" / "b" / "m.gguf"
    mine.parent.mkdir(parents=True)
    path.rename(mine)
    note_fetched(mine, "x")
    plan_removal(str(mine)).perform()
    assert mine.parent.is_dir()
    assert not mine.exists()


def test_a_file_from_a_url_goes_with_its_folder(hub_at: Hub, tmp_path: Path) -> None:
    hub_at.plain["m.gguf"] = DATA
    url = f"{hub_at.files_url}/m.gguf"
    pull(url)
    assert [model.name for model in hub.local_models()] == ["m"]
    plan_removal("m").perform()
    assert list((tmp_path / "models").iterdir()) == []


def test_what_an_interrupted_fetch_has_left(hub_at: Hub) -> None:
    hub_at.add("o/r", {"m-Q4_K_M.gguf": DATA})
    hub_at.cuts = [500, *[0] * 5]
    with pytest.raises(DownloadError):
        pull("o/r")
    url = f"{hub_at.files_url}/m.gguf"
    hub_at.plain["m.gguf"] = DATA
    hub_at.cuts = [500, *[0] * 5]
    with pytest.raises(DownloadError):
        pull(url)
    folders = hub.models_folders()
    assert [name for name, _ in partial_fetches(folders)] == ["hf.co/o/r/m-Q4_K_M.gguf", url]
    for name in ("o/r:Q4_K_M", url):
        removal = plan_removal(name)
        assert removal.size == 500
        removal.perform()
    assert there(Path(constants.HF_HUB_CACHE), *folders) == []


def test_a_partial_fetch_of_another_repository_stays(hub_at: Hub) -> None:
    for repo in ("o/r", "o/r2"):
        hub_at.add(repo, {"m-Q4_K_M.gguf": DATA})
        hub_at.cuts = [500, *[0] * 5]
        with pytest.raises(DownloadError):
            pull(repo)
    plan_removal("o/r").perform()
    assert [name for name, _ in partial_fetches([])] == ["hf.co/o/r2/m-Q4_K_M.gguf"]
    for name in ("o/r", "o/r2/n.gguf"):
        with pytest.raises(ModelFileError, match="is not here"):
            plan_removal(name)


@pytest.mark.parametrize("name", ["o/r", "nothing", "smollm2", "ollama:x"])
def test_what_is_not_here(hub_at: Hub, name: str) -> None:
    with pytest.raises(ModelFileError):
        plan_removal(name)
