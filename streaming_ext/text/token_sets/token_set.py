"""The interface of formats of token sets: each opens its files, and all else is common to them.

Documents are cut out of a stream of ids at end-of-text ids, and carried as texts are. A document is
a run of ids without an end-of-text id; it is also cut where the format states that one begins. With
the end-of-text id 9 and a format which states that a document begins at position 5:

    position  0 1 2 3 4 5 6 7 8 9
    id        9 1 2 9 3 4 5 9 9 6    documents: 1 2, 3, 4 5, and one that begins with 6
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.mds_foreign import wider_type
from streaming_ext.format.schema import content_hash
from streaming_ext.format.spec import IdOptions, ReadOptions
from streaming_ext.text.documents.document_rows import (
    MAX_TEXT_BYTES,
    DocumentBatch,
    DocumentRows,
)
from streaming_ext.text.documents.files import SourceBytes, Span
from streaming_ext.text.documents.source_format import FileBlock, Lacking, SourceFormat
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.sources.source_bytes import SourceFileBytes
from streaming_ext.text.sources.source_file import SourceFile
from streaming_ext.text.token_sets.set_file import (
    Ids,
    IdsOfFile,
    SetFile,
    local_file,
    pin_of,
)
from streaming_ext.text.tokenizer.engine import Encoded

ID_BYTES = 4  # per id, if ids are carried as texts are
Stretch = npt.NDArray[np.uint32]  # some consecutive ids
_LOOKED_AT = 2**12  # ids that are read at the beginning of a file, or after a span of it
_MOST_AT_ONCE = 2**22


def cut(ids: Stretch, eot_id: int, starts: Ints) -> tuple[Stretch, Ints, Ints, int]:
    """Cut documents out of ids; the first id begins a document.

    Args:
        ids: the ids, (ids,).
        eot_id: the end-of-text id.
        starts: the positions at which documents begin, as the format states, in (0, ids].

    Returns:
        documents: the ids of the documents, without end-of-text ids.
        lengths: the length of each document, none of them 0: (documents,).
        positions: the position at which each document begins: (documents,).
        rest: the position of the document that does not end here; the number of ids if all end.
    """
    ends, after = bounds(ids, eot_id, starts)
    begins = np.concatenate([[0], after[:-1]])[: len(ends)]
    kept = ends > begins
    rest = int(after[-1]) if len(after) else 0
    ended = ids[:rest]
    return ended[ended != eot_id], (ends - begins)[kept], begins[kept], rest


def bounds(ids: Stretch, eot_id: int, starts: Ints) -> tuple[Ints, Ints]:
    """Find the ends of documents in a stretch of ids, and after each the beginning of the next."""
    eots = np.flatnonzero(ids == eot_id)
    ends, after = np.concatenate([starts, eots]), np.concatenate([starts, eots + 1])
    order = np.lexsort((after, ends))
    return ends[order], after[order]


def checked(ids: Ids, options: IdOptions, *, where: str, first: int) -> Stretch:
    """Check that ids are in the vocabulary, and return them as 32 bits each.

    Args:
        ids: the ids, as they were read.
        options: the options, which hold the vocabulary.
        where: the name of the file in messages.
        first: the position of the first id in the file.

    Raises:
        SourceError: an id is outside the vocabulary.
    """
    wrong = np.flatnonzero((ids < 0) | (ids >= options.vocab_size))
    if len(wrong):
        raise SourceError(
            f"{where}: id {ids[wrong[0]]} at position {first + wrong[0]:,} is outside the "
            f"vocabulary of {options.vocab_size:,} ids. Is --tokenizer the one of the set, and "
            "--dtype the type of its ids?"
        )
    return ids.astype(np.uint32)


def require_width(ids: Ids, *, where: str) -> None:
    """Refuse ids that were read with half of their bits, or fewer.

    Args:
        ids: the ids, as they were read from the beginning of a file or of a shard.
        where: the name of the file in messages.

    Raises:
        SourceError: all ids but every second or every fourth are 0.
    """
    if found := wider_type(ids):
        name, reason = found
        raise SourceError(f"{where}: {reason}. Pass --dtype {name}.")


def without_beginnings(ids: Stretch, lengths: Ints, bos_id: int | None) -> tuple[Stretch, Ints]:
    """Remove the id that begins each document; return the ids and lengths, which may be 0 then.

    Args:
        ids: the ids of documents, end to end.
        lengths: the length of each document, none of them 0: (documents,).
        bos_id: the id that may begin a document; None if there is none.
    """
    if bos_id is None:
        return ids, lengths
    starts = np.cumsum(lengths) - lengths
    begins = ids[starts] == bos_id
    return np.delete(ids, starts[begins]), lengths - begins


def batch_of(
    ids: Stretch, lengths: Ints, positions: Ints, row: int, fraction: float
) -> DocumentBatch:
    """Carry documents of ids in a batch of texts: binaries of four bytes per id, little-endian.

    Args:
        ids: the ids of all documents.
        lengths: the length of each document.
        positions: the position of each document in its file.
        row: the row of the first document.
        fraction: see `DocumentBatch`.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) * ID_BYTES
    data = np.ascontiguousarray(ids, "<u4")
    texts = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    rows = np.arange(row, row + len(lengths), dtype=np.int64)
    return DocumentBatch(rows, texts, len(rows), fraction, positions)


