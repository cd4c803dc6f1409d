"""Source files on the Hugging Face Hub: one listing, pinned to a commit."""

import re
import urllib.parse
from collections.abc import Callable
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from streaming_ext.base.errors import StorageError, UsageError
from streaming_ext.store.faults import ask, words_of
from streaming_ext.store.patience import timeout_seconds
from streaming_ext.store.remote import within
from streaming_ext.text.sources.patterns import Takes, alternatives, folder_of, is_pattern, matching
from streaming_ext.text.sources.source_file import SourceFile
from streaming_ext.text.sources.web import WebReader

Result = TypeVar("Result")

_URL = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ABOUT_THE_DATASET = {"README.md", ".gitattributes"}  # at the root: sources only if named
_SAMPLE = re.compile(r"sample-(?P<folder>\w[\w.-]*)")
_PAGE = 1000  # files per page of a listing


class _Repository(NamedTuple):
    """A dataset of the Hub at a commit."""

    name: str
    commit: str

    def source(self, path: str, size: int, blob: str, sha256: str | None) -> SourceFile:
        """Return a file of the repository as a source."""
        version = f"sha256:{sha256}" if sha256 else f"git:{blob}"
        url = f"hf://datasets/{self.name}@{self.commit}/{path}"
        return SourceFile(url=url, size=size, version=version)


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _parsed(url: str) -> re.Match[str]:
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError(
            f"{url}: expected hf://datasets/ORG/NAME[@REVISION]/PATH, wildcards allowed in PATH."
        )
    return match


def list_files(url: str, takes: Takes) -> list[SourceFile]:
    """List the files that an hf:// URL with or without wildcards names.

    Raises:
        UsageError: the URL names no dataset, or the revision or file does not exist.
        StorageError: the dataset does not exist or is hidden, or the server does not answer.
    """
    match = _parsed(url)
    repository, _ = _pin(match["repo"], match["revision"] or "main")
    return _list(repository, [match["path"] or ""], takes)


def list_configuration(name: str, config: str | None, takes: Takes) -> list[SourceFile]:
    """List the files of one configuration of a dataset, as the metadata of its README says.

    Raises:
        UsageError: the dataset has no such configuration, or does not say which files it holds.
        StorageError: the dataset does not exist or is hidden, or the server does not answer.
    """
    name, _, revision = name.partition("@")
    repository, configs = _pin(name, revision or "main")
    wanted = config or "default"
    patterns = _patterns_of(configs, wanted)
    if not patterns:
        # The layout of FineWeb and FineWeb-Edu serves if the metadata is not available.
        sample = _SAMPLE.fullmatch(wanted)
        patterns = ["data/"] if wanted == "default" else []
        if sample is not None:
            patterns = [f"sample/{sample['folder']}/"]
    try:
        found = _list(repository, patterns, takes, each=False)
    except UsageError:  # a folder does not exist
        found = []
    if not found:
        names = ", ".join(str(config.get("config_name")) for config in configs) or "none"
        raise UsageError(
            f"{name}: no files of configuration {wanted!r}; its README names {names}. "
            f"Pass --hub-config, or name the files: hf://datasets/{name}/PATH/*."
        )
    return found


