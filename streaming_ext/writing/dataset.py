"""A dataset in a local folder, made by all the threads and processes of a machine that need it.

Each of them takes parts on which no other works. A part counts if its record exists, and the
dataset counts if its manifest exists, so a process that was killed resumes when it starts again.
"""

import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal

import numpy as np
from tqdm.auto import tqdm

from streaming_ext.base.errors import HeldError, StoppedError, StorageError, UsageError
from streaming_ext.format.compression import Compression
from streaming_ext.format.layout import MANIFEST, documents_path, record_path
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.reading import read_manifest, read_record
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.store import LocalStorage, Storage, uploads
from streaming_ext.store.file_lock import alone
from streaming_ext.store.scratch import writing_scratch
from streaming_ext.text.look import look_into
from streaming_ext.text.parts import Part
from streaming_ext.text.tokenizer.engine import Engine, choose_engine, in_words
from streaming_ext.text.tokenizer.json_file import one_thread_each
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.part_documents import PartDocuments, fetch_part
from streaming_ext.writing.part_files import PartFiles
from streaming_ext.writing.publish import publish_splits, put_tokenizer
from streaming_ext.writing.split_writer import Memories
from streaming_ext.writing.tokenize import emptied, make_part

_log = logging.getLogger(__name__)
WORK_FOLDER: Final = ".making"  # work in progress, removed when the dataset is complete
_SHOWN: Final = 0.5  # seconds between two updates of the progress
_PAUSE: Final = 0.05  # seconds between two checks whether another process is done with a part
_MOST_BYTES_PER_TOKEN: Final = 6.0  # bytes of text per token that few tokenizers reach
_LEAST_PACKED: Final = 0.5  # compressed size of tokens as a fraction of their size, at least


