"""What a format of token sets is: how a file is opened. All else is the same for each of them."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import IdOptions, ReadOptions
from streaming_ext.text.documents.document_rows import (
    MAX_TEXT_BYTES,
    DocumentBatch,
    DocumentRows,
)
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.source_format import FileLook, SourceFormat
from streaming_ext.text.token_sets.files.ids_of_file import IdsOfFile
from streaming_ext.text.token_sets.files.set_file import SetFile, set_file, set_file_of
from streaming_ext.text.token_sets.id_documents import (
    ID_BYTES,
    as_texts,
    bounds,
    checked,
    cut,
    require_width,
)

if TYPE_CHECKING:
    from streaming_ext.text.sources.source_file import SourceFile

_LOOKED_AT = 2**12  # ids at the head of a file, or behind a piece of it
_MOST_AT_ONCE = 2**22
_Stretch = npt.NDArray[np.uint32]


class TokenSetFormat(SourceFormat):
    """Files of token ids, and what lies beside them where their set lies.

    A document belongs to the file, and to the piece of it, in which its first id lies.

    Attributes:
        is_cut: ids lie back to back in a file, so that it can be entered anywhere.
        ends_with_eot: an end-of-text id stands behind each document of a file, or before each.
        tells_type: files say which type their ids have.
    """

    is_cut: ClassVar[bool] = False
    ends_with_eot: ClassVar[bool] = False
    tells_type: ClassVar[bool] = True

    @abstractmethod
    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """Open a file.

        Raises:
            SourceError: it is damaged.
            UsageError: it holds no such ids.
        """

    def called(self, pattern: str) -> tuple[str, ...]:
        """The patterns that are tried, one after the other, where users of the format name one."""
        return (pattern,)

    def glance(self, file: SetFile, options: IdOptions) -> IdsOfFile | None:
        """Open a file as far as that costs little; raises what `open` does."""
        return self.open(file, options)

    def neighbour(self, file: SetFile, step: int, options: IdOptions) -> SetFile | None:
        """The file before (-1) or behind (+1) one, where documents go on from file to file."""
        return None

    def pin(self, file: SetFile, options: IdOptions) -> str:
        """What changes with other files that decide which documents a file has, where it lies.

        It is of versions, not of bytes; empty where there are no such files.
        """
        return ""

    def pinned(self, source: "SourceFile", options: IdOptions) -> "SourceFile":
        """A remote file as it was listed, with what pins the files that it is read with.

        Raises:
            UsageError: these are missing, or of something else.
            StorageError: a server refuses or does not answer.
        """
        from streaming_ext.text.sources.source_bytes import SourceFileBytes

        return replace(source, beside=self.pin(set_file_of(SourceFileBytes(source)), options))

    def outside(self, path: Path, options: ReadOptions, span: Span | None) -> bytes:
        """See `SourceFormat.outside`: where the first document begins, and how the last goes on."""
        file, ids = set_file(path, str(path)), _ids(options)
        if self._is_alone(file, ids):
            return b""
        opened = self.open(file, ids)
        first, last = opened.within(span)
        if first == last:
            return b""
        # Nothing is told where documents begin and end with the file, as with one that is alone.
        fresh = first > 0 or self._is_fresh(opened, file, first, ids)
        told = [] if fresh else [b"goes on"]
        goes_on = int(opened.read(last - 1, last)[0]) != ids.eot_id and not opened.begins(last)
        if goes_on:
            following = self._read_on(opened, file, ids, last)
            rest, with_end = _with_rest(np.empty(0, np.uint32), following, file.name, ids)
            if len(rest) or with_end:
                told += [rest.tobytes(), b"end" if with_end else b""]
        return b"|".join(told)

    def _is_alone(self, file: SetFile, options: IdOptions) -> bool:
        """Whether there is no other file that documents could go on in, not even a lost one."""
        try:
            return all(self.neighbour(file, step, options) is None for step in (-1, 1))
        except SourceError:
            return False  # which counts where a document does go on in it

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`."""
        return self.is_cut

    def look(self, file: SourceBytes, options: ReadOptions) -> FileLook | None:
        """Refuse, before any work, what heads, sizes and the first ids tell to be wrong.

        Raises:
            UsageError: it is wrong.
        """
        ids = _ids(options)
        try:
            opened = self.glance(set_file_of(file), ids)
            if opened is None:
                return None
            first = opened.read(0, min(_LOOKED_AT, opened.count))
            checked(first, ids, where=file.name, first=0)
            if not self.tells_type:
                require_width(first, where=file.name)
        except SourceError as error:
            raise UsageError(str(error)) from error
        return None

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span) -> tuple[Span, ...]:
        """See `SourceFormat.needed`: the ids of the piece's documents, and the one before."""
        ids = _ids(options)
        opened = self.open(set_file_of(file), ids)
        first, last = opened.within(span)
        for stretch, at in _stretches(opened, file.name, ids, last):
            starts = opened.starts_within(at, at + len(stretch)) - at
            ends, _ = bounds(stretch, ids.eot_id, starts)
            last = at + (int(ends[0]) + 1 if len(ends) else len(stretch))
            if len(ends):
                break
        size, head = opened.itemsize, opened.head
        begin, end = head + max(first - 1, 0) * size, head + min(last, opened.count) * size
        return ((0, head), (begin, end)) if 0 < head < begin else ((0 if head else begin, end),)

    def documents(
        self, file: SourceBytes, rows: DocumentRows, span: Span | None
    ) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`: documents of ids in the place of texts, as binaries."""
        where, ids, of_set = file.name, _ids(rows.options), set_file_of(file)
        opened = self.open(of_set, ids)
        first, last = opened.within(span)
        step = max(rows.batch_bytes // ID_BYTES, 1)
        fresh = self._is_fresh(opened, of_set, first, ids)
        held, held_at = np.empty(0, np.uint32), first  # of the document that is not at its end
        row, ended = 0, False  # `ended`: somewhere a document has
        for at in range(first, last, step):
            end = min(at + step, last)
            stretch = checked(opened.read(at, end), ids, where=where, first=at)
            starts = opened.starts_within(max(at, held_at + 1), end)
            if not fresh:  # what begins before the piece is not its own
                _, after = bounds(stretch, ids.eot_id, opened.starts_within(at, end) - at)
                if not len(after):
                    continue
                fresh, held_at = True, at + int(after[0])
                stretch, starts = stretch[int(after[0]) :], starts[starts > held_at]
            held = np.concatenate([held, stretch]) if len(held) else stretch
            found = cut(held, ids.eot_id, starts - held_at)
            ended = ended or found.rest > 0
            if len(found.lengths):
                yield _batch(
                    found.ids,
                    found.lengths,
                    found.places + held_at,
                    row,
                    (end - first) / (last - first),
                )
                row += len(found.lengths)
            held, held_at = held[found.rest :], held_at + found.rest
            _require_bounded(len(held), where)
        if not len(held):
            return
        following = self._read_on(opened, of_set, ids, last)
        rest, with_end = (
            (held, True) if opened.begins(last) else _with_rest(held, following, where, ids)
        )
        if not with_end and opened.starts is None:
            began_before = first > 0 or self.neighbour(of_set, -1, ids) is not None
            self._require_end(opened, where, ids, ended=ended or began_before)
        yield _batch(rest, np.array([len(rest)]), np.array([held_at]), row, 1.0)

    def _read_on(
        self, opened: IdsOfFile, file: SetFile, options: IdOptions, at: int
    ) -> Iterator[tuple[_Stretch, Ints]]:
        """The ids of a file from a place on, and those of the files behind it.

        With each stretch comes where documents begin in it, as the format says.
        """
        here: SetFile | None = file
        while here is not None:
            for stretch, first in _stretches(opened, here.name, options, at):
                yield stretch, opened.starts_within(first, first + len(stretch)) - first
            here, at = self.neighbour(here, 1, options), 0
            if here is not None:
                opened = self.open(here, options)

    def _is_fresh(self, opened: IdsOfFile, file: SetFile, first: int, options: IdOptions) -> bool:
        """Whether nothing that began before a place goes on there."""
        if opened.begins(first):
            return True
        while first == 0:
            before = self.neighbour(file, -1, options)
            if before is None:
                return True
            file, opened = before, self.open(before, options)
            first = opened.count
        return int(opened.read(first - 1, first)[0]) == options.eot_id

    def _require_end(
        self, opened: IdsOfFile, where: str, options: IdOptions, *, ended: bool
    ) -> None:
        """Refuse what says nothing of its documents, or stops in the middle of one."""
        if not ended:
            raise SourceError(
                f"{where}: holds no end-of-text id ({options.eot_id}), so documents cannot be told "
                "apart. Is --tokenizer the one that it was made with? Else pass its --eot-token."
            )
        if self.ends_with_eot and int(opened.read(0, 1)[0]) != options.eot_id:
            raise SourceError(
                f"{where}: ends in the middle of a document: no end-of-text id ({options.eot_id}) "
                "stands at its end. It is cut short; copy it again."
            )


def _with_rest(
    held: _Stretch, following: Iterator[tuple[_Stretch, Ints]], where: str, options: IdOptions
) -> tuple[_Stretch, bool]:
    """All of the document that a piece ends in, and whether it has an end.

    Args:
        held: of it, in the piece.
        following: what stands behind the piece; see `TokenSetFormat._read_on`.
        where: the piece lies, for messages.
        options: tell the end-of-text id.
    """
    pieces, size = [held], len(held)
    for stretch, starts in following:
        ends, _ = bounds(stretch, options.eot_id, starts)
        pieces.append(stretch[: ends[0]] if len(ends) else stretch)
        if len(ends):
            return np.concatenate(pieces), True
        size += len(stretch)
        _require_bounded(size, where)
    return np.concatenate(pieces), False


def _stretches(
    opened: IdsOfFile, where: str, options: IdOptions, at: int
) -> Iterator[tuple[_Stretch, int]]:
    """The ids of a file from a place on, ever more at a time, each with the place of the first."""
    step = _LOOKED_AT
    while at < opened.count:
        end = min(at + step, opened.count)
        yield checked(opened.read(at, end), options, where=where, first=at), at
        at, step = end, min(2 * step, _MOST_AT_ONCE)


def _require_bounded(count: int, where: str) -> None:
    if count * ID_BYTES > MAX_TEXT_BYTES:
        raise SourceError(
            f"{where}: no end-of-text id in {count:,} ids one behind the other. Is --tokenizer the "
            "one that it was made with? Else pass its --eot-token."
        )


def _ids(options: ReadOptions) -> IdOptions:
    if options.ids is None:
        raise TypeError("a token set is read with the options of an import")
    return options.ids


def _batch(ids: _Stretch, lengths: Ints, places: Ints, row: int, fraction: float) -> DocumentBatch:
    rows = np.arange(row, row + len(lengths), dtype=np.int64)
    return DocumentBatch(rows, as_texts(ids, lengths), len(rows), fraction, places)
