"""The tokens of units on a local disk: made when they are first needed, once for all processes."""

import os
import threading
import time
from pathlib import Path
from typing import IO, Final

from torch.utils.data import get_worker_info

from streaming_ext.errors import StorageError
from streaming_ext.from_text.text_index import PADDING, TextIndex, padding_of
from streaming_ext.from_text.unit_reader import UnitReader, changed
from streaming_ext.shards.cache import ShardCache
from streaming_ext.storage.remote import Remote

_PAUSE: Final = 0.01  # seconds between looks whether another process is done
_PADDING: Final = 2**32  # bytes of the lock file from here on are those of padding
_SLOW: Final = 2**20  # bytes of tokens a second that a unit is made at, at the least
_REMOTE_AT_ONCE: Final = 4  # units in the making: their bytes are waited for


class TextCache(ShardCache):
    """Tokens where others have shards: what is not there is not fetched, but made of its text.

    A process that meets a unit which another one is making turns to others, as far as it has
    threads, and so the workers of a machine share the work.
    """

    index: TextIndex
    of_text = True

    def __init__(
        self,
        index: TextIndex,
        reader: UnitReader,
        *,
        place: str,
        folder: Path,
        limit: int | None,
        timeout: float,
    ) -> None:
        """Choose the folder of the split; nothing is written yet.

        Args:
            index: the split.
            reader: of units.
            place: what messages call the text.
            folder: of the text.
            limit: bytes that the tokens may take there, None for no limit.
            timeout: seconds for what a small unit takes, all attempts together.
        """
        slowest = timeout + int(index.raw_sizes.max(initial=0)) / _SLOW
        self.reader = reader
        self._remote = any(piece.source.remote for unit in index.units for piece in unit.pieces)
        super().__init__(index, Remote(url=place, timeout=slowest), local=folder, limit=limit)
        self.folder = folder / index.split

    def forget_process(self) -> None:
        """Drop what a fork copied."""
        super().forget_process()
        # A worker is one of several: with one core. Who reads alone may use another one.
        at_once = _REMOTE_AT_ONCE if self._remote else 1 if get_worker_info() else 2
        self._making = threading.BoundedSemaphore(at_once)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what belongs to this process."""
        return {name: value for name, value in super().__getstate__().items() if name != "_making"}

    def label(self, shard: int) -> str:
        """The unit, for messages."""
        unit = int(self.index.unit_of_shard[shard])
        return self.source.url if unit == PADDING else self.index.units[unit].name

    def fetch(self, shard: int) -> None:
        """Have the tokens of a unit here, by this process or another one.

        Raises:
            SourceError: a file is damaged or changed; names it.
            StorageError: a server refuses, or the local disk does.
        """
        path, unit = self.path(shard), int(self.index.unit_of_shard[shard])
        # Shards are numbered otherwise where rows have another length; units are not.
        byte = _PADDING + shard if unit == PADDING else unit
        while not path.exists():
            with self._making, self._lock.at_once(byte) as alone:
                if alone:
                    if not path.exists():
                        self._make(shard, path)
                    return
            time.sleep(_PAUSE)

    def _make(self, shard: int, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of processes that died
                leftover.unlink(missing_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
            try:
                with temporary.open("wb") as file:
                    self._write_tokens(shard, file)
                with self._room_for(int(self.index.raw_sizes[shard])):
                    temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"The cache cannot hold {path}: {error}. Give local= a folder that this user may "
                "write, with room, or set cache_limit=."
            ) from error

    def _write_tokens(self, shard: int, file: IO[bytes]) -> None:
        index, unit = self.index, int(self.index.unit_of_shard[shard])
        if unit == PADDING:
            file.write(padding_of(index.spec, int(index.samples[shard])))
            return
        record = self.reader.write(index.units[unit], {index.split: file}, audit=False)
        if record.hashes[index.split] != index.raw_hashes[shard]:
            raise changed(index.units[unit].name)
