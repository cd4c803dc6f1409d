"""The few requests that a dataset needs of an object store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from streaming_ext.store.digests import Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it.

    Attributes:
        size: in bytes.
        version: what pins its content, `etag:...` or `generation:...`.
    """

    size: int
    version: str


class NoBucketError(OSError):
    """The store answers that there is no such bucket or container."""

    code = "NoSuchBucket"


class NotAStoreError(OSError):
    """What answers is no object store."""

    code = "NotAStore"


class Dialect(Protocol):
    """One provider's way; `fs` is its fsspec file system, whose own retries are off.

    All but `open` raise what the client raises; `faults` tells what that means.

    Attributes:
        package: that speaks it.
        extra: of this distribution that brings the package.
        endpoint: the variable that names another server.
    """

    package: str
    extra: str
    endpoint: str

    def open(self, scheme: str, timeout: float, options: Mapping[str, Any]) -> Any:
        """Make the file system.

        Args:
            scheme: of the URL.
            timeout: seconds that the server may say nothing.
            options: of the user for fsspec, beside what the environment says.
        """
        ...

    async def look_at(self, fs: Any, bucket: str, prefix: str) -> None:
        """Make sure that the bucket is there and may be listed."""
        ...

    async def find(self, fs: Any, bucket: str, prefix: str) -> dict[str, ObjectInfo]:
        """Every object whose key begins with `prefix`, by key."""
        ...

    async def read(
        self, fs: Any, bucket: str, key: str, span: tuple[int, int] | None, version: str | None
    ) -> bytes:
        """The bytes [start, end) of an object, or all; only of that version, where one is named.

        Of an object that ends early, what there is. Another version is an error that `faults`
        takes for "exists already": a failed condition.
        """
        ...

    async def digest(self, fs: Any, bucket: str, key: str) -> Digest | None:
        """What the store offers to check a whole object by, without the sizes of its pieces.

        None where it offers nothing that can be compared here.
        """
        ...

    async def piece_sizes(
        self, fs: Any, bucket: str, key: str, numbers: Sequence[int]
    ) -> list[int]:
        """The sizes of some of the pieces that an object was put in, by number from 1.

        As many bytes as the object has where the store does not tell them apart.
        """
        ...

    async def put(self, fs: Any, bucket: str, key: str, data: bytes, *, new: bool) -> None:
        """Put an object in one step; where `new`, only if there is none."""
        ...

    async def copy(self, fs: Any, place: str, bucket: str, key: str, size: int) -> bool:
        """Have the store copy an object, named as BUCKET/KEY; returns whether it can."""
        ...

    async def remove(self, fs: Any, bucket: str, key: str) -> None:
        """Remove an object."""
        ...


def require_no_page(headers: Mapping[str, Any]) -> None:
    """Refuse a web page in place of an answer.

    Raises:
        NotAStoreError: it is one.
    """
    kinds = [str(headers[name]) for name in headers if str(name).lower() == "content-type"]
    if any(kind.lower().startswith("text/html") for kind in kinds):
        raise NotAStoreError("a web page")
