"""Packing of documents into rows, by best fit decreasing on a histogram of lengths.

Documents are taken from the longest to the shortest, and each goes into the fullest row that still
holds it. Rows with the same room are interchangeable, and so are documents of one length. So one
move fills as many rows as possible, and the work grows with the number of lengths, not of
documents:

    2,000 documents of 700 and 2,000 of 600 in rows of 2,048
    move 1: 1,000 new rows take 2 of 700 each, and have a room of 648
    move 2: those 1,000 rows take 1 of 600 each; move 3: 333 new rows take 3 of 600; ...

Each group of consecutive documents is packed by itself. A document that is longer than a row is cut
into full rows, and the rest is packed like a document:

    rows of 8, documents of 5, 19 and 3 at tokens 0, 5 and 24 of the stream
    full rows [5, 13) and [13, 21); rests 5, 3 and 3 make the row [0, 5) + [24, 27) or
    [0, 5) + [21, 24), and another one of 3 with a padding of 5

The plan of a split is a mapped file, made once per machine. It has a section per group, and at its
end a directory with the hash of each section, so that the time to open it depends on the number of
groups alone. Each process verifies a section when it first uses it:

    section      words of 4 bytes: firsts of the rows (rows + 1,), starts of the segments, counted
                 from the group's first token (segments,), their marked lengths (segments,)
    directory    JSON
    end          length of the directory, 8 bytes; its XXH3-128, 16 bytes
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import numpy as np
import xxhash

from streaming_ext.base.arrays import Flags, Ints, ceil_div, ranges
from streaming_ext.base.errors import CorruptDatasetError, UsageError
from streaming_ext.base.threads import cores, mapped_ahead
from streaming_ext.format.schema import content_hash
from streaming_ext.order.order import Keys, key_of, mix
from streaming_ext.reading.cache import ShardCache
from streaming_ext.reading.made_once import damaged, made_once, map_file, write_directory
from streaming_ext.reading.source import DocumentRanges, Rows, TokenSource, segments_of_rows
from streaming_ext.reading.token_reader import FILLING, Runs, TokenReader
from streaming_ext.training.features.documents import split_documents

if TYPE_CHECKING:
    from streaming_ext.reading.chosen import ChosenDocuments


def best_fit(counts: Ints, length: int) -> tuple[Ints, int]:
    """Pack documents into rows; among rows with the same room, take the first that had it.

    Args:
        counts: the number of documents of each length: (length + 1,).
        length: tokens per row.

    Returns:
        the row of each document, the longest first: (documents,); and the number of rows.
    """
    taken: list[int] = []  # rows; `times` is how many documents each takes at a time
    times: list[int] = []
    num_rows = 0
    waiting: defaultdict[int, list[int]] = defaultdict(list)  # rows by their room
    open_rooms = 0  # bit r: some row has room r
    for size in reversed(np.flatnonzero(counts).tolist()):
        left = int(counts[size])
        while left:
            fitting = open_rooms >> size
            if fitting:
                room = size + (fitting & -fitting).bit_length() - 1
                available = len(waiting[room])
            else:
                room = length
                available = left  # as many new rows as may be needed
            each = room // size
            number = min(available, left // each)
            if not number:  # one row takes the documents that are left
                each, number = left, 1
            if fitting:
                rows = waiting[room][:number]
                del waiting[room][:number]
                if number == available:
                    open_rooms ^= 1 << room
            else:
                rows = list(range(num_rows, num_rows + number))
                num_rows += number
            taken += rows
            times += [each] * number
            left -= number * each
            room -= each * size
            if room:
                waiting[room].extend(rows)
                open_rooms |= 1 << room
    return np.repeat(np.array(taken, np.int64), np.array(times, np.int64)), num_rows


_DOCUMENTS, _ROWS = range(2)  # what is permuted, part of each key
_WORD: Final = np.uint64(16)  # bits of the words by which permutations sort
_WORD_MASK: Final = np.uint64((1 << 16) - 1)
_MARKS: Final = 2  # bits beside the length of a segment
_BEGINS, _ENDS = np.int64(1), np.int64(2)


class RowSegments(NamedTuple):
    """The segments of some rows, row by row.

    Attributes:
        firsts: the first segment of each row, then the number of segments: (rows + 1,).
        starts: the first token of each segment in the split's stream: (segments,).
        marked: tokens of each segment, with two marks in the lowest bits: one if it begins its
            document, one if it ends its document: (segments,).
    """

    firsts: Ints
    starts: Ints
    marked: Ints

    @property
    def lengths(self) -> Ints:
        """Tokens of each segment: (segments,)."""
        return self.marked >> _MARKS

    @property
    def begins(self) -> Flags:
        """True for segments that begin their document: (segments,)."""
        return (self.marked & _BEGINS).astype(bool)

    @property
    def ends(self) -> Flags:
        """True for segments that end their document: (segments,)."""
        return (self.marked & _ENDS).astype(bool)


def pack_group(
    starts: Ints, lengths: Ints, *, length: int, key: int, multiple: int = 1
) -> RowSegments:
    """Pack some documents into rows.

    Keyed permutations decide which row each document of a given length goes to, and the order of
    the rows. Within a row, documents have the order of the stream.

    Args:
        starts: the first token of each document in the stream: (documents,).
        lengths: tokens of each document, including its end-of-text id: (documents,).
        length: tokens per row.
        key: the key of the permutations.
        multiple: the multiple of tokens to which segments are rounded up; divides `length`.
    """
    rest = lengths % length
    room = rounded_up(rest, multiple)
    # The rests in the order in which they are packed, the longest first.
    order = stable_argsort(
        room.astype(np.uint64) << _WORD | _words(len(rest), key, _DOCUMENTS),
        bits=length.bit_length() + int(_WORD),
    )[::-1]
    order = order[: np.count_nonzero(rest)]
    row_of = np.empty(len(rest), np.int64)
    row_of[order], count = best_fit(np.bincount(room[order], minlength=length + 1), length)
    # All segments, in the order of the stream: full rows, and the rest of each document.
    counts = ceil_div(lengths, length)
    owners = np.repeat(np.arange(len(lengths)), counts)
    number = ranges(np.zeros_like(counts), counts)
    offsets = number * length
    sizes = np.minimum(lengths[owners] - offsets, length)
    marked = sizes << _MARKS  # one number holds length and marks, so that one sort moves both
    marked += (number == 0) * _BEGINS + (number == counts[owners] - 1) * _ENDS
    # Full rows have the last numbers.
    is_full = sizes == length
    row = np.where(is_full, count - 1 + np.cumsum(is_full), row_of[owners])
    count += int(np.count_nonzero(is_full))
    # The rows are permuted; the segments of each row stay together.
    row = stable_argsort(_words(count, key, _ROWS), bits=int(_WORD))[row]
    by_row = stable_argsort(row.astype(np.uint64), bits=count.bit_length())
    firsts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))])
    return RowSegments(firsts, (starts[owners] + offsets)[by_row], marked[by_row])


def rounded_up(lengths: Ints, multiple: int) -> Ints:
    """Round lengths up to multiples."""
    return lengths if multiple == 1 else ceil_div(lengths, multiple) * multiple


def _words(count: int, key: int, what: int) -> Keys:
    """Make the words by which a keyed permutation sorts: (count,); ties keep their order."""
    return mix(key_of(key, what) ^ np.arange(count, dtype=np.uint64)) & _WORD_MASK


def stable_argsort(values: Keys, *, bits: int) -> Ints:
    """Return the stable argsort of values below 2 to the power of `bits`.

    If a value and its index fit one word, words are sorted, which is three times as fast.
    """
    room = len(values).bit_length()
    if bits + room > 64:
        return np.argsort(values, kind="stable")
    words = values << np.uint64(room)
    words |= np.arange(len(values), dtype=np.uint64)
    words.sort()
    words &= np.uint64((1 << room) - 1)
    return words.view(np.int64)


VERSION: Final = 2
MAX_ROW: Final = 1 << 30  # tokens; two bits of a word are marks
GROUP_DOCUMENTS: Final = 1 << 18  # that are packed together
GROUP_TOKENS: Final = 1 << 30  # that limit a group of long documents
_MAX_TOKENS: Final = 1 << 32
_KEY: Final = 17  # of the permutations; constant, so that given lengths have one plan


def write_plan(file: BinaryIO, groups: Iterable[tuple[int, RowSegments]], *, length: int) -> None:
    """Write a plan.

    Args:
        file: the file, still empty.
        groups: the first token and the rows of each group.
        length: tokens per row.
    """
    sections = []
    for origin, (firsts, starts, marked) in groups:
        if starts.size and int(starts.max()) - origin >= _MAX_TOKENS:
            raise UsageError(
                f"Some {len(starts):,} documents have more than {_MAX_TOKENS:,} tokens together: "
                "packing= is not made for documents as long as that. Leave it out."
            )
        data = np.concatenate([firsts, starts - origin, marked]).astype("<u4").tobytes()
        sections.append(
            {
                "rows": len(firsts) - 1,
                "segments": len(starts),
                "origin": origin,  # first token of the group in the split's stream
                "xxh128": xxhash.xxh3_128_hexdigest(data),
            }
        )
        file.write(data)
    directory = {"version": VERSION, "sequence_length": length, "groups": sections}
    write_directory(file, directory)


class PackingPlan:
    """The rows of a split, by their numbers.

    Attributes:
        path: the path of the file.
        length: tokens per row.
        bounds: the first row of each group, then the number of rows: (groups + 1,).
    """

    def __init__(self, path: Path, *, length: int) -> None:
        """Open a file.

        Args:
            path: the path of the file.
            length: tokens per row.

        Raises:
            FileNotFoundError: the file does not exist.
            CorruptDatasetError: the file is damaged, or was made by another version.
        """
        self.path, self.length = path, length
        data, directory = map_file(path, version=VERSION, sequence_length=length)
        sections = directory["groups"]
        self._words = data.view("<u4")
        self._digests = [section["xxh128"] for section in sections]
        self._verified = np.zeros(len(sections), bool)
        names = ("rows", "segments", "origin")
        columns = [[section[name] for section in sections] for name in names]
        rows, segments, self._origins = np.array(columns, np.int64)
        self.bounds: Ints = np.concatenate([[0], np.cumsum(rows)])
        # The first word of each group, then the end; the first words of its other arrays.
        self._firsts_at = np.concatenate([[0], np.cumsum(rows + 1 + 2 * segments)])
        self._starts_at = self._firsts_at[:-1] + rows + 1
        self._marked_at = self._starts_at + segments

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a plan in another process, which maps the file itself."""
        return partial(PackingPlan, length=self.length), (self.path,)

    def look_up(self, rows: Ints) -> RowSegments:
        """Return the segments of some rows: (rows,).

        Raises:
            CorruptDatasetError: a group is damaged.
        """
        group = np.searchsorted(self.bounds, rows, side="right") - 1
        for number in np.unique(group[~self._verified[group]]).tolist():
            self._verify(number)
        at = self._firsts_at[group] + rows - self.bounds[group]
        first = self._words[at].astype(np.int64)
        counts = self._words[at + 1].astype(np.int64) - first
        offset, group = ranges(first, counts), np.repeat(group, counts)
        return RowSegments(
            firsts=np.concatenate([[0], np.cumsum(counts)]),
            starts=self._words[self._starts_at[group] + offset] + self._origins[group],
            marked=self._words[self._marked_at[group] + offset].astype(np.int64),
        )

    def rows_with(self, first: int, stop: int) -> Ints:
        """Return the rows that hold any of the tokens [first, stop) of the stream, sorted."""
        found = [np.empty(0, np.int64)]
        low = int(np.searchsorted(self._origins, first, side="right")) - 1
        high = int(np.searchsorted(self._origins, stop, side="left"))
        for group in range(max(0, low), high):
            own = self.rows_of_group(group)
            segments = np.flatnonzero((own.starts < stop) & (own.starts + own.lengths > first))
            rows = np.searchsorted(own.firsts, segments, side="right") - 1
            found.append(np.unique(rows) + self.bounds[group])
        return np.concatenate(found)

    def rows_of_group(self, group: int) -> RowSegments:
        """Return the segments of all rows of a group."""
        return self.look_up(np.arange(self.bounds[group], self.bounds[group + 1]))

    def _verify(self, group: int) -> None:
        data = self._words[self._firsts_at[group] : self._firsts_at[group + 1]]
        if xxhash.xxh3_128_hexdigest(data.data) != self._digests[group]:
            raise damaged(self.path, f"group {group} has another hash")
        self._verified[group] = True


