"""What is asked of `shardmill trace`, as its options say it: steps, documents, where it goes."""

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from streaming_ext.dataset.layout import Split
from streaming_ext.errors import UsageError, one_line
from streaming_ext.storage.local_paths import local_path
from tasks.core.storage import open_storage

if TYPE_CHECKING:
    from streaming_ext.dataset.places import Place
    from streaming_ext.streams import TokenStream

_MOST_DOCUMENTS = 100  # that words are looked for in; more are none that somebody would read


def steps_of(text: str) -> range:
    """The steps that `A` or `A:B` stands for.

    Raises:
        UsageError: it is neither, or none.
    """
    first, colon, stop = text.partition(":")
    if not (first.isdecimal() and (stop.isdecimal() or not colon)):
        raise UsageError(f"`--step` is a number, or A:B for all from A to before B; got {text!r}.")
    steps = range(int(first), int(stop) if colon else int(first) + 1)
    if not steps:
        raise UsageError(f"`--step {text}` holds no step: B must be above A.")
    return steps


def source_and_row(text: str) -> tuple[str, int]:
    """What `SOURCE:ROW` stands for.

    Raises:
        UsageError: it is something else.
    """
    source, colon, row = text.rpartition(":")
    if not (source and colon and row.isdecimal()):
        raise UsageError(f"`--document` is SOURCE:ROW, a file and a row in it; got {text!r}.")
    return source, int(row)


def limits_of(limits: list[float] | None) -> list[float | None] | None:
    """Passes over each dataset, None for any number."""
    return None if limits is None else [None if each == math.inf else each for each in limits]


def documents_found(
    streams: "Sequence[TokenStream]", split: Split, text: Path | None, grep: str | None
) -> list[tuple[str, int]]:
    """Source and row of the documents that are a text, or hold some words.

    Raises:
        UsageError: none is or does, or more than one would read of.
    """
    from tasks.core.check.search import documents_that_are, documents_that_hold

    if text is None and grep is None:
        return []
    asked = f"--text {text}" if grep is None else f"--grep {grep!r}"
    places: list[Place] = []
    for stream in streams:
        storage, generation = open_storage(stream.place), stream.generation
        if text is not None:
            whole = _read_text(text)
            places += documents_that_are(storage, split, whole, generation=generation)
            if whole.endswith("\n"):  # as editors have it
                cut = whole[:-1]
                places += documents_that_are(storage, split, cut, generation=generation)
        elif grep is not None:
            holding = documents_that_hold(storage, split, grep, generation=generation)
            places += islice(holding, _MOST_DOCUMENTS + 1)
    if not places:
        raise UsageError(f"`{asked}`: no document of split {split!r}.")
    if len(places) > _MOST_DOCUMENTS:
        raise UsageError(f"`{asked}`: more than {_MOST_DOCUMENTS} documents. Give more words.")
    return list(dict.fromkeys((place.source, place.row) for place in places))


def _read_text(path: Path) -> str:
    """A file of text, whole."""
    try:
        return local_path(path).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"`--text {path}` cannot be read: {one_line(error)}.") from error


def require_file(output: str | None, *, document: bool, plan: bool) -> None:
    """Refuse a file that nothing could be written to, or of another kind.

    Args:
        output: its name; None where there is none.
        document: a document is asked for.
        plan: the plan is.

    Raises:
        UsageError: it is one.
    """
    if output is None:
        return
    if document:
        raise UsageError("`--output` goes with `--step` and `--plan`.")
    if plan and not output.endswith(".svg"):
        raise UsageError(f"`--output {output}`: a plan is drawn as SVG. Name the file .svg.")
    if not Path(output).absolute().parent.is_dir():
        raise UsageError(f"`--output {output}`: there is no such folder. Make it first.")
    if Path(output).is_dir():
        raise UsageError(f"`--output {output}` is a folder. Name a file in it.")
