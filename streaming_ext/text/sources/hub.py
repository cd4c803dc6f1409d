"""Source files on the Hugging Face Hub: one listing, pinned to a commit."""

import os
import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from streaming_ext.base.errors import SourceError, StorageError, UsageError
from streaming_ext.text.sources.patterns import Takes, alternatives, folder_of, is_pattern, matching
from streaming_ext.text.sources.source_file import SourceFile
from streaming_ext.text.sources.web import WebReader, client, json_of, patiently, require_ok

_URL = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ABOUT_THE_DATASET = {"README.md", ".gitattributes"}  # at the root; data only where named
_SAMPLE = re.compile(r"sample-(?P<folder>\w[\w.-]*)")


class _NoEntryError(UsageError):
    """A repository has no such file or folder."""


@dataclass(frozen=True, slots=True)
class _Repository:
    """A dataset of the Hub at a revision."""

    name: str
    revision: str

    @property
    def api(self) -> str:
        return f"{_endpoint()}/api/datasets/{self.name}"

    def url(self, path: str) -> str:
        """The URL of a file, as sources are named."""
        return f"hf://datasets/{self.name}@{self.revision}/{path}"


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT).rstrip("/")


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _headers() -> dict[str, str]:
    from huggingface_hub import get_token

    token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}


def list_files(url: str, takes: Takes) -> list[SourceFile]:
    """The files that an hf:// URL with or without wildcards names.

    Raises:
        UsageError: it is no URL of a dataset; the dataset, revision or file is not there.
        StorageError: access is refused, the server does not answer.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError(
            f"{url}: expected hf://datasets/ORG/NAME[@REVISION]/PATH, wildcards allowed in PATH."
        )
    repository, _ = _pin(match["repo"], match["revision"] or "main")
    return _list(repository, [match["path"] or ""], takes)


def list_configuration(name: str, config: str | None, takes: Takes) -> list[SourceFile]:
    """The files of one configuration of a dataset, as its card says.

    Raises:
        UsageError: it has no such configuration, or does not say which files it is.
        StorageError: access is refused, the server does not answer.
    """
    name, _, revision = name.partition("@")
    repository, card = _pin(name, revision or "main")
    wanted = config or "default"
    patterns = _card_patterns(card, wanted)
    if not patterns:
        # The layout of FineWeb and FineWeb-Edu, whose card may not be at hand.
        sample = _SAMPLE.fullmatch(wanted)
        patterns = ["data/"] if wanted == "default" else []
        if sample is not None:
            patterns = [f"sample/{sample['folder']}/"]
    try:
        found = _list(repository, patterns, takes, each=False) if patterns else []
    except _NoEntryError:
        found = []
    if not found:
        configs = ", ".join(str(c.get("config_name")) for c in _configs(card)) or "none"
        raise UsageError(
            f"{name}: no files of configuration {wanted!r}; its card names {configs}. "
            f"Pass --hub-config, or name the files: hf://datasets/{name}/PATH/*."
        )
    return found


def _configs(card: dict[str, Any]) -> list[dict[str, Any]]:
    configs = card.get("configs")
    return [c for c in configs if isinstance(c, dict)] if isinstance(configs, list) else []


def _card_patterns(card: dict[str, Any], wanted: str) -> list[str]:
    """Where a card says that the files of a configuration are; its train split, if it has one."""
    for config in _configs(card):
        if config.get("config_name") != wanted:
            continue
        files = config.get("data_files")
        entries = files if isinstance(files, list) else [files]
        splits = [entry for entry in entries if isinstance(entry, dict)]
        train = [entry for entry in splits if entry.get("split") == "train"]
        paths = [entry for entry in entries if isinstance(entry, str)]
        for entry in train or splits:
            path = entry.get("path")
            paths += path if isinstance(path, list) else [path] if isinstance(path, str) else []
        return paths
    return []


def _pin(name: str, revision: str) -> tuple[_Repository, dict[str, Any]]:
    """The repository at the commit that a revision is now, and its card."""
    if _offline():
        return _Repository(name, _cached_snapshot(name, revision).name), {}
    asked = _Repository(name, revision)
    url = f"{asked.api}/revision/{urllib.parse.quote(revision, safe='')}"

    def request() -> Any:
        response = client().get(url, headers=_headers())
        require_ok(response, lambda r: _explain(asked, r))
        return json_of(response, f"look at {name}")

    info = patiently(f"look at the dataset {name} on the Hub", request)
    commit = str(info.get("sha", ""))
    if not _COMMIT.fullmatch(commit):
        raise StorageError(f"{url} names no commit, got {commit[:80]!r}.")
    card = info.get("cardData")
    return _Repository(name, commit), card if isinstance(card, dict) else {}


def _list(
    repository: _Repository, patterns: list[str], takes: Takes, *, each: bool = True
) -> list[SourceFile]:
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        if _offline():
            files = _cached_files(repository)
        else:
            files = {file["path"]: file for file in _tree(repository, pattern)}
        named = {pattern, *alternatives(pattern)}
        for path in matching(files, pattern, takes, each=each):
            if path in _ABOUT_THE_DATASET and path not in named:
                continue
            entry = files[path]
            found[path] = SourceFile(
                url=repository.url(path), size=int(entry["size"]), version=_version(entry)
            )
    return list(found.values())


def _version(entry: dict[str, Any]) -> str:
    lfs = entry.get("lfs")
    if isinstance(lfs, dict) and _SHA256.fullmatch(str(lfs.get("oid", ""))):
        return f"sha256:{lfs['oid']}"
    return f"git:{entry['oid']}"


def _tree(repository: _Repository, pattern: str) -> Iterator[dict[str, Any]]:
    """The file that a pattern names, or every file below the folder that it begins with."""
    folder = (folder_of(pattern) if is_pattern(pattern) else pattern).strip("/")
    if folder and not is_pattern(pattern):
        url = f"{repository.api}/paths-info/{repository.revision}"
        response = _listed(repository, "POST", url, data={"paths": folder})
        files = [one for one in json_of(response, f"look at {folder}") if one["type"] == "file"]
        if files:
            yield from files
            return
    further: str | None = f"{repository.api}/tree/{repository.revision}"
    if folder:
        further = f"{further}/{urllib.parse.quote(folder)}"
    further = f"{further}?recursive=true"
    while further is not None:
        response = _listed(repository, "GET", further)
        for entry in json_of(response, f"list {repository.name}"):
            if entry.get("type") == "file":
                yield entry
        further = response.links.get("next", {}).get("url")


def _listed(
    repository: _Repository, method: str, url: str, data: dict[str, str] | None = None
) -> httpx.Response:
    def request() -> httpx.Response:
        # A listing may go on elsewhere, as of a mirror; the token stays with who was asked.
        headers = _headers() if url.startswith(f"{_endpoint()}/") else {}
        response = client().request(method, url, headers=headers, data=data)
        require_ok(response, lambda r: _explain(repository, r))
        return response

    return patiently(f"list the dataset {repository.name} on the Hub", request)


def _explain(repository: _Repository, response: httpx.Response) -> Exception:
    """What a refused request means; the Hub hides private repositories from strangers."""
    name, revision = repository.name, repository.revision
    code, status = response.headers.get("X-Error-Code", ""), response.status_code
    said = " ".join(response.headers.get("X-Error-Message", "").split())[:200]
    token = "Authorization" in response.request.headers
    kind: type[Exception] = StorageError
    if code == "GatedRepo":
        page = f"{_endpoint()}/datasets/{name}"
        told = f"{name} is a gated dataset" + (
            f", and this token's account has no access. Ask for it at {page}."
            if token
            else f". Ask for access at {page}, then set HF_TOKEN."
        )
    elif code == "RevisionNotFound":
        kind, told = UsageError, f"{name} has no revision {revision!r}."
    elif code == "EntryNotFound":
        kind, told = _NoEntryError, f"{name} at {revision} has no such file or folder."
    elif status == 401 and token and code != "RepoNotFound":
        told = f"The Hub does not know this token ({said or status}). Check HF_TOKEN."
    elif code == "RepoNotFound" or status in {401, 404}:
        told = f"There is no dataset {name} on {_endpoint()}, or it is private and " + (
            "this token may not see it." if token else "no token was given: set HF_TOKEN."
        )
    elif status == 403:
        told = f"Access to {name} is refused ({said or status}). Check HF_TOKEN."
    else:
        told = f"{name}: the Hub answers {status} ({said or code})."
    return kind(told)


class HubReader(WebReader):
    """Reads one file of the Hub at the commit that its URL names."""

    def __init__(self, source: SourceFile) -> None:
        match = _URL.fullmatch(source.url)
        if match is None or not match["revision"]:
            raise SourceError(f"{source.url}: expected a file of the Hub at a commit.")
        self.repository = _Repository(match["repo"], match["revision"])
        self.path = match["path"]
        if _offline():
            raise StorageError(
                f"{source.url} is not in the Hub's local cache, and HF_HUB_OFFLINE is set."
            )
        super().__init__(
            source,
            f"{_endpoint()}/datasets/{match['repo']}/resolve/{match['revision']}/"
            f"{urllib.parse.quote(self.path)}",
            headers=_headers(),
            explain=self._explain_file,
        )

    def _explain_file(self, response: httpx.Response) -> Exception:
        if response.headers.get("X-Error-Code") == "EntryNotFound":
            return SourceError(f"{self._source.url}: gone since the run began.")
        return _explain(self.repository, response)


def cached_file(source: SourceFile) -> Path | None:
    """Where the Hub's own cache on this machine holds a file, if it does."""
    from huggingface_hub import try_to_load_from_cache

    match = _URL.fullmatch(source.url)
    if match is None:
        return None
    found = try_to_load_from_cache(
        match["repo"], match["path"], revision=match["revision"], repo_type="dataset"
    )
    path = Path(found) if isinstance(found, str) else None
    return path if path is not None and path.stat().st_size == source.size else None


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


def _cached_files(repository: _Repository) -> dict[str, dict[str, Any]]:
    """What the local cache holds of a commit, as the Hub would list it."""
    root = _cached_snapshot(repository.name, repository.revision)
    files = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            blob = Path(os.path.realpath(path)).name
            lfs = {"oid": blob} if _SHA256.fullmatch(blob) else None
            name = path.relative_to(root).as_posix()
            files[name] = {"path": name, "size": path.stat().st_size, "oid": blob, "lfs": lfs}
    return files