def open_plan(
    cache: ShardCache,
    length: int,
    *,
    chosen: "ChosenDocuments | None" = None,
    left_out: DocumentRanges | None = None,
    multiple: int = 1,
) -> PackingPlan:
    """Open the plan of a split for rows of `length` tokens; a missing plan is made.

    A plan of chosen documents counts only their tokens.

    Args:
        cache: the cache of the split.
        length: tokens per row.
        chosen: the documents that rows may hold; None for all.
        left_out: documents that no row holds.
        multiple: the multiple of tokens to which segments are rounded up.

    Raises:
        UsageError: the dataset does not know its documents, or rows are too long.
        CorruptDatasetError: the lists of documents are missing or damaged.
        StorageError: the plan cannot be kept.
    """
    if length >= MAX_ROW:
        raise UsageError(f"`sequence_length` must be below {MAX_ROW} with packing, got {length}.")
    name = f"{cache.name}.best_fit-{VERSION}-{length}"
    if chosen is not None:
        name += f"-where-{chosen.digest[:16]}"
    if left_out is not None and len(left_out.starts):
        name += f"-without-{content_hash(np.sort(left_out.starts).tobytes())[:16]}"
    if multiple > 1:
        name += f"-of-{multiple}"
    name += ".plan"

    def make(file: BinaryIO) -> None:
        listed = split_documents(cache)
        documents, count = listed.all(), listed.manifest.splits[listed.split].documents
        tokens, out = int(cache.index.token_starts[-1]), left_out
        if chosen is not None:
            documents = (DocumentRanges(*chosen.numbered(*some)) for some in documents)
            count, tokens = chosen.documents, chosen.tokens
            out = out and DocumentRanges(*chosen.numbered(*out))
        if out is not None:
            documents, count = _without(documents, out.starts), count - len(out.starts)
        groups = plan_groups(
            documents, count=count, tokens=tokens, length=length, multiple=multiple
        )
        write_plan(file, groups, length=length)

    return made_once(
        cache.beside / name,
        opened=lambda path: PackingPlan(path, length=length),
        make=make,
    )


