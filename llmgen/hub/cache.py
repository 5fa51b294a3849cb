"""The Hugging Face cache: its files are used in place, and what is fetched is put there for all programs.

    models--OWNER--REPO/refs/main                    the commit that the branch was at
    models--OWNER--REPO/snapshots/COMMIT/FILE.gguf   a link to
    models--OWNER--REPO/blobs/HASH                   the file

See "Understand caching" in huggingface_hub's documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from llmgen.files import made_in, new_name, read_bounded, replacing
from llmgen.hub.contents import Candidate, candidates
from llmgen.hub.local import LocalModel, gguf_files
from llmgen.hub.references import HubReference, safe_path
from llmgen.hub.settings import constants

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_FOLDER = re.compile(r"models--(?P<owner>.+?)--(?P<repo>.+)\Z")


def cache_folder() -> Path:
    """Where the cache is: $HF_HUB_CACHE, else ``hub`` in $HF_HOME, as huggingface_hub reads them."""
    return Path(constants().HF_HUB_CACHE)


class CachedRepository:
    """The folder of one repository in the cache; it need not exist."""

    def __init__(self, repo_id: str, cache: Path | None = None) -> None:
        self._cache = cache or cache_folder()
        self.repo_id = repo_id
        self.folder = self._cache / f"models--{repo_id.replace('/', '--')}"

    def snapshot(self, revision: str) -> Path | None:
        """The folder with the files of a branch or commit, as it was when it was last asked for."""
        commit = revision if _COMMIT.match(revision) else self._commit_of(revision)
        if commit is None or not safe_path(commit):
            return None
        folder = self.folder / "snapshots" / commit
        return folder if folder.is_dir() else None

    def _commit_of(self, branch: str) -> str | None:
        with suppress(OSError), open(self.folder / "refs" / branch, "rb") as file:
            return (read_bounded(file, 200) or b"").decode("utf-8", "replace").strip() or None
        return None

    def models(self, snapshot: Path) -> list[Candidate]:
        """The models in the folder of a snapshot of which all files are here."""
        return [model for model in candidates(gguf_files(snapshot)) if not model.missing]

    def local_models(self) -> list[LocalModel]:
        """The models of the branch ``main``, by the shortest name that means just one; others by their paths."""
        found: dict[Path, LocalModel] = {}
        for folder in self.snapshots():
            models = self.models(folder)
            types = [model.type for model in models]
            for model in models:
                files = tuple(folder.joinpath(*file.path.split("/")) for file in model.files)
                name = str(files[0])
                if folder == self.snapshot("main"):
                    alone = model.type and types.count(model.type) == 1
                    name = f"hf.co/{self.repo_id}" + (f":{model.type}" if alone else f"/{model.path}")
                found.setdefault(files[0].resolve(), LocalModel(name, files, model.size or 0, "hub cache"))
        return sorted(found.values(), key=lambda model: model.name)

    def snapshots(self) -> list[Path]:
        """The folders of all commits, that of ``main`` first, then the latest ones."""
        main = self.snapshot("main")
        others = []
        with suppress(OSError):
            times = {path: path.stat().st_mtime for path in (self.folder / "snapshots").iterdir()}
            others = sorted(times, key=lambda path: -times[path])
        return list(dict.fromkeys(([main] if main else []) + others))

    def blob(self, name: str) -> Path:
        """Where the content of that hash is, or will be."""
        return self.folder / "blobs" / name

    def lock(self, name: str) -> Path:
        """The lock file of a blob."""
        return lock_of(self.blob(name))

    def pointer(self, commit: str, path: str) -> Path:
        """Where a file of a commit is."""
        return self.folder.joinpath("snapshots", commit, *path.split("/"))

    def add(self, blob: Path, pointer: Path) -> None:
        """Have the file of a commit lead to its content, at no moment to nothing.  Raises OSError."""
        link = new_name(pointer.parent)

        def make() -> None:
            try:
                os.symlink(os.path.relpath(blob, pointer.parent), link)
            except FileNotFoundError:
                raise
            except OSError:  # Windows, without the right to make links: huggingface_hub moves the file too
                os.replace(blob, pointer)
            else:
                os.replace(link, pointer)

        made_in(pointer.parent, make)

    def remove_empty_folders(self) -> None:
        """Leave nothing of a repository of which nothing is here: other programs would call it damaged."""
        with suppress(OSError):  # not empty
            (self.folder / "blobs").rmdir()
            self.folder.rmdir()

    def set_branch(self, branch: str, commit: str) -> None:
        """Remember the commit that a branch is at.  Raises OSError."""
        if branch == commit and _COMMIT.match(commit):
            return
        path = self.folder / "refs" / branch
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, 0o666) as file:
            file.write(commit.encode())


def lock_of(blob: Path) -> Path:
    """The lock file of a blob, the same as huggingface_hub's."""
    repository = blob.parent.parent
    return repository.parent / ".locks" / repository.name / f"{blob.name}.lock"


def repositories(cache: Path | None = None) -> list[CachedRepository]:
    """The repositories of models in the cache, by name."""
    cache = cache or cache_folder()
    try:
        names = sorted(entry.name for entry in os.scandir(cache) if entry.is_dir())
    except OSError:
        return []
    found = [_FOLDER.match(name) for name in names]
    return [CachedRepository(f"{name['owner']}/{name['repo']}", cache) for name in found if name]


def cached(reference: HubReference) -> Iterator[tuple[Path, list[Candidate]]]:
    """The snapshots that may hold what a reference names, and the models in them.

    Other files of a repository may have been fetched since, at a later commit; so the branch ``main``
    stands for all commits, its own first.
    """
    repository = CachedRepository(reference.repo_id)
    named = repository.snapshot(reference.revision)
    others = repository.snapshots() if reference.revision == "main" else []
    for folder in dict.fromkeys(([named] if named else []) + others):
        yield folder, repository.models(folder)


def cached_models(cache: Path | None = None) -> list[LocalModel]:
    """The models in the cache, whoever has fetched them, by names that may be typed."""
    return [model for repository in repositories(cache) for model in repository.local_models()]