class DatasetMaker:
    """The work of one process on a dataset."""

    def __init__(
        self,
        folder: Path,
        spec: DatasetSpec,
        parts: Sequence[Part],
        tokenizer: Tokenizer,
        *,
        engine: Literal["auto", "reference"],
        threads: int,
    ) -> None:
        """Set up the work.

        Args:
            folder: the folder of this dataset; its name holds a hash of everything that decides its
                bytes.
            spec: the specification of the dataset.
            parts: all parts of the dataset.
            tokenizer: the tokenizer of the text.
            engine: see `choose_engine`.
            threads: the number of threads of this process.
        """
        self._folder, self._spec, self._parts = folder, spec, parts
        self._work_folder = folder / WORK_FOLDER
        self._tokenizer, self._engine, self._threads = tokenizer, engine, threads
        self._storage = LocalStorage(folder)
        self._compression = Compression.parse(spec.compression)
        self._stop = threading.Event()
        self._done: dict[int, float] = {}  # bytes of each part that are done

    def make(self, *, limit: int | None = None) -> None:
        """Make the dataset, together with other processes; return when it is complete.

        Args:
            limit: the bytes of the dataset that training may have unpacked at a time.

        Raises:
            SourceError: a file is damaged or changed; the message names it.
            UsageError: the files cannot be used; see `look_into`.
            StorageError: the disk is too small or not writable, or a server refuses.
        """
        if (self._folder / MANIFEST).exists():
            return
        self._storage.create()
        is_first = not self._work_folder.exists()
        with self._alone():
            if not (self._folder / MANIFEST).exists() and not self._work_folder.exists():
                sources = dict.fromkeys(one.source for part in self._parts for one in part.spans)
                look_into([*sources], self._spec.read_options)
                self._require_room(limit)
                with writing_scratch(self._work_folder):
                    self._work_folder.mkdir()
        todo = deque(self._parts)

        def work(thread: int) -> None:
            # One engine per thread: its cache of words belongs to the thread that uses it.
            engine = choose_engine(self._tokenizer, engine=self._engine)
            if is_first and thread == 0:
                for line in filter(None, (self._tokenizer.note, in_words(engine))):
                    level = logging.INFO if line == engine.name else logging.WARNING
                    _log.log(level, "%s: %s", self._folder.name, line)
            memories: Memories = {}
            while not self._stop.is_set():
                try:
                    part = todo.popleft()
                except IndexError:  # other threads work on the rest
                    return
                try:
                    if self._is_made(part, engine, memories):
                        self._done[part.number] = part.size
                    else:
                        todo.append(part)
                        time.sleep(_PAUSE)
                except StoppedError:
                    return

        with one_thread_each(), ThreadPoolExecutor(self._threads, "shardmill-text") as pool:
            working = [
                pool.submit(work, thread) for thread in range(min(self._threads, len(self._parts)))
            ]
            try:
                self._wait(working)
            finally:  # if a thread failed or a signal came, the other threads end
                self._stop.set()
        for each in working:
            each.result()
        with self._alone():
            if not (self._folder / MANIFEST).exists():
                self._publish()

    def _alone(self) -> AbstractContextManager[None]:
        """Hold the folder against all other processes and threads that need the dataset."""
        return alone(self._folder / ".lock", patience=-1, what=str(self._folder))

    def _wait(self, working: Sequence[Future[None]]) -> None:
        """Show the progress of all processes until the threads end, or one of them fails.

        If a machine has several processes, only the first one shows it.
        """
        others = os.environ.get("LOCAL_RANK", "0") != "0"
        size = sum(part.size for part in self._parts)
        shown = {"unit": "B", "unit_scale": True, "disable": others}
        with tqdm(desc=f"Tokenizing into {self._folder.name}", total=size, **shown) as bar:
            ended = False
            while not ended:
                found = wait(working, timeout=_SHOWN, return_when=FIRST_EXCEPTION)
                ended = not found.not_done or any(one.exception() for one in found.done)
                bar.update(round(sum(tuple(self._done.values()))) - bar.n)

    def _is_made(self, part: Part, engine: Engine, memories: Memories) -> bool:
        """Make a part, unless another process works on it; return whether the part is made."""
        record = self._folder / record_path(part.number)
        if record.exists():
            return True
        scratch = self._work_folder / f"{part.number:05}"
        try:
            with alone(scratch.with_suffix(".lock"), patience=0, what=str(scratch)):
                if not record.exists():
                    self._make_part(part, scratch, engine, memories)
        except HeldError:
            return False
        return True

    def _make_part(self, part: Part, scratch: Path, engine: Engine, memories: Memories) -> None:
        def report(fraction: float, _: object) -> None:
            self._done[part.number] = fraction * part.size
            self._stopped()

        paths: list[Path] = []
        fetched, made = scratch.with_suffix(".sources"), scratch
        options = self._spec.read_options
        if part.remote:
            paths, _ = fetch_part(part, fetched, self._stopped, options=options)
        documents = PartDocuments(part, paths, options)
        with emptied(made):
            files = PartFiles(made, part.number, self._spec, memories)
            counts = make_part(documents, self._spec, self._tokenizer, engine, files, report=report)
        listed = documents_path(part.number)
        record = PartRecord(
            **dict(counts), documents=FileRecord.of(listed, (made / listed).read_bytes())
        )
        with uploads(self._storage) as put:
            for file in record.files():
                put(file.path, made / file.path)
        self._storage.put(record_path(part.number), to_json(record))
        shutil.rmtree(made)
        shutil.rmtree(fetched, ignore_errors=True)

    def _stopped(self, *_: object) -> None:
        """End the work of a thread in the middle of a part."""
        if self._stop.is_set():
            raise StoppedError("another thread failed, or a signal came")

    def _publish(self) -> None:
        records = [read_record(self._storage, part.number) for part in self._parts]
        manifest = Manifest(
            spec=self._spec,
            parts=tuple(record.summary() for record in records),
            splits=publish_splits(self._spec, records, self._storage),
            tokenizer_files=tuple(put_tokenizer(self._tokenizer, self._storage)),
        )
        self._storage.put(MANIFEST, to_json(manifest))
        self._storage.close()
        # Errors are ignored, because another process may lock a part there.
        shutil.rmtree(self._work_folder, ignore_errors=True)

    def _require_room(self, limit: int | None) -> None:
        """Refuse to start if the dataset does not fit.

        Raises:
            StorageError: the message names the needed and the free space.
        """
        needed, free = self._needed_bytes(limit), self._storage.free_bytes()
        if free is not None and needed > free:
            raise StorageError(
                f"The tokens of the text take at least {needed / 1e6:,.1f} MB in {self._folder}, "
                f"where {free / 1e6:,.1f} MB are free. Give local= a folder with room"
                f"{'' if self._compression is None else ', or a lower cache_limit='}."
            )

    def _needed_bytes(self, limit: int | None) -> float:
        """Estimate the least bytes for the shards and for those that training unpacks."""
        size = sum(part.size for part in self._parts)
        raw = size / _MOST_BYTES_PER_TOKEN * np.dtype(self._spec.dtype).itemsize
        if self._compression is None:
            return raw
        return raw * _LEAST_PACKED + (raw if limit is None else min(raw, limit))


def copy_dataset(source: LocalStorage, target: Storage) -> None:
    """Copy a dataset to another storage, the manifest last; parts that exist there stay.

    Raises:
        UsageError: the target holds another dataset.
        StorageError: the target is not writable.
    """
    target.create()
    with target.exclusive():
        manifest, existing = source.read(MANIFEST), target.list()
        if MANIFEST in existing and target.read(MANIFEST) != manifest:
            raise UsageError(f"{target} holds another dataset. Give another output.")
        rest = source.list()
        for part in read_manifest(source).parts:
            record = source.read(part.record.path)
            files = [file.path for file in read_record(source, part.part).files()]
            if part.record.path not in existing or target.read(part.record.path) != record:
                with uploads(target) as put:
                    for path in files:
                        put(path, source.root / path)
                target.put(part.record.path, record)
            for path in (*files, part.record.path):
                del rest[path]
        for path in (*(rest.keys() - {MANIFEST}), MANIFEST):
            target.put(path, source.read(path))
    target.close()
