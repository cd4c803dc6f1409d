"""The life of an output: it is compared with its build, started or resumed, and published."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel

from streaming_ext.base.errors import ConfigMismatchError, TransientStorageError, UsageError
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import (
    BUILD,
    EXPORT,
    MANIFEST,
    PARTS_FOLDER,
    RUNS_FOLDER,
    SHUFFLE_FOLDER,
)
from streaming_ext.format.schema import content_hash, differing
from streaming_ext.store import Storage
from streaming_ext.store.scratch import remove_scratch, take_scratch
from tasks.core.engine.build import Build, OnStatus, Recorded
from tasks.core.engine.output_files import (
    all_sizes,
    file_sizes,
    hash_of,
    lost_files,
    named,
    require_outside,
    wrong_bytes,
)
from tasks.core.reading.dataset_files import remove_spills

_log = logging.getLogger(__name__)
B = TypeVar("B", bound=Build)


def state_of(output: Storage) -> list[object]:
    """Return a value that changes when another run writes to the output."""
    folders = [output.list(folder) for folder in (PARTS_FOLDER, SHUFFLE_FOLDER, "export")]
    return [*folders, *(hash_of(output, path) for path in (MANIFEST, EXPORT, BUILD))]


def compare(build: B, output: Storage) -> B:
    """Compare a build with its output, and return it with what is left to do; nothing is written.

    Parts whose files are gone or cut short are left to do, even if the output is published; their
    bytes will be the same.

    Raises:
        ConfigMismatchError: the output holds, or was started as, something else.
        UsageError: it holds files that no run made, or lies inside a dataset.
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
    return replace(build, published=complete)


def _with_done(build: B, output: Storage, sizes: Mapping[str, int], *, published: bool) -> B:
    """Return the build with the parts that are left to do: not recorded, or with lost files."""
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


def begin(build: B, output: Storage, on_status: OnStatus) -> B:
    """Mark the output as started, and remove leftovers of killed runs.

    The caller holds the output (`Storage.exclusive`).

    Returns:
        The build; its `todo` includes parts that were damaged since they were done.

    Raises:
        StorageError: the output cannot be read or written.
        ScratchError: scratch is not writable.
    """
    output.remove_incoming()
    build = without_damaged(build, on_status)
    is_resumed = hash_of(output, BUILD) is not None
    try:
        take_scratch(build.scratch, keep=[build.kept] if is_resumed else [])
        build.prepare(output)
        output.put(BUILD, mark_of(build))  # last: from now on, leftovers count as this run's
    except BaseException:
        release_scratch(build, resumable=True)
        raise
    return build


def finish(build: Build, output: Storage, on_status: OnStatus) -> Build | None:
    """Turn the parts into one output, the manifest last; return the next phase if there is one.

    Raises:
        DatasetError: a part has no record.
        TransientStorageError: the output lost a file that was put there; a retry puts it again.
        StorageError: the output is full, gone or not writable, or another run took it over.
    """
    output.require_held()
    result = build.finish(output, on_status)
    if isinstance(result, Build):
        following = _with_done(result, output, all_sizes(output), published=False)
        following = without_damaged(following, on_status)
        following.prepare(output)
        return following
    on_status("checking that nothing is missing")
    if lost := lost_files(all_sizes(output), result.files):
        raise _lost(output, lost)
    on_status("putting the manifest")
    output.require_held()  # the lines above may have taken hours
    output.put(result.manifest, result.data)
    if hash_of(output, result.manifest) != content_hash(result.data):
        raise _lost(output, [result.manifest])
    for path, data in result.after.items():
        output.put(path, data)
    _end(output, on_status)
    return None


def _end(output: Storage, on_status: OnStatus) -> None:
    """Remove the files from a published output that only the run needed."""
    on_status("removing what only the run needed")
    remove_spills(output)
    output.remove(BUILD)


def end_killed_run(build: Build, output: Storage, on_status: OnStatus) -> None:
    """Clean up after a run that was killed when it had put the manifest.

    The caller holds the output.
    """
    if is_started(build, output):
        output.remove_incoming()
        _end(output, on_status)
    remove_scratch(build.scratch)


def _has_work(build: Build) -> bool:
    """Return whether scratch holds files that a run can use again."""
    return any(build.kept.glob("*"))


def release_scratch(build: Build, *, resumable: bool = False) -> None:
    """Remove the folder for work in progress.

    Args:
        build: the build that the folder belongs to.
        resumable: True to keep the folder if it holds files that the next run can use again.
    """
    if not (resumable and _has_work(build)):
        remove_scratch(build.scratch)


def without_damaged(build: B, on_status: OnStatus) -> B:
    """Return the build with the damaged parts to be made again.

    All bytes of finished parts are read. The caller holds the output.

    Raises:
        StorageError: a file cannot be read.
    """
    if build.done is None or not build.done.hashed:
        return build
    left = {*build.todo}
    taken = {part: held for part, held in build.done.parts.items() if held and part not in left}
    if taken:
        on_status("checking what earlier runs finished")
    damaged = damaged_parts(replace(build.done, parts=taken))
    return build.with_again(damaged) if damaged else build


def damaged_parts(recorded: Recorded) -> frozenset[int]:
    """Return the parts whose bytes differ from their records; log the first difference of each.

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


def mark_of(build: Build) -> bytes:
    """Return the content of the file that identifies the build until the output is published."""
    identity = build.identity.model_dump(mode="json")
    return (json.dumps({"kind": build.kind, "identity": identity}) + "\n").encode()


def is_started(build: Build, output: Storage) -> bool:
    """Return whether this build was started on the output, and is not finished."""
    try:
        return output.read(BUILD) == mark_of(build)
    except FileNotFoundError:
        return False


def require_ours(
    build: Build, output: Storage, sizes: Mapping[str, int], *, is_recorded: bool
) -> None:
    """Refuse an output that holds anything but the files of runs of this build.

    Raises:
        ConfigMismatchError: it was started as something else.
        UsageError: it holds files that no run made.
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
        require_same(mark["identity"], build.identity, where=str(output))
    elif held and not is_recorded:
        raise UsageError(
            f"{output} holds other files ({named(held)}). Use an empty folder as --output."
        )


def require_same(had: Mapping[str, object], wanted: BaseModel, *, where: str) -> None:
    """Refuse to resume an output that was started as something else.

    The name of the tokenizer is not compared: its fingerprint identifies it.

    Args:
        had: the identity of what was started, as JSON.
        wanted: the identity of this run's output.
        where: the output, for messages.

    Raises:
        ConfigMismatchError: a field differs; the message names every such field.
    """
    differences = [
        f"{name}: the output has {has!r}, this run asks for {wants!r}"
        for name, has, wants in differing(had, wanted.model_dump(mode="json"))
        if name != "tokenizer.name"
    ]
    if differences:
        raise ConfigMismatchError(
            f"{where} was started or made as something else; nothing was changed there:\n  "
            + "\n  ".join(differences)
            + "\nUse the old values, or another --output. If the dataset was extended since, "
            "use an empty folder."
        )


def _lost(output: Storage, paths: list[str]) -> TransientStorageError:
    return TransientStorageError(
        f"{output} confirmed {named(paths)}, but does not hold what was written, so nothing is "
        "published. Run the same command again."
    )