def _patterns_of(configs: list[dict[str, Any]], wanted: str) -> list[str]:
    """Return the paths of a configuration's files, or of its train split's if it has one."""
    files = [config.get("data_files") for config in configs if config.get("config_name") == wanted]
    entries = _listed(files[0]) if files else []
    splits = [entry for entry in entries if isinstance(entry, dict)]
    train = [entry for entry in splits if entry.get("split") == "train"]
    paths = chain(entries, *(_listed(entry.get("path")) for entry in train or splits))
    return [path for path in paths if isinstance(path, str)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pin(name: str, revision: str) -> tuple[_Repository, list[dict[str, Any]]]:
    """Return the repository at the present commit of a revision, and its configurations."""
    if _offline():
        return _Repository(name, _cached_snapshot(name, revision).name), []
    from huggingface_hub import HfApi

    look = partial(HfApi().dataset_info, name, revision=revision, timeout=timeout_seconds())
    info = _ask(f"look at the dataset {name} at {revision}", look)
    configs = info.card_data.get("configs", []) if info.card_data else []
    return _Repository(name, str(info.sha)), [one for one in configs if isinstance(one, dict)]


def _ask(what: str, request: Callable[[], Result]) -> Result:
    """Make a request through huggingface_hub as `faults.ask` does.

    Raises:
        UsageError: there is no such revision, file or folder.
        StorageError: there is no such dataset, the Hub refuses, or it keeps failing.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import RepositoryNotFoundError

    what += f" on the Hub, {constants.ENDPOINT}"
    try:
        return ask(what, request)
    except FileNotFoundError as error:
        cause = error.__cause__ or error
        kind = StorageError if isinstance(cause, RepositoryNotFoundError) else UsageError
        raise kind(f"Cannot {what}: {words_of(cause)}.") from error


def _list(
    repository: _Repository, patterns: list[str], takes: Takes, *, each: bool = True
) -> list[SourceFile]:
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        files = _cached_files(repository) if _offline() else _files(repository, pattern)
        for path in matching(files, pattern, takes, each=each):
            if path not in _ABOUT_THE_DATASET or path in alternatives(pattern):
                found[path] = files[path]
    return list(found.values())


def _files(repository: _Repository, pattern: str) -> dict[str, SourceFile]:
    """List the file that a pattern names, or all files below the folder that it begins with."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api, (name, commit) = HfApi(), repository
    of: dict[str, Any] = {"revision": commit, "repo_type": "dataset"}
    folder = (folder_of(pattern) if is_pattern(pattern) else pattern).strip("/")
    what = f"list {folder or 'the files'} of the dataset {name}"

    def bounded(request: Callable[[], Result]) -> Result:  # the library sets no time limit
        return within(timeout_seconds(), request, what=f"{what} on the Hub")

    def named() -> list[Any]:
        return bounded(lambda: api.get_paths_info(name, [folder], **of))

    def below() -> list[Any]:
        tree = iter(api.list_repo_tree(name, folder or None, recursive=True, **of))
        pages = iter(lambda: bounded(lambda: list(islice(tree, _PAGE))), [])
        return list(chain.from_iterable(pages))

    entries = _ask(what, named) if folder and not is_pattern(pattern) else []
    if not any(isinstance(entry, RepoFile) for entry in entries):
        entries = _ask(what, below)
    return {
        entry.path: repository.source(
            entry.path, entry.size, entry.blob_id, entry.lfs.sha256 if entry.lfs else None
        )
        for entry in entries
        if isinstance(entry, RepoFile)
    }


class HubReader(WebReader):
    """A reader of one file of the Hub, at the commit that its URL names."""

    def __init__(self, source: SourceFile) -> None:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        match = _parsed(source.url)
        if _offline():
            raise StorageError(
                f"{source.url} is not in the Hub's local cache, and HF_HUB_OFFLINE is set."
            )
        path = f"{match['revision']}/{urllib.parse.quote(match['path'])}"
        url = f"{HfApi().endpoint}/datasets/{match['repo']}/resolve/{path}"
        super().__init__(source, url, build_hf_headers())


def cached_file(source: SourceFile) -> Path | None:
    """Return the path of a file in the Hub's cache on this machine; None if the cache lacks it."""
    from huggingface_hub import try_to_load_from_cache

    match = _parsed(source.url)
    found = try_to_load_from_cache(
        match["repo"], match["path"], revision=match["revision"], repo_type="dataset"
    )
    if isinstance(found, str) and Path(found).stat().st_size == source.size:
        return Path(found)
    return None


def _cached_snapshot(name: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(name, repo_type="dataset", revision=revision, local_files_only=True)
        )
    except LocalEntryNotFoundError as error:
        raise StorageError(
            f"The Hub's local cache holds no dataset {name} at {revision}, and HF_HUB_OFFLINE is "
            "set. Unset it, or fetch the dataset first: `hf download --repo-type dataset`."
        ) from error


def _cached_files(repository: _Repository) -> dict[str, SourceFile]:
    """List the files of a commit in the local cache, as the Hub would list them."""
    root = _cached_snapshot(repository.name, repository.commit)
    files = {}
    for file in sorted(root.rglob("*")):
        if file.is_file():
            blob, path = file.resolve().name, file.relative_to(root).as_posix()
            sha256 = blob if _SHA256.fullmatch(blob) else None
            files[path] = repository.source(path, file.stat().st_size, blob, sha256)
    return files
