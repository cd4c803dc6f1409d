"""Comparing a copy with its original: every file, every byte by its hash."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from streaming_ext.base.errors import CorruptDatasetError, NotADatasetError, StorageError, command
from streaming_ext.format.layout import RUNS_FOLDER
from streaming_ext.store import Storage
from tasks.core.build.engine import all_sizes
from tasks.core.check.findings import Finding
from tasks.core.derive.contents import as_published, contents_of
from tasks.core.derive.move import Block, Move, Unit, check


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What a comparison found; `files` and `bytes` of the copy were read."""

    original: str
    copy: str
    findings: tuple[Finding, ...]
    files: int
    bytes: int
    seconds: float

    @property
    def sound(self) -> bool:
        """Whether the copy holds what the original says of itself."""
        return not self.findings


def compare_copy(
    original: Storage,
    copy: Storage,
    *,
    workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Compared:
    """Read every byte of a copy; what is wrong becomes a finding.

    Args:
        original: whose metadata say what there should be; its other files are not read.
        copy: is read.
        workers: threads.
        on_progress: called with the bytes that are done and all bytes.

    Raises:
        NotADatasetError: nothing is published at the one or the other place.
        CorruptDatasetError: metadata of the original are damaged.
    """
    began = time.monotonic()
    contents = contents_of(original)
    same = as_published(copy, contents.manifest)
    if same is None:
        raise NotADatasetError(
            f"{copy}: no {contents.manifest.path}, so this is no finished copy. Run "
            f"{command('copy', original, copy)} to finish it."
        )
    moves = [move for unit in (*contents.units, contents.rest) for move in _all_of(unit, copy)]
    sizes, wanted = all_sizes(copy), {contents.manifest.path, *(move.to for move in moves)}
    findings = [] if same else [Finding(file=contents.manifest.path, problem="is another one")]
    findings += [
        Finding(file=path, problem=f"{size} bytes that the original does not have")
        for path, size in sizes.items()
        if path not in wanted and path.split("/", 1)[0] != RUNS_FOLDER
    ]
    done, total = 0, sum(move.size for move in moves)
    with ThreadPoolExecutor(workers) as threads:
        found = threads.map(lambda move: _problem(copy, move), moves)
        for move, problem in zip(moves, found, strict=True):
            done += move.size
            on_progress(done, total)
            if problem:
                findings.append(Finding(file=move.to, problem=problem))
    return Compared(
        original=str(original),
        copy=str(copy),
        findings=tuple(sorted(set(findings))),
        files=len(moves),
        bytes=total,
        seconds=time.monotonic() - began,
    )


def _all_of(unit: Unit, copy: Storage) -> list[Move]:
    """Its files where they lie in the copy, the texts too."""
    root = str(copy)
    texts = [
        Move(
            root=root,
            path=text.path,
            to=text.path,
            blocks=(Block(size=text.file.size, xxh128=text.file.xxh128),),
        )
        for text in unit.texts
    ]
    moves = [move.model_copy(update={"root": root, "path": move.to}) for move in unit.moves]
    return [*moves, *texts]


def _problem(copy: Storage, move: Move) -> str:
    try:
        check(copy, move)
    except FileNotFoundError:
        return "missing"
    except (CorruptDatasetError, StorageError) as error:
        return str(error)
    return ""
