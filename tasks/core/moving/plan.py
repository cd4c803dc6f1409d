"""What a copy or a merge has to do: files that go together, and which of them are there."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from streaming_ext.dataset.hashing import content_hash
from streaming_ext.dataset.layout import EXPORT, MANIFEST
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.dataset.schema import from_json
from streaming_ext.errors import ConfigMismatchError, StorageError, UsageError
from streaming_ext.text.parts.part import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.exports.plan import all_sizes
from tasks.core.moving.begun import BEGUN, begin, is_begun, require_not_older
from tasks.core.moving.config import CopyConfig, MergeConfig
from tasks.core.moving.contents import (
    Contents,
    as_published,
    contents_of,
    in_larger_units,
    manifest_hash,
)
from tasks.core.moving.job import Text, Unit
from tasks.core.moving.merging import merged
from tasks.core.moving.move import MoveJob, move_unit
from tasks.core.outputs.taken_over import Finished, Stretch, without_damaged
from tasks.core.outputs.whole import put_manifest
from tasks.core.planning.plan import scratch_folder
from tasks.core.planning.run_plan import StageName
from tasks.core.planning.surroundings import require_outside
from tasks.core.storage import Storage, open_storage

_ADOPTED_AT_ONCE = 256  # files: hard links take a second, copies that a store makes some more


@dataclass(frozen=True, kw_only=True, slots=True)
class MovePlan:
    """All that a copy or a merge needs to know before its first job.

    Attributes:
        contents: what the output is to hold.
        parts: one a unit of it, with the bytes of its files.
        todo: units of which a file is not there yet.
        published: the output holds all of it.
        read: see `MoveJob`.
        damaged: units that lay there damaged: each byte of them is read, whatever `read` says.
        adopted: all of it lies where the output does, on disks or in stores of one kind.
    """

    config: CopyConfig | MergeConfig
    stage: StageName
    contents: Contents
    parts: tuple[Part, ...]
    todo: tuple[int, ...]
    published: bool
    scratch: Path
    read: bool
    adopted: bool = False
    damaged: frozenset[int] = frozenset()

    def part(self, number: int) -> Part:
        """What stands for a unit where people look at the run."""
        return self.parts[number]

    def job(self, number: int, output: Storage) -> MoveJob:
        """What a worker is to do for a unit."""
        return MoveJob(
            unit=self.contents.units[number],
            output=str(output),
            scratch=str(self.scratch / f"{number:05}"),
            read=self.read or number in self.damaged,
        )

    def finished(self, output: Storage) -> Finished:
        """What lies on the output of the units that are not to be done."""
        done = set(range(len(self.parts))) - set(self.todo)
        return Finished(
            output, {number: _stretches(self.contents.units[number]) for number in done}
        )

    def with_again(self, parts: frozenset[int]) -> "MovePlan":
        """The same, with some units to be put there again."""
        return replace(self, todo=tuple(sorted({*self.todo, *parts})), damaged=parts)


def _stretches(unit: Unit) -> Iterator[Stretch]:
    """All bytes of a unit, as they lie on the output."""
    for move in unit.moves:
        start = 0
        for block in move.blocks:
            yield Stretch(move.to, start, block.size, block.xxh128)
            start += block.size
    yield from (Stretch.of(text.file) for text in unit.texts)


def plan_copy(config: CopyConfig, output: Storage) -> MovePlan:
    """What a copy has to do; nothing is written.

    Raises:
        UsageError: the output is the original, or holds something else.
        DatasetError: nothing is published there, or its metadata are damaged.
    """
    original = open_storage(config.dataset)
    if str(original) == str(output):
        raise UsageError(f"{output} is the original itself. Copy it to another place.")
    return _plan(config, "copy", contents_of(original), output, read=True)


def plan_merge(config: MergeConfig, output: Storage) -> MovePlan:
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
    return replace(_plan(config, "merge", contents, output, read=False), adopted=adopted)


@lru_cache(1)  # a run looks before it takes the output, and behind that
def _merged(urls: tuple[str, ...], hashes: tuple[str | None, ...], *, repeats: bool) -> Contents:
    return merged([open_storage(url) for url in urls], repeats=repeats)


def _kind(storage: Storage) -> str:
    return str(storage).partition("://")[0] if storage.remote else "disk"


def _plan(
    config: CopyConfig | MergeConfig,
    stage: StageName,
    contents: Contents,
    output: Storage,
    *,
    read: bool,
) -> MovePlan:
    require_outside(output)
    plan = MovePlan(
        config=config,
        stage=stage,
        contents=contents,
        parts=tuple(_part(number, unit) for number, unit in enumerate(contents.units)),
        todo=tuple(range(len(contents.units))),
        published=False,
        scratch=scratch_folder(config, output),
        read=read,
    )
    _require_room_for_files(plan, output)
    return _without_what_is_done(plan, output)


def _part(number: int, unit: Unit) -> Part:
    move = unit.moves[0] if unit.moves else None
    name = unit.texts[-1].path if move is None else f"{move.root}/{move.path}"
    size = sum(move.size for move in unit.moves)
    return Part.whole(number, SourceFile(url=name, size=size))


def _require_room_for_files(plan: MovePlan, output: Storage) -> None:
    """Refuse files that the output could not be given.

    Raises:
        UsageError: one is too large.
    """
    if (most := output.largest_file) is None:
        return
    for path, size in plan.contents.sizes.items():
        if size > most:
            raise UsageError(
                f"{path} has {size:,} bytes; {output} is given files of at most {most:,}. Use a "
                "folder or s3:// instead."
            )


def _without_what_is_done(plan: MovePlan, output: Storage) -> MovePlan:
    sizes = all_sizes(output)
    wanted = plan.contents.manifest
    same = as_published(output, wanted)
    original = _dataset_of(wanted) if plan.stage == "copy" else None
    if same is False:
        require_not_older(output, content_hash(output.read(wanted.path)), original)
    other = EXPORT if wanted.path == MANIFEST else MANIFEST
    if same is False or other in sizes:
        raise ConfigMismatchError(
            f"{output} holds another dataset or export. Nothing was changed there. Use an empty "
            "place."
        )
    if same:  # what it lost is put there again
        todo = _missing(plan, sizes)
        whole = not todo and not _lost(plan.contents.rest, sizes)
        return replace(plan, todo=todo, published=whole)
    if is_begun(output, sizes, _mark(plan), original=original):
        return replace(plan, todo=_missing(plan, sizes))
    return plan


def _dataset_of(manifest: Text) -> Manifest | None:
    """What a manifest says, where it is that of a dataset."""
    if manifest.path != MANIFEST:
        return None
    return from_json(Manifest, manifest.text.encode(), where=MANIFEST)


def _mark(plan: MovePlan) -> bytes:
    """What the output says of itself until it is whole: which manifest it is going to have."""
    file = plan.contents.manifest.file
    return f"{plan.stage} {file.path} {file.size} {file.xxh128}\n".encode()


def _missing(plan: MovePlan, sizes: Mapping[str, int]) -> tuple[int, ...]:
    units = plan.contents.units
    return tuple(number for number, unit in enumerate(units) if _lost(unit, sizes))


def _lost(unit: Unit, sizes: Mapping[str, int]) -> list[str]:
    return [path for path, size in unit.sizes.items() if sizes.get(path) != size]


def prepare(
    plan: MovePlan, output: Storage, tell: Callable[[str], None] = lambda words: None
) -> MovePlan:
    """Remove what killed runs left on its way, and say on the output what is being put there.

    The caller holds the output.

    Args:
        plan: of what to do.
        output: takes it.
        tell: called with what is waited for.

    Returns:
        The plan, with what was damaged since it was finished to be put there again.
    """
    plan = without_damaged(plan, output, tell)
    begin(plan, output, _mark(plan))
    return plan


def publish(
    plan: MovePlan, output: Storage, *, tell: Callable[[str], None] = lambda words: None
) -> None:
    """Put in place what belongs to no part, look whether all is there, and put the manifest.

    Raises:
        StorageError: the output is full, gone or not writable, or lost what was put there.
    """
    tell("putting the indexes")
    move_unit(plan.contents.rest, output, plan.scratch / "rest", read=plan.read)
    tell("looking whether all of it is there")
    sizes = all_sizes(output)
    if lost := [path for path, size in plan.contents.sizes.items() if sizes.get(path) != size]:
        raise StorageError(
            f"{output} said that it kept {lost[0]}, and does not hold it as written. Nothing is "
            "published. Run the same command again."
        )
    tell("putting the manifest")
    manifest = plan.contents.manifest
    put_manifest(output, manifest.path, manifest.text.encode())
    output.remove(BEGUN)
