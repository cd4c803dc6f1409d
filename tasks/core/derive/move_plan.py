"""What a copy or a merge has to do: files that go together, and which of them are there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

from streaming_ext.base.errors import UsageError
from streaming_ext.format.schema import FileRecord
from streaming_ext.store import Storage, open_storage
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.build.build import Build, Recorded, Stretch, Tell, Whole, Words
from tasks.core.build.engine import compare, is_begun
from tasks.core.derive.contents import (
    Contents,
    contents_of,
    in_larger_units,
    manifest_hash,
)
from tasks.core.derive.export_plan import require_largest_file
from tasks.core.derive.merging import merged
from tasks.core.derive.move import MoveJob, Unit, move_unit
from tasks.core.derive.move_config import CopyConfig, MergeConfig
from tasks.core.shard.plan import scratch_folder

_ADOPTED_AT_ONCE = 256  # files: hard links take a second, copies that a store makes some more


@dataclass(frozen=True, kw_only=True)
class MoveBuild(Build):
    """What is published, put elsewhere: a copy, or several datasets as one.

    Attributes:
        contents: what the output is to hold.
        parts: one a unit of it, with the bytes of its files.
        read: see `MoveJob`.
        damaged: units that lay there damaged: each byte of them is read, whatever `read` says.
        adopted: all of it lies where the output does, on disks or in stores of one kind.
    """

    config: CopyConfig | MergeConfig
    contents: Contents
    read: bool
    adopted: bool = False
    damaged: frozenset[int] = frozenset()

    # Some units have one large file, whose put nobody else should wait for.
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
        """What a worker is to do for a unit."""
        return MoveJob(
            unit=self.contents.units[number],
            output=str(output),
            scratch=str(self.scratch / f"{number:05}"),
            read=self.read or number in self.damaged,
        )

    def is_published(self, output: Storage) -> bool:
        """Whether the output has the same manifest."""
        try:
            held = FileRecord.of(self.manifest_path, output.read(self.manifest_path))
        except FileNotFoundError:
            return False
        self.require_same(held.model_dump(mode="json"), where=str(output))
        return True

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        """All units: what lies there of them is compared with their sizes."""
        if not (published or is_begun(self, output)):
            return Recorded(output, {})
        units = enumerate(self.contents.units)
        return Recorded(output, {number: [*_stretches(unit)] for number, unit in units})

    def beside(self, output: Storage) -> Mapping[str, int]:
        """What belongs to no part."""
        return self.contents.rest.sizes

    def with_again(self, parts: frozenset[int]) -> Self:
        """The same, with some units to be put there again."""
        return replace(super().with_again(parts), damaged=parts)

    def require_room(self, output: Storage) -> None:
        """Refuse files that the output could not be given."""
        require_largest_file(self.contents.sizes, output)

    def finish(self, output: Storage, tell: Tell) -> Whole:
        """Put in place what belongs to no part."""
        tell("putting the indexes")
        move_unit(self.contents.rest, output, self.scratch / "rest", read=self.read)
        manifest = self.contents.manifest
        return Whole(manifest.path, manifest.text.encode(), self.contents.sizes)


def _stretches(unit: Unit) -> Iterator[Stretch]:
    """All bytes of a unit, as they lie on the output."""
    for move in unit.moves:
        start = 0
        for block in move.blocks:
            yield Stretch(move.to, start, block.size, block.xxh128)
            start += block.size
    yield from (Stretch.of(text.file) for text in unit.texts)


def plan_copy(config: CopyConfig, output: Storage, tell: Tell = lambda words: None) -> MoveBuild:
    """What a copy has to do; nothing is written.

    Raises:
        UsageError: the output is the original, or holds something else.
        DatasetError: nothing is published there, or its metadata are damaged.
    """
    original = open_storage(config.dataset)
    if str(original) == str(output):
        raise UsageError(f"{output} is the original itself. Copy it to another place.")
    return compare(_build(config, "copy", contents_of(original), output), output)


def plan_merge(config: MergeConfig, output: Storage, tell: Tell = lambda words: None) -> MoveBuild:
    """What a merge has to do; nothing is written.

    Raises:
        UsageError: the datasets do not go together, or the output holds something else.
        DatasetError: there is no dataset to merge, or its metadata are damaged.
    """
    datasets = [open_storage(url) for url in config.datasets]
    if str(output) in map(str, datasets):
        raise UsageError(f"{output} is one of the datasets. Use another --output.")
    hashes = tuple(map(manifest_hash, datasets))
    contents = _merged(tuple(map(str, datasets)), hashes, repeats=config.repeats)
    adopted = {*map(_kind, datasets)} == {_kind(output)}
    if adopted:
        contents = in_larger_units(contents, files=_ADOPTED_AT_ONCE)
    return compare(replace(_build(config, "merge", contents, output), adopted=adopted), output)


def _build(
    config: CopyConfig | MergeConfig, phase: str, contents: Contents, output: Storage
) -> MoveBuild:
    return MoveBuild(
        config=config,
        phase=phase,
        contents=contents,
        parts=tuple(_part(number, unit) for number, unit in enumerate(contents.units)),
        scratch=scratch_folder(config, output),
        read=phase == "copy",
    )


@lru_cache(1)  # a run looks before it takes the output, and behind that
def _merged(urls: tuple[str, ...], hashes: tuple[str | None, ...], *, repeats: bool) -> Contents:
    return merged([open_storage(url) for url in urls], repeats=repeats)


def _kind(storage: Storage) -> str:
    return str(storage).partition("://")[0] if storage.remote else "disk"


def _part(number: int, unit: Unit) -> Part:
    move = unit.moves[0] if unit.moves else None
    name = unit.texts[-1].path if move is None else f"{move.root}/{move.path}"
    size = sum(move.size for move in unit.moves)
    return Part.whole(number, SourceFile(url=name, size=size))
