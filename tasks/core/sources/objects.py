"""Source files in object stores."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from streaming_ext.errors import SourceError, StorageError
from tasks.core.sources.patterns import folder_of, is_pattern, matching
from tasks.core.sources.source_file import SourceFile
from tasks.core.storage.client import ObjectClient, split_url

_PIECE_BYTES = 8 * 2**20
_AHEAD = 4  # pieces under way


def _client(scheme: str, bucket: str) -> ObjectClient:
    return ObjectClient(scheme=scheme, bucket=bucket)


def list_objects(pattern: str) -> list[SourceFile]:
    """The objects that a URL with or without wildcards names; one listing."""
    scheme, bucket, key = _split(pattern)
    client = _client(scheme, bucket)
    # Without wildcards it may be a file or a folder: its own folder's listing would tell, but may
    # be long; the prefix itself is enough.
    base = folder_of(key) if is_pattern(key) else key
    what = f"list {scheme}://{bucket}/{base}"
    try:
        found = client.ask(what, lambda fs: fs._find(f"{bucket}/{base}".rstrip("/"), detail=True))
        if not found and not is_pattern(key) and key:
            info = client.ask(what, lambda fs: fs._info(f"{bucket}/{key}"))
            found = {f"{bucket}/{key}": info}
    except FileNotFoundError:
        found = {}
    infos = {
        name[len(bucket) + 1 :]: info for name, info in found.items() if info["type"] == "file"
    }
    return [
        SourceFile(
            url=f"{scheme}://{bucket}/{name}",
            size=int(infos[name]["size"]),
            version=_version(infos[name]),
        )
        for name in matching(infos, key)
    ]


def _split(url: str) -> tuple[str, str, str]:
    # '?' is a wildcard in a pattern, though never part of a URL.
    scheme, bucket, key = split_url(url.replace("?", "\x20"))
    return scheme, bucket, key.replace("\x20", "?") if "?" in url else key


def _version(info: dict[str, Any]) -> str:
    for kind in ("generation", "ETag", "etag", "md5", "last_modified", "LastModified"):
        if value := info.get(kind):
            return f"{kind.lower()}:{str(value).strip(chr(34))}"
    raise StorageError(f"{info.get('name')}: the store tells nothing that pins its content.")


class ObjectReader:
    """Reads one object, in ranges, as long as it is the one that was listed."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        scheme, self._bucket, self._key = split_url(source.url)
        self._client = _client(scheme, self._bucket)

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        version = self._source.version or ""
        etag = version.removeprefix("etag:") if version.startswith("etag:") else None
        try:
            return self._client.read(
                f"{self._bucket}/{self._key}",
                what=f"read {self._source.url}",
                start=start,
                end=end,
                etag=etag if self._client.is_s3 else None,
            )
        except FileNotFoundError as error:
            raise SourceError(f"{self._source.url}: gone since the run began.") from error
        except FileExistsError as error:  # the condition that pins the version failed
            raise SourceError(
                f"{self._source.url}: changed since the run began. Run again."
            ) from error

    def stream(self, start: int) -> Iterator[bytes]:
        """All bytes from `start` on."""
        size = self._source.size
        pieces = ((p, min(p + _PIECE_BYTES, size)) for p in range(start, size, _PIECE_BYTES))
        with ThreadPoolExecutor(_AHEAD) as threads:
            coming: deque[Future[bytes]] = deque()
            for piece in pieces:
                coming.append(threads.submit(self.read, *piece))
                if len(coming) == _AHEAD:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def check(self) -> None:
        """Make sure that what was read is what was listed, where the requests could not."""
        if self._client.is_s3:
            return
        path = f"{self._bucket}/{self._key}"
        info = self._client.ask(f"look at {self._source.url}", lambda fs: fs._info(path))
        if _version(info) != self._source.version:
            raise SourceError(f"{self._source.url}: changed while it was read. Run again.")
