"""The jobs that fetch the sources of a part to this host, and put its files on the output."""

import time
from pathlib import Path
from typing import Self

from streaming_ext.format.layout import PARTS_FOLDER
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import from_json, to_json
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store import uploads
from streaming_ext.text.parts import Part
from streaming_ext.writing.part_documents import fetch_part
from tasks.core.reporting.report import ReportedCounts
from tasks.core.shuffle.spills import SpillRecord, shard_bytes
from tasks.core.workers.messages import Job, JobProgress, JobResult, Report, WorkerCache

RECORD_FILE = "record.json"


class FetchedPart(JobResult):
    """The spans of a part on this host.

    Attributes:
        paths: the path of each span; on scratch, or in a cache of another program.
        fetched_bytes: the bytes that were fetched over the network.
    """

    paths: tuple[Path, ...]
    fetched_bytes: int


class FetchJob(Job[FetchedPart]):
    """Fetch the spans of a part to a folder on scratch; see `fetch_part`."""

    RESULT = FetchedPart

    part: Part
    folder: Path
    options: ReadOptions
    check: bool = False

    def do(self, cache: WorkerCache, report: Report) -> FetchedPart:
        """Fetch the spans; see `fetch_part`."""
        paths, fetched = fetch_part(
            self.part,
            self.folder,
            lambda done: report(JobProgress(fraction=done / max(self.part.size, 1))),
            options=self.options,
            check=self.check,
        )
        return FetchedPart(paths=tuple(paths), fetched_bytes=fetched)


class PackedPart(JobResult):
    """A part whose files lie on scratch, with its record.

    Attributes:
        ended: the time when the work ended, in seconds since 1970.
        engine: the engine that tokenized, in words; empty if none did.
    """

    counts: ReportedCounts
    ended: float
    engine: str = ""

    @classmethod
    def save(cls, record: PartRecord | SpillRecord, folder: Path, *, engine: str = "") -> Self:
        """Write the record beside the files, last: it makes the part complete on scratch.

        Args:
            record: the record of the part.
            folder: the folder on scratch.
            engine: the engine that tokenized, in words.
        """
        (folder / RECORD_FILE).write_bytes(to_json(record))
        return cls(counts=ReportedCounts.of(record), ended=time.time(), engine=engine)


class WrittenPart(JobResult):
    """A part that is recorded on the output.

    Attributes:
        shard_bytes: the size of the files that hold its tokens.
    """

    shard_bytes: int


class WriteJob(Job[WrittenPart]):
    """Put the files of a part on the output, and last the record that makes it count.

    The files stay on scratch, so the job can be done again.

    Attributes:
        scratch: the folder that holds the files and `RECORD_FILE`.
        record: the path of the record on the output.
    """

    RESULT = WrittenPart

    scratch: Path
    output: str
    record: str

    def do(self, cache: WorkerCache, report: Report) -> WrittenPart:
        """Put the files, then the record.

        Raises:
            StorageError: the output is full, gone or not writable.
        """
        storage = cache.storage(self.output)
        is_part = self.record.startswith(PARTS_FOLDER)
        kind: type[PartRecord | SpillRecord] = PartRecord if is_part else SpillRecord
        data = (self.scratch / RECORD_FILE).read_bytes()
        record = from_json(kind, data, where=str(self.scratch))
        files = record.files()
        size, done = sum(file.size for file in files), 0
        # Spills need not survive a loss of power: they are temporary, and can be made again.
        with uploads(storage, lasting=is_part) as put:
            for file in files:
                put(file.path, self.scratch / file.path)
                done += file.size
                report(JobProgress(fraction=done / max(size, 1)))
        storage.put(self.record, data)
        return WrittenPart(shard_bytes=shard_bytes(record))
