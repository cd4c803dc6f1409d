"""What stores tell of whole objects, and the same of files that came from there."""

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from streaming_ext.store.crc import CRCS, Crc

KINDS = ("sha256", "sha1", "md5", "crc64nvme", "crc32c", "crc32")  # the best first
_READ_BYTES = 2**22
_REPRESENTATION = re.compile(r"([A-Za-z0-9-]+)=:([A-Za-z0-9+/=]+):")
_GOOGLE = re.compile(r"(md5|crc32c)=([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Digest:
    """A hash or checksum of an object.

    Attributes:
        kind: one of `KINDS`, or `git`, as Git names a file's content.
        value: in hexadecimal.
        count: pieces that the object was put in, where the value is that of their hashes one
            behind another; 0 where it is of the content.
        sizes: of those pieces, in bytes.
    """

    kind: str
    value: str
    count: int = 0
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        of_pieces = f" of {self.count} pieces" if self.count else ""
        return f"{self.kind}{of_pieces} {self.value}"

    def of(self, path: Path) -> str:
        """The same of a file, in hexadecimal."""
        with path.open("rb") as file:
            size = path.stat().st_size
            if self.kind == "git":
                blob = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
                return _hashed(file, blob, size).hex()
            if not self.count:
                return _hashed(file, _hasher(self.kind), size).hex()
            whole = _hasher(self.kind)
            for size in self.sizes:
                whole.update(_hashed(file, _hasher(self.kind), size))
            return whole.digest().hex()


def digest_in(headers: Mapping[str, str]) -> Digest | None:
    """What the head of a web server's answer tells of the whole file: RFC 9530, or a store's words.

    Args:
        headers: of an answer to HEAD; names in lower case.
    """
    found = dict(
        _REPRESENTATION.findall(headers.get("repr-digest", "").replace("sha-256", "sha256"))
    )
    found |= dict(_GOOGLE.findall(headers.get("x-goog-hash", "")))
    if "content-md5" in headers:
        found["md5"] = headers["content-md5"]
    for kind in KINDS:
        text = found.get(kind, "")
        if headers.get("x-amz-checksum-type") != "COMPOSITE":
            text = headers.get(f"x-amz-checksum-{kind}", text)
        try:
            value = base64.b64decode(text, validate=True).hex()
        except binascii.Error:  # of pieces, or nothing that can be read
            continue
        if value:
            return Digest(kind=kind, value=value)
    return None


class _Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...


class _Crc32:
    """The one that zlib has."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def _hasher(kind: str) -> _Hasher:
    if kind in CRCS:
        return Crc(kind)
    return _Crc32() if kind == "crc32" else hashlib.new(kind, usedforsecurity=False)


def _hashed(file: BinaryIO, hasher: _Hasher, size: int) -> bytes:
    """The hash of the next so many bytes."""
    for data in _blocks(file, size):
        hasher.update(data)
    return hasher.digest()


def _blocks(file: BinaryIO, size: int) -> Iterable[bytes]:
    while size and (data := file.read(min(size, _READ_BYTES))):
        size -= len(data)
        yield data
