"""Removing models: only files that llmgen itself has fetched, and what nothing else leads to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from llmgen.errors import LLMGenError, ModelFileError, shown
from llmgen.files import try_folder_lock
from llmgen.hub.catalog import KnownModel
from llmgen.hub.folder import find, models_folders
from llmgen.hub.remote import URLS, lock_of, partials_of
from llmgen.hub.splits import split_of
from llmgen.hub.state import fetched_from, forget
from llmgen.hub.transfer import remove_partial


@dataclass(frozen=True)
class Removal:
    """What would go: the files, the links that lead to them, and how many bytes that frees."""

    name: str
    files: tuple[Path, ...]
    links: tuple[Path, ...]
    size: int

    def perform(self) -> None:
        """Remove it, and the folders that are empty then.

        What is noted of a file goes last: a program that is killed leaves no file that nobody seems to
        have fetched.  Raises LLMGenError, also where another program is fetching it.
        """
        with self._fetched_by_nobody():
            for path in (*self.links, *self.files):
                try:
                    remove_partial(path)  # or a whole file, which has no companion
                except OSError as error:
                    raise LLMGenError(f"cannot remove {path}: {error.strerror or error}") from None
            for path in self.files:
                forget(path)
        for path in (*self.links, *self.files):
            _remove_empty_folders(path.parent)

    @contextmanager
    def _fetched_by_nobody(self) -> Iterator[None]:
        """Keep other programs from fetching it for the length of the block."""
        with ExitStack() as stack:
            for lock in dict.fromkeys(map(lock_of, self.files)):
                with suppress(
                    OSError
                ):  # who may not write there cannot remove it either, or there are no locks
                    if stack.enter_context(try_folder_lock(lock)) == "taken":
                        raise LLMGenError(
                            f"{shown(self.name)} is being fetched by another program; "
                            "wait for that, or end it, and try again"
                        )
            yield


def plan_removal(model: str) -> Removal:
    """What removing the model of that name would remove.

    Raises:
        ModelFileError: there is no such model here, or llmgen has not fetched it.
    """
    found = find(model)
    if not isinstance(found, Path):
        partial = () if isinstance(found, KnownModel) else tuple(partials_of(found, models_folders()))
        if not partial:
            raise ModelFileError(f"{shown(model)} is not here; `llmgen list` shows what is")
        return Removal(model, partial, (), _bytes(partial))
    files = _files(found)
    for file in files:
        if fetched_from(file) is None:  # neither name nor size tells who has put it there
            raise ModelFileError(
                f"{file} was not fetched by llmgen, so it stays; remove it with the program that has put it there"
            )
    contents = tuple(dict.fromkeys(Path(os.path.realpath(file)) for file in files))
    links = tuple(link for content in contents for link in _links(content))
    return Removal(model, contents, links, _bytes(contents))


def _files(first: Path) -> tuple[Path, ...]:
    """The files of a model: all parts of a split one that are there."""
    split = split_of(first.name)
    names = split.names() if split else [first.name]
    return tuple(path for name in names if (path := first.with_name(name)).exists())


def _links(content: Path) -> Iterator[Path]:
    """The links in the hub's cache that lead to a file there."""
    if content.parent.name != "blobs":
        return
    for place, _, names in os.walk(content.parent.parent / "snapshots"):
        for name in names:
            link = Path(place, name)
            if link.is_symlink() and Path(os.path.realpath(link)) == content:
                yield link


def _bytes(paths: tuple[Path, ...]) -> int:
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return size


def _remove_empty_folders(folder: Path) -> None:
    """Remove folders that are empty now: of a repository in the cache, or of a URL in the models folder."""
    if folder.parent.name == URLS:
        inside = [folder, folder.parent]
    else:
        inside = []
        for place in (folder, *folder.parents):
            if place.name.startswith("models--"):
                break
            inside.append(place)
        else:  # a folder of the user's
            return
    with suppress(OSError):  # not empty
        for place in inside:
            place.rmdir()
        if folder.parent.name != URLS:
            _remove_repository(inside[-1].parent)


def _remove_repository(folder: Path) -> None:
    """Remove a repository in the cache of which only the names of branches are left."""
    if any((folder / name).exists() for name in ("blobs", "snapshots")):
        return
    with suppress(OSError):
        for branch in (folder / "refs").rglob("*"):
            branch.unlink()
        (folder / "refs").rmdir()
        folder.rmdir()
