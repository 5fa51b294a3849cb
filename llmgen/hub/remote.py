"""A model of the hub or of a URL: found where it is here already, fetched where it is not."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llmgen.errors import DownloadError, ModelFileError, shown
from llmgen.files import folder_lock, made_in
from llmgen.hub import cache, web, wheels
from llmgen.hub.choice import choose
from llmgen.hub.contents import Candidate, File
from llmgen.hub.references import HubReference, Reference, UrlReference
from llmgen.hub.repository import Repository, look_up
from llmgen.hub.space import check_space, disk_errors
from llmgen.hub.splits import split_of
from llmgen.hub.state import note_fetched
from llmgen.hub.transfer import (
    PARTIAL,
    Body,
    Fetched,
    partial_files,
    partial_path,
    remove_partial,
    transfer,
    what_is_partial,
)

Progress = Callable[[str, int, int], None]
"""As in ``transfer.py``, and with step "wait" where another program fetches the same."""
Say = Callable[[str], None]
URLS = "urls"
"""The folder in the models folder for what is fetched from URLs."""


@dataclass(frozen=True)
class Watch:
    """Who is told how far a fetch is, and in a line, what was decided."""

    progress: Progress = field(default=lambda step, done, total: None)
    say: Say = field(default=lambda line: None)
    check: Callable[[Path], None] = field(default=lambda path: None)
    """Given a whole model whose server has announced neither a hash nor a size; raises ModelFileError."""
    runs: Callable[[str], bool] = field(default=lambda architecture: True)
    """Whether models of an architecture run."""


def find_cached(reference: Reference, models_folder: Path) -> Path | None:
    """The reference's file where it is here, found without the network."""
    if isinstance(reference, UrlReference):
        path = _url_path(reference, models_folder)
        return path if path.is_file() and not _missing_parts(reference, models_folder) else None
    for folder, models in cache.cached(reference):
        with suppress(DownloadError):  # none of them, or several: the hub knows more
            return folder.joinpath(*choose(models, reference).model.path.split("/"))
    return None


def fetch_reference(
    reference: Reference, models_folder: Path, memory: int | None = None, watch: Watch | None = None
) -> Path:
    """Fetch what the reference names, unless it is here and unchanged; returns its (first) file.

    ``memory``: bytes that a model may take that is chosen for its type alone; None: any.

    Raises:
        DownloadError: it is not there, cannot be reached, does not fit, or arrives damaged.
    """
    watch = watch or Watch()
    if isinstance(reference, UrlReference):
        return _fetch_urls(reference, models_folder, watch)
    repository = look_up(reference)
    _check_architecture(repository, watch)
    choice = choose(repository.models, reference, memory)
    if choice.why:
        watch.say(choice.why)
    return _Fetch(repository, choice.model, watch).run()


def _check_architecture(repository: Repository, watch: Watch) -> None:
    """Refuse, before it is fetched, what will not run; whoever names a file gets it."""
    name, reference = repository.architecture, repository.reference
    if name is not None and reference.file is None and not watch.runs(name):
        raise DownloadError(
            f"{reference.repo_id} has models of the architecture {shown(name)}, which llmgen does not run; "
            f"take another model, or name the file (hf.co/{reference.repo_id}/FILE.gguf) to fetch it nevertheless"
        )


class _Fetch:
    """All files of one model of the hub, into the Hugging Face cache."""

    def __init__(self, repository: Repository, model: Candidate, watch: Watch) -> None:
        self._repository, self._model, self._watch = repository, model, watch
        self._here = cache.CachedRepository(repository.reference.repo_id)
        self._done = 0
        self._token = web.token()

    def run(self) -> Path:
        """Fetch what is missing; returns the path of the first file."""
        with disk_errors(self._model.path, self._here.folder, "HF_HOME"):
            try:
                made_in(self._here.folder / "blobs", self._check_space)
                for file in self._model.files:
                    self._one(file)
            except BaseException:
                self._here.remove_empty_folders()
                raise
            self._here.set_branch(self._repository.reference.revision, self._repository.commit)
        return self._pointer(self._model.files[0])

    def _pointer(self, file: File) -> Path:
        return self._here.pointer(self._repository.commit, file.path)

    def _check_space(self) -> None:
        need = 0
        for file in self._model.files:
            if not self._is_here(file):
                partial = partial_path(self._here.blob(self._key(file)))
                need += max(0, (file.size or 0) - (_size(partial) or 0))
        check_space(need, self._here.folder, self._model.path, "HF_HOME")

    def _key(self, file: File) -> str:
        """The name of a file's content in the cache: its hash, else a name for the time of the fetch."""
        place = f"{self._repository.commit}/{file.path}"
        return file.sha256 or file.git_sha1 or hashlib.sha256(place.encode()).hexdigest()

    def _is_here(self, file: File) -> bool:
        """Whether this version of a file is here; a branch's name, for want of a commit, says no version."""
        pointer, blob = self._pointer(file), self._here.blob(self._key(file))
        size = _size(pointer)
        if size is None or (file.size is not None and size != file.size):
            return False
        fixed = self._repository.has_commit or (file.sha256 is None and file.git_sha1 is None)
        return fixed or os.path.realpath(pointer) == os.path.realpath(blob)

    def _one(self, file: File) -> None:
        waiting = _once(lambda: self._watch.progress("wait", 0, 0))
        with folder_lock(self._here.lock(self._key(file)), waiting) as locked:
            if not self._is_here(file):
                self._fetch(file, locked)
        self._done += file.size or 0

    def _fetch(self, file: File, locked: bool) -> None:
        blob, pointer = self._here.blob(self._key(file)), self._pointer(file)
        size, source = _size(blob), str(self._repository.reference)
        if size is None or file.size not in (None, size):
            partial = partial_path(blob) if locked else _private(blob)
            body = Body(
                url=self._repository.url(file),
                what=f"{self._repository.reference.repo_id}/{file.path}",
                size=file.size,
                sha256=file.sha256,
                git_sha1=file.git_sha1,
                token=self._token,
                page=self._repository.page,
                elsewhere="HF_HOME",
            )
            fetched = transfer(body, partial, self._report)
            _judge(body, fetched, partial, self._watch)
            if not body.has_hash:
                blob = self._here.blob(fetched.sha256)
            note_fetched(blob, source, partial)
            partial.replace(blob)
        self._here.add(blob, pointer)
        if not pointer.is_symlink():  # the file itself was moved there
            note_fetched(pointer, source)

    def _report(self, step: str, done: int, total: int) -> None:
        if step == "download":  # all files of a model count as one
            done, total = self._done + done, self._model.size or 0
        self._watch.progress(step, done, total)


