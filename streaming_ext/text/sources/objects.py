"""Source files in object stores."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from streaming_ext.base.errors import SourceError, StorageError, TransientStorageError, UsageError
from streaming_ext.store.client import ObjectClient, split_url
from streaming_ext.store.digests import Digest
from streaming_ext.text.sources.patterns import Takes, folder_of, is_pattern, matching
from streaming_ext.text.sources.source_file import SourceFile

_PIECE_BYTES = 8 * 2**20
_AHEAD = 4  # pieces under way


def list_objects(pattern: str, takes: Takes) -> list[SourceFile]:
    """The objects that a URL with or without wildcards names; one listing."""
    scheme, bucket, key = _split(pattern)
    # Without wildcards it may be a file or a folder: its own folder's listing would tell, but may
    # be long; the prefix itself is enough.
    base = f"{folder_of(key)}/" if is_pattern(key) else key
    base = base if base != "/" else ""
    client = ObjectClient(scheme=scheme, bucket=bucket)
    found = client.find(base, what=f"list {scheme}://{bucket}/{base}")
    return [
        SourceFile(
            url=f"{scheme}://{bucket}/{name}", size=found[name].size, version=found[name].version
        )
        for name in matching(found, key, takes)
    ]


def _split(url: str) -> tuple[str, str, str]:
    # A key is taken to the letter: it may hold '?', '#' and empty names between slashes.
    scheme, _, place = url.partition("://")
    bucket, _, key = place.partition("/")
    split_url(f"{scheme}://{bucket}")
    if not key.isprintable() or ".." in key.split("/"):
        raise UsageError(f"{url!r}: a source must not hold '..' or control characters.")
    return scheme, bucket, key


class ObjectReader:
    """Reads one object, in ranges, as long as it is the one that was listed."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        scheme, bucket, self._key = _split(source.url)
        self._client = ObjectClient(scheme=scheme, bucket=bucket)

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end)."""
        try:
            return self._client.read(
                self._key,
                what=f"read {self._source.url}",
                span=(start, end),
                version=self._source.version,
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

    def digest(self) -> Digest | None:
        """What the store offers to check the whole object by."""
        what = f"look at {self._source.url}"
        try:
            return self._client.digest(self._key, self._source.size, what=what)
        except FileNotFoundError as error:
            raise SourceError(f"{self._source.url}: gone since the run began.") from error
        except TransientStorageError:
            raise
        except StorageError:  # no right to ask: reading it is another one
            return None

    def check(self) -> None:
        """Every request named the version."""
