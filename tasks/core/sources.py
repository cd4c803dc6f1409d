"""Which source files there are: patterns to a sorted list, and what pins each file's content."""

import glob
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import bracex
import xxhash

from streaming_ext.errors import SourceError, UsageError
from streaming_ext.manifest import SourceIdentity

PARQUET_SUFFIX = ".parquet"
_READ_BYTES = 2**18  # stays in the cache of a core
_MAX_BRACES = 1_000_000
_STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # what would steer a terminal or a log
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
            if any(unicodedata.category(character) in _STEERING for character in url):
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
    try:
        plain = Path(pattern).expanduser().absolute()
        if plain.is_file():  # also a file whose name looks like a pattern
            return [plain]
        if plain.is_dir():
            return _parquet_files_in(plain)
        if not _GLOB.search(pattern):
            return []
        return list(_expand(pattern))
    except bracex.ExpansionLimitException as error:
        raise UsageError(f"{pattern}: braces for more than {_MAX_BRACES:,} names.") from error
    except (OSError, RuntimeError) as error:  # a dangling link, no permission, an unknown user
        raise UsageError(f"{pattern}: {error}.") from error


def _expand(pattern: str) -> Iterator[Path]:
    here = Path.cwd()  # never part of the pattern: its name may hold brackets
    home = Path(pattern).expanduser()
    for expanded in bracex.iexpand(str(home), limit=_MAX_BRACES):
        for name in sorted(glob.glob(expanded, root_dir=here, recursive=True)):  # noqa: PTH207
            path = here / name
            if path.is_dir():
                yield from _parquet_files_in(path)
            else:
                path.stat()  # a link that leads nowhere is an error, not a file less
                yield path


def _parquet_files_in(folder: Path) -> list[Path]:
    """The Parquet files below a folder, links followed, hidden ones left out."""
    found, seen = [], set()

    def refuse(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if name.endswith(PARQUET_SUFFIX) and not name.startswith("."):
                file = Path(place, name)
                file.stat()
                found.append(file)
    return found


def _why_nothing(pattern: str) -> str:
    if Path(pattern.removeprefix("file://")).expanduser().is_dir():
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