class IdsAsTheyAre:
    """The engine for documents of ids, which need no encoding; see `Engine`."""

    name = "none"
    reason = "the sources hold ids"
    rate = None
    words = None

    def encode(self, texts: pa.LargeBinaryArray) -> Encoded:
        """Return the ids of each document."""
        data, offsets = text_buffers(texts)
        ids = np.frombuffer(data[int(offsets[0]) : int(offsets[-1])], "<u4")
        return Encoded(ids, (offsets - offsets[0]) // ID_BYTES)


class TokenSetFormat(SourceFormat):
    """A format of files of token ids, and of the files next to them that they are read with.

    A document belongs to the file, and to the span of it, in which its first id lies.

    Attributes:
        is_cut: true if ids lie back to back in a file, so that reading can begin anywhere.
        ends_with_eot: true if an end-of-text id follows each document; false if it precedes each.
        states_type: true if files state the type of their ids.
    """

    is_cut: ClassVar[bool] = True
    ends_with_eot: ClassVar[bool] = False
    states_type: ClassVar[bool] = True

    @abstractmethod
    def open(self, file: SetFile, options: IdOptions) -> IdsOfFile:
        """Open a file.

        Raises:
            SourceError: the file is damaged.
            UsageError: the file holds no such ids.
        """

    def called(self, pattern: str) -> tuple[str, ...]:
        """Return the patterns to try in turn for a pattern that the user gives."""
        return (pattern,)

    def described(self, file: SetFile, options: IdOptions) -> bytes:
        """Return the statements about a file in the files next to it; empty if there are none.

        Raises:
            UsageError: these files are missing, or not as they should be.
        """
        return b""

    def beside(self, file: SetFile, options: IdOptions) -> tuple[str, tuple[str, ...]]:
        """Return a folder, and the names of files in it that affect the documents of a file."""
        return file.folder, ()

    def neighbour(self, file: SetFile, step: int, options: IdOptions) -> SetFile | None:
        """Return the file before (-1) or after (+1) a file, if documents continue there."""
        return None

    def pinned(self, source: SourceFile, options: IdOptions) -> SourceFile:
        """Return a remote file as it was listed, with a pin of the files that it is read with.

        Raises:
            UsageError: these files are missing, or not as they should be.
            StorageError: a server refuses or does not answer.
        """
        folder, keys = self.beside(_set_file(SourceFileBytes(source)), options)
        return replace(source, beside=pin_of(folder, keys) if keys else "")

    def outside(self, path: Path, options: ReadOptions, span: Span | None) -> list[str]:
        """See `SourceFormat.outside`."""
        file, ids = local_file(path), _ids(options)
        data = self.described(file, ids) + self._around(file, ids, span)
        return [content_hash(data)] if data else []

    def _around(self, file: SetFile, options: IdOptions, span: Span | None) -> bytes:
        """Describe in bytes how documents continue beyond the ends of a span of a local file.

        Empty if the documents begin and end with the span, as if it were alone.
        """
        if self._is_alone(file, options):
            return b""
        opened = self.open(file, options)
        first, last = opened.within(span)
        if first == last:
            return b""
        fresh = first > 0 or self._is_fresh(opened, file, first, options)
        found = [] if fresh else [b"goes on"]
        if int(opened.read(last - 1, last)[0]) != options.eot_id and not opened.begins(last):
            rest, with_end = self._rest(opened, file, last, options)
            if len(rest) or with_end:
                found += [rest.tobytes(), b"end" if with_end else b""]
        return b"|".join(found)

    def _is_alone(self, file: SetFile, options: IdOptions) -> bool:
        """Return whether documents cannot continue in another file, not even in a missing one."""
        try:
            return all(self.neighbour(file, step, options) is None for step in (-1, 1))
        except SourceError:
            return False  # a missing file matters if a document continues there

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`."""
        return self.is_cut

    def check(self, file: SourceBytes, options: ReadOptions) -> Lacking:
        """Refuse a file whose head, size or first ids are wrong.

        Raises:
            UsageError: one of these is wrong.
        """
        ids = _ids(options)
        try:
            if not self.is_cut:
                self.described(_set_file(file), ids)
                return {}
            opened = self.open(_set_file(file), ids)
            first = opened.read(0, min(_LOOKED_AT, opened.count))
            checked(first, ids, where=file.name, first=0)
            if not self.states_type:
                require_width(first, where=file.name)
        except SourceError as error:
            raise UsageError(str(error)) from error
        return {}

    def blocks(self, file: SourceBytes, options: ReadOptions) -> Sequence[FileBlock]:
        """See `SourceFormat.blocks`: none."""
        return ()

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span | None) -> Sequence[Span]:
        """See `SourceFormat.needed`: the ids of the span's documents, and the id before them."""
        if span is None:
            return super().needed(file, options, span)
        ids, whole = _ids(options), _set_file(file)
        opened = self.open(whole, ids)
        first, last = opened.within(span)
        last += len(self._rest(opened, whole, last, ids)[0]) + 1
        size, head = opened.itemsize, opened.head
        begin, end = head + max(first - 1, 0) * size, head + min(last, opened.count) * size
        return ((0, head), (begin, end)) if 0 < head < begin else ((0 if head else begin, end),)

    def documents(self, rows: DocumentRows) -> Iterator[DocumentBatch]:
        """See `SourceFormat.documents`: documents of ids instead of texts, as binaries."""
        where, ids, file = rows.file.name, _ids(rows.options), _set_file(rows.file)
        opened = self.open(file, ids)
        first, last = opened.within(rows.span)
        step = max(rows.batch_bytes // ID_BYTES, 1)
        begin = first
        if not self._is_fresh(opened, file, first, ids):
            # The document that began before does not belong to the span.
            rest, _ = self._rest(opened, file, first, ids)
            begin = min(first + len(rest), last)
            if begin < last and not opened.begins(begin):
                begin += 1  # after the end-of-text id
        held, held_at = np.empty(0, np.uint32), begin  # ids of the document that has not ended
        row, ended = 0, False  # `ended` says if any document has ended
        for at in range(begin, last, step):
            end = min(at + step, last)
            stretch = checked(opened.read(at, end), ids, where=where, first=at)
            held = np.concatenate([held, stretch]) if len(held) else stretch
            starts = opened.starts_within(held_at + 1, end) - held_at
            documents, lengths, positions, rest_at = cut(held, ids.eot_id, starts)
            ended = ended or rest_at > 0
            if len(lengths):
                fraction = (end - first) / (last - first)
                documents, lengths = without_beginnings(documents, lengths, ids.bos_id)
                yield batch_of(documents, lengths, positions + held_at, row, fraction)
                row += len(lengths)
            held, held_at = held[rest_at:], held_at + rest_at
            _require_bounded(len(held), where)
        if not len(held):
            return
        with_end = opened.begins(last)
        if not with_end:
            rest, with_end = self._rest(opened, file, last, ids, len(held))
            held = np.concatenate([held, rest])
        if not with_end and opened.starts is None:
            began_before = first > 0 or self.neighbour(file, -1, ids) is not None
            self._require_end(opened, where, ids, ended=ended or began_before)
        held, lengths = without_beginnings(held, np.array([len(held)]), ids.bos_id)
        yield batch_of(held, lengths, np.array([held_at]), row, 1.0)

    def _rest(
        self, opened: IdsOfFile, file: SetFile, at: int, options: IdOptions, held: int = 0
    ) -> tuple[Stretch, bool]:
        """Return the rest of a document that goes on at a position, and whether its end was found.

        Args:
            opened: the opened file.
            file: the same file.
            at: the position in the file; the document may continue in the files after it.
            options: the options, which hold the end-of-text id.
            held: the number of ids of the document before the position.
        """
        found, step = [np.empty(0, np.uint32)], _LOOKED_AT
        following: SetFile | None = file
        while following is not None:
            while at < opened.count:
                end = min(at + step, opened.count)
                stretch = checked(opened.read(at, end), options, where=following.name, first=at)
                ends, _ = bounds(stretch, options.eot_id, opened.starts_within(at, end) - at)
                found.append(stretch[: ends[0]] if len(ends) else stretch)
                if len(ends):
                    return np.concatenate(found), True
                held += len(stretch)
                _require_bounded(held, file.name)
                at, step = end, min(2 * step, _MOST_AT_ONCE)
            following, at = self.neighbour(following, 1, options), 0
            if following is not None:
                opened = self.open(following, options)
        return np.concatenate(found), False

    def _is_fresh(self, opened: IdsOfFile, file: SetFile, first: int, options: IdOptions) -> bool:
        """Return whether no document that began before a position continues there."""
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
        """Refuse a file without end-of-text ids, or a file that stops within a document."""
        if not ended:
            raise SourceError(
                f"{where}: holds no end-of-text id ({options.eot_id}), so its documents have no "
                "bounds. Is --tokenizer the one of the set? Else pass its --eot-token."
            )
        if self.ends_with_eot and int(opened.read(0, 1)[0]) != options.eot_id:
            raise SourceError(
                f"{where}: ends in the middle of a document: no end-of-text id ({options.eot_id}) "
                "is at its end. It is cut short; copy it again."
            )


def _require_bounded(count: int, where: str) -> None:
    if count * ID_BYTES > MAX_TEXT_BYTES:
        raise SourceError(
            f"{where}: {count:,} ids in a row without an end-of-text id. Is --tokenizer the one of "
            "the set? Else pass its --eot-token."
        )


def _ids(options: ReadOptions) -> IdOptions:
    if options.ids is None:
        raise TypeError("a token set is read with the options of an import")
    return options.ids


def _set_file(file: SourceBytes) -> SetFile:
    return SetFile(file.name, file)
