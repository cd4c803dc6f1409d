"""A Hugging Face Hub on loopback with datasets in memory, as far as reading clients need one."""

import hashlib
import json
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PATH = re.compile(
    r"/(?P<api>api/)?datasets/(?P<repo>[^/]+/[^/]+)"
    r"(?:/(?P<kind>revision|tree|paths-info|resolve)/(?P<revision>[^/]+)(?:/(?P<rest>.*))?)?"
)
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_PIECE = 2**16
PAGE = 4  # number of entries per page of a listing


@dataclass
class Dataset:
    """A dataset with a sequence of commits.

    Attributes:
        commits: path -> content, by commit; the last is `main`.
        card: the metadata above the text of its README.
        private, gated: True if only clients with `token` may read it, or nobody may.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: Mapping[str, bytes]) -> str:
        """Make a commit and return its name."""
        digest = hashlib.sha1(
            repr((len(self.commits), sorted(files))).encode(), usedforsecurity=False
        )
        for path in sorted(files):
            digest.update(files[path])
        self.commits[digest.hexdigest()] = dict(files)
        return digest.hexdigest()

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Return commit and files of a revision."""
        name = list(self.commits)[-1] if revision == "main" else revision
        return (name, self.commits[name]) if name in self.commits else None


class Hub:
    """The server's datasets, faults and counts.

    Attributes:
        token: the only token that it accepts.
        busy: number of requests to answer with 429 and `retry_after`.
        cuts: numbers of bytes after which the first answers end, one cut each.
        flip: True to damage one byte of every file.
    """

    def __init__(self) -> None:
        self.datasets: dict[str, Dataset] = {}
        self.token = "hf_offline0secret0token"
        self.busy = 0
        self.retry_after = "1"
        self.cuts: list[int] = []
        self.flip = False
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.url = ""

    def reset(self) -> None:
        """Forget faults and counts."""
        self.busy, self.cuts, self.flip, self.retry_after = 0, [], False, "1"
        self.requests.clear()
        self.sent.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        hub = self.hub
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query))
        match = _PATH.fullmatch(split.path)
        kind = (match["kind"] if match else None) or "info"
        with hub.lock:
            hub.requests[kind] += 1
            if hub.busy > 0:
                hub.busy -= 1
                self._send(429, b"slow", {"Retry-After": hub.retry_after})
                return
        if match is None:
            self._refuse(404, "NotFound")
            return
        token = self.headers.get("Authorization")
        if token is not None and token != f"Bearer {hub.token}":
            self._refuse(401, "", "Invalid credentials in Authorization header")
            return
        dataset = hub.datasets.get(match["repo"])
        if dataset is None or (dataset.private and token is None):
            self._refuse(404 if token else 401, "RepoNotFound")
            return
        found = dataset.at(urllib.parse.unquote(match["revision"] or "main"))
        if found is None:
            self._refuse(404, "RevisionNotFound")
            return
        commit, files = found
        if match["api"] and kind in {"info", "revision"}:
            self._json({"id": match["repo"], "sha": commit, "cardData": dataset.card})
        elif dataset.gated:
            self._refuse(403 if token else 401, "GatedRepo")
        elif match["api"] and kind == "tree":
            self._tree(
                match["repo"], commit, files, urllib.parse.unquote(match["rest"] or ""), query
            )
        elif match["api"] and kind == "paths-info":
            asked = urllib.parse.parse_qs(body)["paths"]
            found_files = [_entry(path, files[path]) for path in asked if path in files]
            folders = [
                {"type": "directory", "path": path, "oid": "0" * 40}
                for path in asked
                if any(name.startswith(f"{path}/") for name in files)
            ]
            self._json([*found_files, *folders])
        elif kind == "resolve" and (path := urllib.parse.unquote(match["rest"] or "")) in files:
            self._file(path, commit, files[path])
        else:
            self._refuse(404, "EntryNotFound")

    do_HEAD = do_POST = do_GET  # noqa: N815  (the names that the base class calls)

    def _tree(
        self, repo: str, commit: str, files: dict[str, bytes], folder: str, query: dict[str, str]
    ) -> None:
        prefix = f"{folder}/" if folder else ""
        names = sorted(name for name in files if name.startswith(prefix))
        if not names and folder:
            self._refuse(404, "EntryNotFound")
            return
        first = int(query.get("cursor", 0))
        entries = [_entry(name, files[name]) for name in names[first : first + PAGE]]
        headers = {}
        if first + PAGE < len(names):
            place = f"{self.hub.url}/api/datasets/{repo}/tree/{commit}/{urllib.parse.quote(folder)}"
            link = f"{place.rstrip('/')}?recursive=true&cursor={first + PAGE}"
            headers["Link"] = f'<{link}>; rel="next"'
        self._json(entries, headers)

    def _file(self, path: str, commit: str, data: bytes) -> None:
        hub = self.hub
        etag = hashlib.sha256(data).hexdigest()
        if hub.flip:
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        start, end = 0, len(data)
        if match := _RANGE.fullmatch(self.headers.get("Range", "")):
            start, end = int(match[1]), min(int(match[2]) + 1, len(data))
        self.send_response(206 if match else 200)
        for name, value in {
            "ETag": f'"{etag}"',
            "X-Linked-ETag": f'"{etag}"',
            "X-Linked-Size": str(len(data)),
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
            "Content-Length": str(end - start),
            **({"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"} if match else {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        with hub.lock:
            if hub.cuts and end - start > hub.cuts[0]:
                end = start + hub.cuts.pop(0)
                self.close_connection = True
        for position in range(start, end, _PIECE):
            piece = data[position : min(position + _PIECE, end)]
            with hub.lock:  # before sending: a client that has all of it may look at once
                hub.sent[path] += len(piece)
            self.wfile.write(piece)

    def _json(self, value: object, headers: Mapping[str, str] | None = None) -> None:
        kind = {"Content-Type": "application/json"}
        self._send(200, json.dumps(value).encode(), kind | dict(headers or {}))

    def _refuse(self, status: int, code: str, message: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        self._send(status, b"{}", headers | {"X-Error-Message": message or code})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _entry(path: str, data: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": blob}
    if path.endswith(".parquet") and not path.startswith("plain/"):
        sha256 = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
    return entry


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Run a Hub; its user adds the datasets."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