def plan_groups(
    documents: Iterable[DocumentRanges], *, count: int, tokens: int, length: int, multiple: int = 1
) -> Iterator[tuple[int, RowSegments]]:
    """Yield the first token and the rows of each group.

    Args:
        documents: all documents of a split, in order.
        count: the number of documents.
        tokens: the approximate number of their tokens.
        length: tokens per row.
        multiple: see `open_plan`.
    """

    def pack(group: tuple[int, DocumentRanges]) -> tuple[int, RowSegments]:
        number, (starts, lengths) = group
        rows = pack_group(starts, lengths, length=length, key=_KEY + number, multiple=multiple)
        return int(starts[0]), rows

    groups = _cut(documents, count=count, tokens=tokens)
    return mapped_ahead(pack, enumerate(groups), threads=min(4, cores()))


def _cut(
    documents: Iterable[DocumentRanges], *, count: int, tokens: int
) -> Iterator[DocumentRanges]:
    """Yield the documents of each group; the numbers of documents differ by at most one."""
    groups = max(1, round(count / GROUP_DOCUMENTS), ceil_div(tokens, GROUP_TOKENS))
    ends = [count * (number + 1) // groups for number in range(groups)]
    held: list[DocumentRanges] = []
    given = found = 0
    for some in documents:
        held.append(some)
        found += len(some.starts)
        while ends and found >= ends[0]:
            if len(held) > 1:
                held = [DocumentRanges(*map(np.concatenate, zip(*held, strict=True)))]
            (whole,), size = held, ends.pop(0) - given
            if size:
                yield DocumentRanges(whole.starts[:size], whole.lengths[:size])
            held, given = [DocumentRanges(whole.starts[size:], whole.lengths[size:])], given + size
    if found != count:
        raise CorruptDatasetError(
            f"The tables of documents list {found:,} documents, the manifest {count:,}. "
            "Run `shardmill verify` on the dataset."
        )


def _without(documents: Iterable[DocumentRanges], starts: Ints) -> Iterator[DocumentRanges]:
    """Yield the documents that do not begin at any of `starts`."""
    for some in documents:
        kept = ~np.isin(some.starts, starts)
        yield DocumentRanges(some.starts[kept], some.lengths[kept])


class PackedRows(Rows):
    """Rows of segments and padding; the plan knows where documents begin and end."""

    def __init__(
        self,
        reader: TokenReader,
        segments: RowSegments,
        length: int,
        *,
        multiple: int,
        filling: memoryview,
    ) -> None:
        """Lay out the segments of each row, and find them in the shards.

        Args:
            reader: the reader of the shards.
            segments: the segments, with starts in the reader's space of tokens.
            length: tokens per row.
            multiple: the multiple of tokens to which segments are rounded up.
            filling: the bytes of a row of padding.
        """
        self.reader, self.length, self.filling = reader, length, filling
        self._segments = segments
        firsts, starts, lengths = segments.firsts, segments.starts, segments.lengths
        self._firsts, self._starts, self._lengths = firsts, starts, lengths
        self._after: Ints = (starts + lengths)[firsts[1:] - 1]
        rooms = rounded_up(lengths, multiple)
        # The first token of each segment with all end to end, then the end: (segments + 1,)
        begins = self._begins = np.append(0, np.cumsum(rooms))
        # The tokens that segments take in each row: (rows,)
        self._filled: Ints = np.diff(begins[firsts])
        # Padding after each segment; after the last one, the rest of the row: (segments,)
        self._gaps: Ints = rooms - lengths
        self._gaps[firsts[1:] - 1] += length - self._filled
        self._rooms = lengths + self._gaps
        runs = reader.runs(starts, lengths, np.arange(len(rooms) + 1))
        gapped = np.flatnonzero(self._gaps)
        at = runs.firsts[gapped + 1]
        self.runs = Runs(
            firsts=runs.firsts[firsts] + np.searchsorted(gapped, firsts),
            shards=np.insert(runs.shards, at, FILLING),
            begins=np.insert(runs.begins, at, 0),
            ends=np.insert(runs.ends, at, self._gaps[gapped] * reader.dtype.itemsize),
        )

    def start_inside(self, rows: slice, eot_id: int) -> Flags:
        """Return which rows begin in the middle of a document: (rows,)."""
        inside: Flags = ~self._segments.begins[self._firsts[:-1][rows]]
        return inside

    def _edges(self, rows: slice, real: Flags) -> tuple[Ints, Ints, Flags]:
        """See `Rows`; the plan gives an edge at each segment, and at padding."""
        some, row = self._some(rows)
        filled = self._filled[rows]
        padded = np.flatnonzero(real & (filled < self.length))
        columns = self._begins[some] - self._begins[self._firsts[rows]][row]
        offsets = row * self.length + columns
        edges = np.append(offsets[real[row]], padded * self.length + filled[padded])
        gaps = np.where(real[row], self._gaps[some], 0)
        padding = ranges(offsets + self._lengths[some], gaps)
        return edges, padding, ~self._segments.ends[self._firsts[1:][rows] - 1]


class Packed(TokenSource):
    """Rows of whole documents of another source, by the plan of each stream."""

    left_out = None  # the plans hold no documents that are left out

    def __init__(self, source: TokenSource, *, multiple: int | None) -> None:
        """Open the plans; missing ones are made first.

        Args:
            source: the source whose documents are packed.
            multiple: the multiple of tokens to which documents are rounded up; 1 by default.

        Raises:
            UsageError: the streams do not fit together, or do not know their documents.
            CorruptDatasetError: the lists of documents are missing or damaged.
        """
        self._source, self.reader, self.length = source, source.reader, source.length
        self.chosen, self.excluded, self._named_multiple = source.chosen, source.excluded, multiple
        self._multiple = multiple or 1
        if self.length % self._multiple:
            raise UsageError(
                f"`sequence_length` must be a multiple of document_multiple={self._multiple}, got "
                f"{self.length}."
            )
        caches = self.reader.caches
        excluded: Sequence[DocumentRanges | None] = source.excluded or [None] * len(caches)
        self._plans = [
            open_plan(cache, self.length, chosen=own, left_out=out, multiple=self._multiple)
            for cache, own, out in zip(caches, source.chosen, excluded, strict=True)
        ]
        self.bounds = [plan.bounds for plan in self._plans]
        # A dataset that lists its documents knows the id.
        self._eot = caches[0].index.eot_id

    def identity(self) -> dict[str, Any]:
        """Return the way of packing, and the settings of the packed source."""
        own = {"packing": "best_fit", "document_multiple": self._named_multiple}
        return own | self._source.identity()

    def find_ends(self, eot_id: int) -> None:
        """Do nothing: the plans know where documents end."""

    def locate(self, streams: Ints, sequences: Ints, length: int) -> Rows:
        """See `TokenSource`."""
        segments = RowSegments(*segments_of_rows(streams, np.maximum(sequences, 0), self._look_up))
        origins = np.repeat(self.reader.stream_starts[streams], np.diff(segments.firsts))
        segments = segments._replace(starts=segments.starts + origins)
        filling = memoryview(np.full(length, self._eot, self.reader.dtype).tobytes())
        return PackedRows(self.reader, segments, length, multiple=self._multiple, filling=filling)

    def _look_up(self, stream: int, rows: Ints) -> RowSegments:
        """Return the segments of some rows of a stream."""
        found, chosen = self._plans[stream].look_up(rows), self.chosen[stream]
        return found if chosen is None else found._replace(starts=chosen.offsets(found.starts))

    def sequences_with(self, stream: int, documents: DocumentRanges) -> Ints:
        """See `TokenSource`."""
        plan, (firsts, lengths) = self._plans[stream], documents
        if (chosen := self.chosen[stream]) is not None:
            firsts, lengths = chosen.numbered(firsts, lengths)
        pairs = zip(firsts.tolist(), (firsts + lengths).tolist(), strict=True)
        found = [np.empty(0, np.int64), *(plan.rows_with(*pair) for pair in pairs)]
        rows: Ints = np.unique(np.concatenate(found))
        return rows
