"""What a copy or a merge has to do: groups of files, and which of them the output holds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

from streaming_ext.base.errors import UsageError
from streaming_ext.format.schema import FileRecord
from streaming_ext.store import Storage, open_storage
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.build.build import Build, OnStatus, Published, Recorded, Words
from tasks.core.build.engine import compare, is_started
from tasks.core.derive.config import CopyConfig, MergeConfig
from tasks.core.derive.contents import Contents, contents_of, is_published_as, manifest_hash
from tasks.core.derive.merging import merged
from tasks.core.derive.move import FileGroup, MoveJob, put_group
from tasks.core.shard.plan import scratch_folder

_LINKED_AT_ONCE = 256  # files: hard links take a second, copies that a store makes some more


@dataclass(frozen=True, kw_only=True)
class MoveBuild(Build):
    """Published files, put elsewhere: a copy, or several datasets as one.

    Attributes:
        contents: what the output is to hold; each part of it is a part of the build.
        read: see `MoveJob`.
        damaged: parts that the output holds damaged: each byte is read, whatever `read` says.
    """

    config: CopyConfig | MergeConfig
    contents: Contents
    read: bool
    damaged: frozenset[int] = frozenset()

    # Some parts have one large file, whose put nobody else should wait for.
    at_least: ClassVar[int] = 4

    @property
    def manifest_path(self) -> str:
        """That of a dataset, or of an export."""
        return self.contents.manifest.path

    @property
    def words(self) -> Words:
        """How people see what the run does."""
        return Words("copying", "copied") if self.phase == "copy" else Words("merging", "merged")

    @property
    def identity(self) -> FileRecord:
        """The manifest that the output is going to have."""
        return self.contents.manifest.file

    def job(self, step: str, number: int, output: Storage, results: Mapping[str, Any]) -> MoveJob:
        """What a worker does for a part."""
        return MoveJob(
            group=self.contents.parts[number],
            output=str(output),
            scratch=str(self.scratch / f"{number:05}"),
            read=self.read or number in self.damaged,
        )

    def is_published(self, output: Storage) -> bool:
        """Whether the output has the same manifest."""
        if (is_same := is_published_as(output, self.contents.manifest)) is False:
            held = FileRecord.of(self.manifest_path, output.read(self.manifest_path))
            self.require_same(held.model_dump(mode="json"), where=str(output))
        return bool(is_same)

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """All parts: the sizes of their files say which of them are done."""
        if not (published or is_started(self, output)):
            return Recorded(output, {})
        parts = enumerate(self.contents.parts)
        return Recorded(output, {number: group.spans for number, group in parts})

    def beside(self, output: Storage) -> Mapping[str, int]:
        """What belongs to no part."""
        return self.contents.rest.sizes

    def with_again(self, parts: frozenset[int]) -> Self:
        """The same, with some parts to be put again."""
        return replace(super().with_again(parts), damaged=parts)

    def finish(self, output: Storage, tell: OnStatus) -> Published:
        """Put in place what belongs to no part."""
        tell("putting the indexes")
        put_group(self.contents.rest, output, self.scratch / "rest", read=self.read)
        manifest = self.contents.manifest
        return Published(manifest.path, manifest.text.encode(), self.contents.sizes)


def plan_copy(
    config: CopyConfig, output: Storage, tell: OnStatus = lambda words: None
) -> MoveBuild:
    """What a copy has to do; nothing is written.

    Raises:
        UsageError: the output is the original, or holds something else.
        DatasetError: the original is not published, or its metadata are damaged.
    """
    original = open_storage(config.dataset)
    if str(original) == str(output):
        raise UsageError(f"{output} is the original itself. Copy it to another place.")
    return _compare(config, "copy", contents_of(original), output)


def plan_merge(
    config: MergeConfig, output: Storage, tell: OnStatus = lambda words: None
) -> MoveBuild:
    """What a merge has to do; nothing is written.

    Raises:
        UsageError: the datasets do not go together, or the output holds something else.
        DatasetError: one is no dataset, or its metadata are damaged.
    """
    datasets = [open_storage(url) for url in config.datasets]
    if str(output) in map(str, datasets):
        raise UsageError(f"{output} is one of the datasets. Use another --output.")
    hashes = tuple(map(manifest_hash, datasets))
    contents = _merged(tuple(map(str, datasets)), hashes, repeats=config.repeats)
    if {*map(_kind, datasets)} == {_kind(output)}:  # to name a file takes less than a task run
        contents = replace(contents, parts=tuple(_together(contents.parts)))
    return _compare(config, "merge", contents, output)


@lru_cache(1)  # a run plans before and after it takes the output
def _merged(urls: tuple[str, ...], _: tuple[str | None, ...], *, repeats: bool) -> Contents:
    return merged([open_storage(url) for url in urls], repeats=repeats)


def _together(groups: tuple[FileGroup, ...]) -> list[FileGroup]:
    """The same files in fewer groups."""
    joined: list[FileGroup] = []
    for group in groups:
        if not joined or len(joined[-1].moves) >= _LINKED_AT_ONCE:
            joined.append(FileGroup())
        joined[-1] = FileGroup(
            moves=joined[-1].moves + group.moves,
            texts=joined[-1].texts + group.texts,
            documents=joined[-1].documents + group.documents,
            tokens=joined[-1].tokens + group.tokens,
        )
    return joined


def _compare(
    config: CopyConfig | MergeConfig, phase: str, contents: Contents, output: Storage
) -> MoveBuild:
    build = MoveBuild(
        config=config,
        phase=phase,
        contents=contents,
        parts=tuple(_part(number, group) for number, group in enumerate(contents.parts)),
        scratch=scratch_folder(config, output),
        read=phase == "copy",
    )
    return compare(build, output)


def _kind(storage: Storage) -> str:
    return str(storage).partition("://")[0] if storage.remote else "disk"


def _part(number: int, group: FileGroup) -> Part:
    name = group.texts[-1].path if group.texts else ""
    if group.moves:
        name = f"{group.moves[0].root}/{group.moves[0].path}"
    size = sum(move.size for move in group.moves)
    return Part.whole(number, SourceFile(url=name, size=size))
