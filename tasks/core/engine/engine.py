"""The engine: compares a build with its output, resumes it, and publishes what all parts made."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import xxhash

from streaming_ext.base.errors import (
    ConfigMismatchError,
    DatasetError,
    TransientStorageError,
    UsageError,
)
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import (
    BUILD,
    EXPORT,
    MANIFEST,
    PARTS_FOLDER,
    RUNS_FOLDER,
    SHUFFLE_FOLDER,
)
from streaming_ext.format.schema import HASH, content_hash
from streaming_ext.store import Storage
from streaming_ext.store.scratch import remove_scratch, take_scratch
from tasks.core.engine.build import Build, OnStatus, Recorded, Stretch, file_sizes
from tasks.core.engine.outside import require_outside

_BLOCK = 8 * 2**20  # bytes that are read at once
_SHOWN = 3  # files in a message
_log = logging.getLogger(__name__)
B = TypeVar("B", bound=Build)
T = TypeVar("T")


def compare(build: B, output: Storage) -> B:
    """A build with what is left to do; nothing is written.

    Parts whose files are gone or cut short are made again, also of a published output: their bytes
    are the same.

    Raises:
        ConfigMismatchError: the output holds something else, or was started as something else.
        UsageError: it holds files of others, or lies inside a dataset.
    """
    require_outside(output)
    published = build.is_published(output)
    sizes = all_sizes(output)
    build = _with_done(build, output, sizes, published=published)
    if not published:
        require_ours(build, output, sizes, is_recorded=len(build.todo) < len(build.parts))
    complete = published and not build.todo
    if complete and (lost := lost_files(sizes, build.beside(output))):
        _log.warning("%s lost %s; it is published again.", output, ", ".join(lost))
        complete = False
    recorded = build.done.records if build.done else {}
    records = {part: record for part, record in recorded.items() if part not in build.todo}
    build = replace(build.resumed(records), published=complete)
    if not complete:
        build.require_room(output)
    return build


def _with_done(build: B, output: Storage, sizes: Mapping[str, int], *, published: bool) -> B:
    """A build with what is left to do: the parts that are not recorded, or lost a file."""
    recorded = build.recorded(output, published=published)
    if recorded.storage is not output:
        sizes = all_sizes(recorded.storage)
    held = {
        part
        for part, stretches in recorded.parts.items()
        if not lost_files(sizes, file_sizes(stretches), may_be_longer=recorded.shared)
    }
    todo = tuple(part for part in range(len(build.parts)) if part not in held)
    return replace(build, todo=todo, done=recorded)


def state_of(output: Storage) -> object:
    """A value that changes when another run writes to the output."""
    records = [output.list(folder) for folder in (PARTS_FOLDER, SHUFFLE_FOLDER, "export")]
    return records, [hash_of(output, path) for path in (MANIFEST, EXPORT, BUILD)]


def begin(build: B, output: Storage, on_status: OnStatus) -> B:
    """Mark the output as started, and remove what killed runs left.

    The caller holds the output (`Storage.exclusive`).

    Returns:
        The build; parts that were damaged since they were done are to be made again.

    Raises:
        StorageError: the output cannot be read or written.
        ScratchError: scratch is not writable.
    """
    output.remove_incoming()
    build = without_damaged(build, on_status)
    is_resumed = hash_of(output, BUILD) is not None
    try:
        take_scratch(build.scratch, keep=[build.kept] if is_resumed else [])
        build.remove_leftovers(output)
        output.put(BUILD, mark_of(build))
        build.prepare()
    except BaseException:
        drop(build, resumable=True)
        raise
    return build


def finish(build: Build, output: Storage, on_status: OnStatus) -> Build | None:
    """Make the parts one output, the manifest last; returns the next phase if there is one.

    Raises:
        DatasetError: a part has no record.
        TransientStorageError: the output lost what was put there; trying again puts it again.
        StorageError: the output is full, gone or not writable, or another run took it over.
    """
    output.require_held()
    result = build.finish(output, on_status)
    if isinstance(result, Build):
        following = _with_done(result, output, all_sizes(output), published=False)
        following = without_damaged(following, on_status)
        following.remove_leftovers(output)
        return following
    on_status("checking that nothing is missing")
    if lost := lost_files(all_sizes(output), result.files):
        raise _lost(output, lost)
    on_status("putting the manifest")
    output.require_held()  # what came before may have taken hours
    output.put(result.manifest, result.data)
    if hash_of(output, result.manifest) != content_hash(result.data):
        raise _lost(output, [result.manifest])
    for path, data in result.after.items():
        output.put(path, data)
    build.published_to(output, on_status)
    output.remove(BUILD)
    return None


def settle(build: Build, output: Storage, on_status: OnStatus) -> None:
    """Finish what a run left that was killed after it had put the manifest.

    The caller holds the output.
    """
    if is_started(build, output):
        output.remove_incoming()
        build.published_to(output, on_status)
        output.remove(BUILD)
    remove_scratch(build.scratch)


def _has_work(build: Build) -> bool:
    """Whether scratch holds what a run can resume."""
    return any(build.kept.glob("*"))


def drop(build: Build, *, resumable: bool = False) -> None:
    """Remove the folder for work in progress.

    Args:
        build: names it.
        resumable: keep it if it holds what the next run can use.
    """
    if not (resumable and _has_work(build)):
        remove_scratch(build.scratch)


def all_sizes(output: Storage) -> dict[str, int]:
    """Every file of an output: a listing leaves out folders at the root that begin with a dot."""
    return {**output.list(), **output.list(".nv-meta")}


def lost_files(
    sizes: Mapping[str, int], wanted: Mapping[str, int], *, may_be_longer: bool = False
) -> list[str]:
    """The files that are missing, or not as long as recorded.

    Args:
        sizes: path -> size in bytes, as `Storage.list` gives them.
        wanted: the same of the recorded files.
        may_be_longer: whether files may hold more than is recorded.
    """
    return [
        path
        for path, size in wanted.items()
        if (held := sizes.get(path, -1)) != size and not (may_be_longer and held > size)
    ]


def all_recorded(records: Mapping[int, T], parts: Sequence[int], output: Storage) -> list[T]:
    """The records of some parts, in order.

    Args:
        records: that were read back from the output.
        parts: that must have one.
        output: that they are of.

    Raises:
        DatasetError: one is gone.
    """
    if missing := [part for part in parts if part not in records]:
        raise DatasetError(
            f"{output}: the records of parts {missing[:5]} are gone; something removed them "
            "during the run. Run the same command again."
        )
    return [records[part] for part in parts]


def without_damaged(build: B, on_status: OnStatus) -> B:
    """A build that takes over what is as it was written; damaged parts are made again.

    What was done is read from the beginning to the end. The caller holds the output.

    Raises:
        StorageError: a file cannot be read.
    """
    if build.done is None or not build.done.hashed:
        return build
    left = {*build.todo}
    taken = {part: held for part, held in build.done.parts.items() if held and part not in left}
    if taken:
        on_status("checking what earlier runs finished")
    damaged = damaged_parts(build.done._replace(parts=taken))
    return build.with_again(damaged) if damaged else build


def damaged_parts(recorded: Recorded) -> frozenset[int]:
    """The parts that hold a byte other than the recorded one; logs the first of each.

    Raises:
        StorageError: a file cannot be read.
    """
    storage, parts = recorded.storage, recorded.parts

    def problem(part: int) -> str:
        for stretch in parts[part]:
            if words := wrong_bytes(storage, stretch):
                return f"{stretch.path}: {words}"
        return ""

    found = zip(parts, mapped_ahead(problem, parts), strict=True)
    damaged = {part: words for part, words in found if words}
    for words in damaged.values():
        _log.warning("%s/%s. It is made again.", storage, words)
    return frozenset(damaged)


def wrong_bytes(
    storage: Storage, stretch: Stretch, seen: Callable[[bytes], object] = lambda data: None
) -> str:
    """What is wrong with some bytes; "" if they are as recorded.

    Args:
        storage: has them.
        stretch: which ones, and their hash.
        seen: called with all of them, in order.

    Raises:
        StorageError: they cannot be read, or the file is shorter.
    """
    path, first, size, wanted = stretch
    digest, end = xxhash.xxh3_128(), first + size
    try:
        for start in range(first, end, _BLOCK):
            data = storage.read_range(path, start, min(start + _BLOCK, end))
            digest.update(data)
            seen(data)
    except FileNotFoundError:
        return "missing"
    if (found := digest.hexdigest()) == wanted:
        return ""
    return f"bytes {first} to {end} have the {HASH} {found}, expected {wanted}"


def mark_of(build: Build) -> bytes:
    """What the output says of itself until it is published."""
    identity = build.identity.model_dump(mode="json")
    return (json.dumps({"kind": build.kind, "identity": identity}) + "\n").encode()


def require_ours(
    build: Build, output: Storage, sizes: Mapping[str, int], *, is_recorded: bool
) -> None:
    """Refuse an output that holds anything but what runs of this build left there.

    Raises:
        ConfigMismatchError: it was started as something else.
        UsageError: it holds files of others.
    """
    other = EXPORT if build.manifest_path == MANIFEST else MANIFEST
    if other in sizes:
        raise ConfigMismatchError(
            f"{output} holds another dataset or export. Nothing was changed there. Use an empty "
            "folder as --output."
        )
    held = [path for path in sizes if path.split("/", 1)[0] != RUNS_FOLDER]
    if not held and not _has_work(build):
        return
    if BUILD in sizes:
        mark = json.loads(output.read(BUILD))
        if mark["kind"] != build.kind:
            raise ConfigMismatchError(
                f"{output} was started by `shardmill {mark['kind']}`. Finish that, or use another "
                "--output."
            )
        build.require_same(mark["identity"], where=str(output))
    elif held and not is_recorded:
        raise UsageError(
            f"{output} holds other files ({named(held)}). Use an empty folder as --output."
        )


def is_started(build: Build, output: Storage) -> bool:
    """Whether this very build was started on the output, and is not finished."""
    try:
        return output.read(BUILD) == mark_of(build)
    except FileNotFoundError:
        return False


def named(paths: list[str]) -> str:
    """The first of some paths, and how many more there are."""
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more files" if more > 0 else "")


def _lost(output: Storage, paths: list[str]) -> TransientStorageError:
    return TransientStorageError(
        f"{output} confirmed {named(paths)}, but does not hold what was written, so nothing is "
        "published. Run the same command again."
    )


def hash_of(output: Storage, path: str) -> str | None:
    """The content hash of a file; None if there is none."""
    try:
        return content_hash(output.read(path))
    except FileNotFoundError:
        return None