def _size(path: Path) -> int | None:
    """None where it is not there, as when another program has just moved or removed it.  Raises OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _private(blob: Path) -> Path:
    """A partial file of this process alone, where the file system has no locks: no later fetch resumes it."""
    return partial_path(blob.with_name(f"{blob.name}.{os.getpid()}"))


def _once(call: Callable[[], None]) -> Callable[[], None]:
    return functools.cache(call)


def _judge(body: Body, fetched: Fetched, partial: Path, watch: Watch) -> None:
    """Say what could not be checked, and have the file itself looked at where nothing could be."""
    if fetched.hash_checked:
        return
    lacks = "no hash" if fetched.size_checked else "neither a hash nor a size"
    watch.say(f"{body.what}: the server gives {lacks} to check the file with")
    if fetched.size_checked or split_of(body.what):
        return
    try:
        watch.check(partial)
    except ModelFileError as error:
        remove_partial(partial)
        raise DownloadError(f"{body.what} did not arrive whole, so nothing was kept: {error}") from None


# -- interrupted fetches


def partial_fetches(models_folders: Iterable[Path]) -> list[tuple[str, int]]:
    """What interrupted fetches have left: the MODEL that goes on with it, and how many bytes there are."""
    sizes: dict[str, int] = {}
    for what, path in _partials(models_folders):
        with suppress(OSError):  # the fetch has just ended
            sizes[what] = path.stat().st_size
    return sorted(sizes.items())


def _partials(models_folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    for repository in cache.repositories():
        for path in partial_files(repository.blob("")):
            if (what := what_is_partial(path)).startswith(f"{repository.repo_id}/"):
                yield f"hf.co/{what}", path
    for models in models_folders:
        for folder in (models / URLS).glob("*"):
            for path in partial_files(folder):
                if what := what_is_partial(path):
                    yield what, path


def partials_of(reference: Reference, models_folders: Iterable[Path]) -> list[Path]:
    """The partial files of what a reference names; of a repository without a file, all of them."""
    name = str(reference).partition(":")[0] if isinstance(reference, HubReference) else str(reference)
    return [path for what, path in _partials(models_folders) if what == name or what.startswith(f"{name}/")]


# -- any other server


def _url_path(reference: UrlReference, models_folder: Path) -> Path:
    """Where the file of a URL is kept: in a folder that the URL decides, under its own name."""
    key = hashlib.sha256(reference.url.encode()).hexdigest()[:16]
    return models_folder / URLS / key / reference.file


def _parts(reference: UrlReference) -> list[UrlReference]:
    split = split_of(reference.url)
    return [UrlReference(url) for url in split.names()] if split else [reference]


def _missing_parts(reference: UrlReference, models_folder: Path) -> list[Path]:
    folder = _url_path(reference, models_folder).parent
    return [path for part in _parts(reference) if not (path := folder / part.file).is_file()]


def _fetch_urls(reference: UrlReference, models_folder: Path, watch: Watch) -> Path:
    """The file of a URL, or all parts of a split model, into one folder."""
    path = _url_path(reference, models_folder)
    with disk_errors(reference.file, path.parent):
        waiting = _once(lambda: watch.progress("wait", 0, 0))
        with folder_lock(lock_of(path), waiting) as locked:
            for part in _parts(reference):
                _fetch_url(part, path.with_name(part.file), locked, watch)
    return path


def _fetch_url(reference: UrlReference, path: Path, locked: bool, watch: Watch) -> None:
    if path.exists():
        return
    partial = partial_path(path) if locked else _private(path)
    body = Body(reference.url, reference.url)
    fetched = transfer(body, partial, watch.progress)
    _judge(body, fetched, partial, watch)
    note_fetched(path, reference.url, partial)
    partial.replace(path)


# -- who fetches a file


def lock_of(file: Path) -> Path:
    """The lock under which a file that is here, or whose beginning is, was fetched and would be again."""
    whole = file.with_name(file.name.removesuffix(PARTIAL))
    if whole.parent.name == "blobs":
        return cache.lock_of(whole)
    return whole.with_name(".lock") if whole.parent.parent.name == URLS else wheels.lock_of(whole)
