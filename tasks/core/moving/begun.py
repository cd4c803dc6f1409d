"""What an output says of itself until it is whole, and the scratch of what is being put there."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from streaming_ext.dataset.layout import RUNS_FOLDER
from streaming_ext.dataset.manifest import Manifest
from streaming_ext.errors import ConfigMismatchError, UsageError
from tasks.core.storage import Storage
from tasks.core.storage.scratch import take_scratch

BEGUN = f"{RUNS_FOLDER}/.begun"  # what is being put there; gone when all of it is


class HasScratch(Protocol):
    """A plan, as far as its folder for work in progress goes."""

    @property
    def scratch(self) -> Path: ...


def is_begun(
    output: Storage, paths: Iterable[str], mark: bytes, *, original: Manifest | None = None
) -> bool:
    """Whether this very work was begun on an output where nothing is published.

    Args:
        output: is looked at.
        paths: of all files there.
        mark: what the output says of this work until it is whole.
        original: the dataset that it is made of, where it is one.

    Raises:
        ConfigMismatchError: something else was begun there, or of an older generation.
        UsageError: it holds files of others.
    """
    paths = list(paths)
    if BEGUN in paths:
        if (begun := output.read(BEGUN)) != mark:
            require_not_older(output, begun.decode(errors="replace"), original)
            raise ConfigMismatchError(
                f"{output} holds something that was begun of something else. Run that again, or "
                "use an empty place."
            )
        return True
    require_no_foreign(output, paths)
    return False


def require_not_older(output: Storage, told: str, original: Manifest | None) -> None:
    """Say so where an output is of a dataset as it was before it was extended.

    Args:
        output: holds something else than what is to be made there.
        told: what it is of, with the hash of a manifest.
        original: the dataset as it is now.

    Raises:
        ConfigMismatchError: it is.
    """
    if original is None or not any(
        generation.manifest.xxh128 in told for generation in original.generations
    ):
        return
    raise ConfigMismatchError(
        f"{output} is of this dataset as it was before it was extended, and begins anew: nothing "
        "was changed there. Remove it and run the same command again, or use an empty place."
    )


def require_no_foreign(output: Storage, paths: Iterable[str]) -> None:
    """Refuse an output that holds files, but for reports of runs.

    Raises:
        UsageError: naming the first of them.
    """
    foreign = [path for path in paths if path.split("/", 1)[0] != RUNS_FOLDER]
    if foreign:
        raise UsageError(
            f"{output} holds other files ({', '.join(foreign[:3])}"
            f"{', ...' if len(foreign) > 3 else ''}). Use an empty folder as --output."
        )


def begin(plan: HasScratch, output: Storage, mark: bytes) -> None:
    """Remove what killed runs left on its way, and say on the output what is being put there.

    The caller holds the output.
    """
    output.remove_incoming()
    take_scratch(plan.scratch)
    output.put(BEGUN, mark)
