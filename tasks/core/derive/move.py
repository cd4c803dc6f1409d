"""Copies and merges: they put published files elsewhere.

Every byte is read and hashed on the way, unless the storage itself links or copies the files.
"""

import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from streaming_ext.base.errors import CorruptDatasetError, command
from streaming_ext.format.layout import MANIFEST
from streaming_ext.format.schema import FileRecord
from streaming_ext.store import Storage
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.derive.config import CopyConfig, MergeConfig
from tasks.core.derive.export_format import HashedFile
from tasks.core.derive.merging import Contents, FileGroup, Move, contents_of, merged, together
from tasks.core.engine.build import DerivedBuild, OnStatus, Published, Recorded, Words
from tasks.core.engine.lifecycle import compare, is_started, require_same
from tasks.core.engine.output_files import (
    file_sizes,
    hash_of,
    open_other,
    scratch_folder,
    wrong_bytes,
)
from tasks.core.workers.messages import Job, JobProgress, MadePart, Report, WorkerCache

_LINKED_AT_ONCE = 64  # parts


class MoveJob(Job[MadePart]):
    """Put the files of a group on the output.

    Attributes:
        group: the group of files to put.
        output: the URL of the output.
        scratch: the folder for files on their way.
        read: True to read every byte and compare it with its hash; else the storage may link or
            copy a file by itself.
    """

    group: FileGroup
    output: str
    scratch: Path
    read: bool

    def do(self, cache: WorkerCache, report: Report) -> MadePart:
        """Put the files, several at the same time, and then the texts.

        Raises:
            CorruptDatasetError: a file is missing, or differs from its record.
            StorageError: a file is shorter than recorded, or the output or scratch is not writable.
        """
        output, group = cache.storage(self.output), self.group
        total, done = max(sum(move.size for move in group.moves), 1), 0
        sources = {root: cache.storage(root) for root in {move.root for move in group.moves}}

        def put(move: Move) -> int:
            source, path = sources[move.root], self.scratch / uuid.uuid4().hex
            with suppress(FileNotFoundError):  # the read below reports it
                if not self.read and output.adopt(source, move.path, move.to, move.size):
                    return move.size
            _put_checked(source, move, output, path)
            return move.size

        def put_text(path: str) -> None:
            output.put(path, group.texts[path].encode())

        with ThreadPoolExecutor(output.puts_at_once, "shardmill-move") as threads:
            for size in threads.map(put, group.moves):
                done += size
                report(JobProgress(fraction=done / total, text_bytes=done))
            list(threads.map(put_text, group.texts))
        return MadePart(
            documents=group.documents,
            tokens=group.tokens,
            size=sum(span.size for span in group.spans),
        )


def _put_checked(source: Storage, move: Move, output: Storage, path: Path) -> None:
    """Copy a file to scratch, compare its bytes with their hashes, and put it."""
    try:
        with HashedFile(move.to, 0, lambda span: None, path) as sink:
            for span in move.spans:
                if problem := wrong_bytes(source, span._replace(path=move.path), sink.write):
                    raise CorruptDatasetError(
                        f"{source}/{move.path}: {problem}. {command('verify', source)} checks "
                        "every file."
                    )
        output.put_file(move.to, path)
    finally:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class MoveBuild(DerivedBuild):
    """A copy of a dataset or export, or a merge of datasets.

    Attributes:
        contents: the contents of the output.
    """

    config: CopyConfig | MergeConfig
    contents: Contents
    jobs: tuple[MoveJob, ...]

    # Some parts have one large file, for which the others should not wait.
    at_least: ClassVar[int] = 4

    @property
    def manifest_path(self) -> str:
        """The path of the manifest of a dataset or an export."""
        return self.contents.path

    @property
    def words(self) -> Words:
        """The words for people."""
        return Words("copying", "copied") if self.kind == "copy" else Words("merging", "merged")

    @property
    def identity(self) -> FileRecord:
        """The manifest that the output will have."""
        return self.contents.manifest

    def is_published(self, output: Storage) -> bool:
        """Return whether the output has the same manifest."""
        try:
            held = FileRecord.of(self.manifest_path, output.read(self.manifest_path))
        except FileNotFoundError:
            return False
        require_same(held.model_dump(mode="json"), self.identity, where=str(output))
        return True

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """Return all parts of a started run; the caller compares the sizes of their files."""
        if not (published or is_started(self, output)):
            return Recorded(storage=output, parts={})
        return Recorded(
            storage=output,
            parts={number: job.group.spans for number, job in enumerate(self.jobs)},
        )

    def beside(self, output: Storage) -> Mapping[str, int]:
        """Return nothing: the last part includes the files that belong to no part."""
        return {}

    def with_again(self, parts: frozenset[int]) -> Self:
        """Return the build with some parts to be put again; their jobs read each byte."""
        jobs = [
            job.model_copy(update={"read": job.read or number in parts})
            for number, job in enumerate(self.jobs)
        ]
        return replace(super().with_again(parts), jobs=tuple(jobs))

    def finish(self, output: Storage, on_status: OnStatus) -> Published:
        """Return the manifest and the files that the output must hold."""
        return Published(self.contents.path, self.contents.data, file_sizes(self.contents.spans))


def plan_copy(
    config: CopyConfig, output: Storage, on_status: OnStatus = lambda words: None
) -> MoveBuild:
    """Plan a copy; nothing is written.

    Raises:
        UsageError: the output is the original, or holds something else.
        DatasetError: the original is not published, or its metadata are damaged.
    """
    return _compare(config, "copy", contents_of(open_other(config.dataset, output)), output)


def plan_merge(
    config: MergeConfig, output: Storage, on_status: OnStatus = lambda words: None
) -> MoveBuild:
    """Plan a merge; nothing is written.

    Raises:
        UsageError: the datasets cannot be merged, or the output holds something else.
        DatasetError: one is not a dataset, or its metadata are damaged.
    """
    datasets = [open_other(url, output) for url in config.datasets]
    hashes = tuple(hash_of(dataset, MANIFEST) for dataset in datasets)
    contents = merged(config.datasets, hashes, repeats=config.repeats)
    if not any(storage.remote for storage in (output, *datasets)):
        # To link a file takes less time than a task run.
        starts = range(0, len(contents.parts), _LINKED_AT_ONCE)
        groups = [together(contents.parts[start : start + _LINKED_AT_ONCE]) for start in starts]
        contents = replace(contents, parts=tuple(groups))
    return _compare(config, "merge", contents, output)


def _compare(
    config: CopyConfig | MergeConfig, kind: str, contents: Contents, output: Storage
) -> MoveBuild:
    scratch = scratch_folder(config, output)
    folder = scratch / "moved"
    jobs = [
        MoveJob(group=group, output=str(output), scratch=folder, read=kind == "copy")
        for group in contents.parts
    ]
    build = MoveBuild(
        config=config,
        kind=kind,
        contents=contents,
        parts=tuple(_part(number, group) for number, group in enumerate(contents.parts)),
        jobs=tuple(jobs),
        scratch=scratch,
    )
    return compare(build, output)


def _part(number: int, group: FileGroup) -> Part:
    """Return a part of the build, named after its first file."""
    names = (*(f"{move.root}/{move.path}" for move in group.moves[:1]), *group.texts, "")
    size = sum(move.size for move in group.moves)
    return Part.whole(number, SourceFile(url=names[0], size=size))
