"""Source files in object stores."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from streaming_ext.base.errors import SourceError, StorageError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.store.buckets import Bucket, split_url
from streaming_ext.text.sources.patterns import Takes, folder_of, is_pattern, matching
from streaming_ext.text.sources.source_file import SourceFile

Result = TypeVar("Result")

_CHUNK_BYTES = 8 * 2**20
_AT_ONCE = 4  # chunks requested before they are needed


def list_objects(pattern: str, takes: Takes) -> list[SourceFile]:
    """List the objects that a URL with or without wildcards names, in one listing."""
    bucket, key = bucket_of(pattern)
    # Without wildcards, the URL may name a file or a folder. A listing of the prefix itself shows
    # both, while a listing of the folder above may be long.
    base = f"{folder_of(key)}/".lstrip("/") if is_pattern(key) else key
    found = list_prefix(bucket, base)
    return [found[name] for name in matching(found, key, takes)]


def list_prefix(bucket: Bucket, prefix: str) -> dict[str, SourceFile]:
    """List the objects whose keys begin with a prefix, by key."""
    url = f"{bucket.scheme}://{bucket.name}"
    return {
        key: SourceFile(url=f"{url}/{key}", size=info.size, version=info.version)
        for key, info in bucket.find(prefix).items()
    }


def bucket_of(url: str) -> tuple[Bucket, str]:
    """Return the bucket and the key of a source's URL.

    Raises:
        UsageError: the URL names no bucket, or leads out of it.
    """
    # A key is taken literally: it may hold '?', '#' and empty names between slashes.
    scheme, _, path = url.partition("://")
    name, _, key = path.partition("/")
    split_url(f"{scheme}://{name}")
    if not key.isprintable() or ".." in key.split("/"):
        raise UsageError(f"{url!r}: a source must not hold '..' or control characters.")
    return Bucket(scheme=scheme, name=name), key


class ObjectReader:
    """A reader of ranges of one object, as long as the object is as listed."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._bucket, self._key = bucket_of(source.url)

    def read(self, start: int, end: int) -> bytes:
        """Read the bytes [start, end)."""
        version = self._source.version
        return self._as_listed(
            lambda: self._bucket.read(self._key, span=(start, end), version=version)
        )

    def stream(self, start: int) -> Iterator[bytes]:
        """Yield all bytes from `start` on."""
        size = self._source.size
        yield from mapped_ahead(
            lambda first: self.read(first, min(first + _CHUNK_BYTES, size)),
            range(start, size, _CHUNK_BYTES),
            threads=_AT_ONCE,
        )

    def headers(self) -> Mapping[str, str]:
        """Return the headers that may hold hashes of the object."""
        try:
            return self._as_listed(
                lambda: self._bucket.ask(
                    "look at", self._key, lambda store: store.headers(self._key)
                )
            )
        except StorageError as error:
            if error.transient:
                raise
            return {}  # headers may be forbidden though reading is not

    def _as_listed(self, request: Callable[[], Result]) -> Result:
        """Make a request for the version that was listed.

        Raises:
            SourceError: the object is gone, or has changed.
        """
        try:
            return request()
        except FileNotFoundError as error:
            raise SourceError(f"{self._source.url}: gone since the run began.") from error
        except FileExistsError as error:
            raise SourceError(
                f"{self._source.url}: changed since the run began. Run again."
            ) from error
