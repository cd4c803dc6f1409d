"""Counting the tokens of all units: once, by all threads and processes that meet in a folder.

What is found of a unit is put into a file of its own at once: who is killed in the middle goes on
there. When all are there, one file holds them, and those are removed.
"""

import json
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from streaming_ext.errors import ShardmillError, StorageError
from streaming_ext.from_text.unit_reader import UnitReader, UnitRecord
from streaming_ext.from_text.units import Unit
from streaming_ext.shards.folder_lock import folder_lock
from streaming_ext.text.identity import identify
from streaming_ext.text.parts.part import Part

_log = logging.getLogger(__name__)
FOUND: Final = "found.json"
_FOLDER: Final = "finding"
_PAUSE: Final = 0.02  # seconds between looks whether another process is done
_VERSION: Final = 1
_KEPT: Final = 2**40  # byte of the lock file that is held while bytes that stay are counted
_PATIENCE: Final = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What all units hold.

    Attributes:
        records: one a unit.
        versions: what pins the content of each piece of each part.
    """

    records: tuple[UnitRecord, ...]
    versions: tuple[tuple[str, ...], ...]


class Scan:
    """The work of one process at the units and parts of a text."""

    def __init__(
        self,
        folder: Path,
        reader: UnitReader,
        *,
        parts: Sequence[Part],
        units: Sequence[Unit],
        threads: int,
        keep: int | None,
    ) -> None:
        """Name the work.

        Args:
            folder: where processes meet.
            reader: of units.
            parts: whose files are pinned.
            units: of these parts.
            threads: of this process.
            keep: bytes of tokens that all processes may leave in the folder; None for all.
        """
        self._folder, self._reader, self._threads = folder, reader, threads
        self._parts, self._units = parts, units
        self._keep = keep
        self._lock = folder_lock(folder)
        self._failed = threading.Event()
        self._found: Found | None = None

    def run(self) -> Found:
        """All that is found, by this process or others.

        Raises:
            ShardmillError: a file cannot be read or trusted; names it.
        """
        if (found := self._read_found()) is not None:
            return found
        began = time.monotonic()
        _log.info("counting the tokens of %d units in %s", len(self._units), self._folder)
        try:
            (self._folder / _FOLDER).mkdir(parents=True, exist_ok=True)
            jobs: deque[tuple[str, Callable[[], Any]]] = deque(
                [(f"part-{n}", self._part_job(n)) for n in range(len(self._parts))]
                + [(f"unit-{n}", self._unit_job(n)) for n in range(len(self._units))]
            )
            names = [name for name, _ in jobs]
            told: dict[str, Any] = {}
            with ThreadPoolExecutor(self._threads, "shardmill-scan") as threads:
                working = [
                    threads.submit(self._work, jobs, told, len(names)) for _ in range(self._threads)
                ]
                try:
                    wait(working, return_when=FIRST_EXCEPTION)
                finally:  # no more work for those that are left, if one failed or a signal came
                    self._failed.set()
            for each in working:
                each.result()
            if (found := self._read_found()) is None:
                found = self._put_together([told[name] for name in names])
        except OSError as error:
            raise StorageError(
                f"The cache {self._folder} cannot be used: {error}. Give local= a folder that this "
                "user may write, with room, or set cache_limit=."
            ) from error
        _log.info(
            "counted the tokens of %d units in %.1f s", len(self._units), time.monotonic() - began
        )
        return found

    def _work(
        self, jobs: deque[tuple[str, Callable[[], Any]]], told: dict[str, Any], count: int
    ) -> None:
        """Take jobs until all are done, by whomever."""
        passed_over = 0
        while not self._failed.is_set():
            try:
                name, work = jobs.popleft()
            except IndexError:
                if len(told) == count:
                    return
                time.sleep(_PAUSE)  # another thread is at the last ones
                continue
            if self._done(name, work, told):
                passed_over = 0
                continue
            jobs.append((name, work))  # another process is at it
            passed_over += 1
            if passed_over > len(jobs):
                time.sleep(_PAUSE)

    def _done(self, name: str, work: Callable[[], Any], told: dict[str, Any]) -> bool:
        path = self._folder / _FOLDER / f"{name}.json"
        with self._lock.at_once(2 * int(name[5:]) + (name[0] == "u")) as alone:
            # Read only when alone: what is there then is whole, and of this very text.
            if not alone:
                return False
            with suppress(FileNotFoundError, ValueError):
                told[name] = json.loads(path.read_bytes())
                return True
            if (found := self._read_found()) is not None:  # all by others meanwhile
                number = int(name[5:])
                told[name] = (
                    found.records[number].to_json() if name[0] == "u" else found.versions[number]
                )
                return True
            try:
                result = work()
            except ShardmillError:
                self._failed.set()
                raise
            _write_whole(path, json.dumps(result).encode())
            told[name] = result
            return True

    def _part_job(self, number: int) -> Callable[[], list[str]]:
        def pin() -> list[str]:
            options = self._reader.spec.read_options
            return [
                piece.source.version
                or (
                    ""
                    if piece.source.local_path is None
                    else identify(
                        piece.source, piece.source.local_path, span=piece.span, options=options
                    ).version
                )
                for piece in self._parts[number].pieces
            ]

        return pin

    def _unit_job(self, number: int) -> Callable[[], dict[str, Any]]:
        return lambda: self._count(number).to_json()

    def _count(self, number: int) -> UnitRecord:
        """Tokenize a unit; its tokens stay in the cache while there is room."""
        temporary: dict[str, Path] = {}
        final: dict[str, Path] = {}
        for split in self._reader.spec.splits:
            final[split] = self._folder / split / token_file(number)
            final[split].parent.mkdir(exist_ok=True)
            for leftover in final[split].parent.glob(f".{final[split].name}.*.tmp"):
                leftover.unlink(missing_ok=True)  # of a process that died
            temporary[split] = final[split].with_name(
                f".{final[split].name}.{os.getpid()}.{threading.get_ident()}.tmp"
            )
        try:
            with ExitStack() as stack:
                files: dict[str, IO[bytes]] = {
                    split: stack.enter_context(path.open("wb")) for split, path in temporary.items()
                }
                record = self._reader.write(self._units[number], files, audit=True)
            size = sum(path.stat().st_size for path in temporary.values())
            stays = self._keep is None or self._fits(size, self._keep)
            for name, path in temporary.items():
                if stays and record.tokens[name]:
                    path.replace(final[name])
        finally:
            for path in temporary.values():
                path.unlink(missing_ok=True)
        return record

    def _fits(self, size: int, most: int) -> bool:
        """Whether so many more bytes may stay; if so, they count from now on."""
        path = self._folder / _FOLDER / "kept"
        with self._lock.exclusive(_KEPT, patience=_PATIENCE, what=f"the cache {self._folder}"):
            kept = int(path.read_text()) if path.exists() else 0
            if kept + size > most:
                return False
            _write_whole(path, str(kept + size).encode())
        return True

    def _put_together(self, told: Sequence[Any]) -> Found:
        count = len(self._parts)
        found = Found(
            versions=tuple(tuple(each) for each in told[:count]),
            records=tuple(UnitRecord.from_json(each) for each in told[count:]),
        )
        content = {"version": _VERSION, "parts": told[:count], "units": told[count:]}
        _write_whole(self._folder / FOUND, json.dumps(content).encode())
        shutil.rmtree(self._folder / _FOLDER, ignore_errors=True)
        return found

    def _read_found(self) -> Found | None:
        """What was put together before; None where it is not, or not of this text."""
        if self._found is not None:
            return self._found
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            content = json.loads((self._folder / FOUND).read_bytes())
            found = Found(
                versions=tuple(tuple(each) for each in content["parts"]),
                records=tuple(UnitRecord.from_json(each) for each in content["units"]),
            )
            sizes = (len(found.versions), len(found.records))
            if content["version"] == _VERSION and sizes == (len(self._parts), len(self._units)):
                self._found = found
        return self._found


def token_file(unit: int) -> str:
    """The file of the cache that holds the tokens of a unit."""
    return f"{unit:07}.tokens"


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(data)
    temporary.replace(path)
