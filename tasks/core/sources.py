"""Which source files there are: patterns to a sorted list, and what pins each file's content."""

import glob
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import bracex
import xxhash

from streaming_ext.errors import SourceError, UsageError
from streaming_ext.manifest import SourceIdentity

PARQUET_SUFFIX = ".parquet"
_READ_BYTES = 2**22
_GLOB = re.compile(r"[*?\[{]")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class SourceFile:
    """One file as it was listed; `part` numbers follow the sorted order of `url`.

    Attributes:
        url: absolute path of a local file.
        size: in bytes.
    """

    url: str
    size: int

    @property
    def name(self) -> str:
        """Short name for people."""
        return self.url.rsplit("/", 1)[-1]


def list_sources(patterns: Iterable[str], *, max_files: int | None = None) -> list[SourceFile]:
    """Find the source files, each once, sorted by URL.

    Args:
        patterns: files, folders (all Parquet files in them, however deep), glob and brace patterns.
        max_files: keep only the first so many.

    Raises:
        UsageError: a pattern matches nothing, or a scheme is not supported.
    """
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        matches = _match(pattern)
        if not matches:
            raise UsageError(f"{pattern}: {_why_nothing(pattern)}")
        for path in matches:
            url = str(path)
            if not url.isprintable():
                raise UsageError(
                    f"{url!r}: the name of this source file holds control characters. Rename it."
                )
            found[url] = SourceFile(url=url, size=path.stat().st_size)
    return sorted(found.values())[:max_files]


def _match(pattern: str) -> list[Path]:
    if "://" in pattern:
        scheme, _, rest = pattern.partition("://")
        if scheme != "file":
            raise UsageError(
                f"{pattern}: {scheme}:// is not supported as source; expected a file or folder."
            )
        pattern = rest
    plain = Path(pattern).expanduser().absolute()
    if plain.is_file():  # also a file whose name looks like a pattern
        return [plain]
    if plain.is_dir():
        return _parquet_files_in(plain)
    if not _GLOB.search(pattern):
        return []
    matches: list[Path] = []
    for expanded in bracex.iexpand(str(plain)):
        for name in glob.glob(expanded, recursive=True):  # noqa: PTH207  (absolute, with **)
            path = Path(name)
            matches += _parquet_files_in(path) if path.is_dir() else [path]
    return matches


def _parquet_files_in(folder: Path) -> list[Path]:
    return [
        file
        for file in folder.rglob(f"*{PARQUET_SUFFIX}")
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(folder).parts)
    ]


def _why_nothing(pattern: str) -> str:
    if Path(pattern).expanduser().is_dir():
        return f"no {PARQUET_SUFFIX} file in this folder."
    if _GLOB.search(pattern):
        return "no file matches this pattern. (Quoted, so that the shell leaves it alone?)"
    return "no such file or folder."


def hash_file(path: Path) -> str:
    """XXH3-128 of a file's content, as hex.

    Raises:
        SourceError: the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_READ_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def identify(source: SourceFile, local: Path) -> SourceIdentity:
    """Pin the bytes of a source file that lies at `local`.

    Raises:
        SourceError: it cannot be read, or its size is not the listed one.
    """
    try:
        size = local.stat().st_size
    except OSError as error:
        raise SourceError(f"{source.url}: cannot be read: {error.strerror}.") from error
    if size != source.size:
        raise SourceError(
            f"{source.url}: {size} bytes, but {source.size} when the run began. "
            "It is being written to; run again when it is whole."
        )
    digest = hash_file(local)
    return SourceIdentity(url=source.url, size=size, version=f"xxh128:{digest}")
