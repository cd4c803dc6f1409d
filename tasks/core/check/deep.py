"""`--deep`: some parts, or sources of a shuffled dataset, made again and compared."""

import random
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from streaming_ext.base.arrays import Flags, Ints
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.layout import (
    DIGESTS_FOLDER,
    DUPLICATES_FOLDER,
    SPLITS,
    documents_path,
    record_path,
)
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.provenance import KEPT_PREFIX
from streaming_ext.format.record import PartRecord, SpanRecord
from streaming_ext.format.shuffled import Keys
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.text.documents.kept_values import differing
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.fetch import came_unchecked, fetch
from streaming_ext.text.fetch_span import fetch_span
from streaming_ext.text.identity import identify
from streaming_ext.text.listing import listed_again
from streaming_ext.text.sources import SourceFile, is_remote
from streaming_ext.text.token_sets.id_documents import IdsAsTheyAre
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from streaming_ext.writing.part_documents import LocalSpan, PartDocuments
from streaming_ext.writing.part_files import Tokens
from streaming_ext.writing.tokenize import Counts, tokenize_batches
from tasks.core.check.copies import HashesOf, codes, shown
from tasks.core.check.findings import Outcome, Progress
from tasks.core.check.manifest import Opened, differences
from tasks.core.reading.documents import Ids
from tasks.core.shard.import_config import list_token_files

DEFAULT_DOCUMENTS: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """What is made again as one: a part, or a source of a shuffled dataset.

    Attributes:
        number: of the part, or of the source.
        spec: that it was made with.
        spans: of source files.
        documents: that the dataset has of it.
        record: of the part; None for a source.
        file: that findings about its documents name.
        counted_in: the file that says how many rows it has.
    """

    number: int
    spec: DatasetSpec
    spans: tuple[SpanRecord, ...]
    documents: int
    record: PartRecord | None
    file: str
    counted_in: str

    @classmethod
    def of(cls, dataset: Opened, manifest: Manifest, number: int) -> Self:
        """The part or source of this number."""
        if manifest.shuffled is None:
            record = dataset.records[number]
            return cls(
                number=number,
                spec=record.spec,
                spans=record.made_of,
                documents=sum(split.documents for split in record.splits.values()),
                record=record,
                file=documents_path(number),
                counted_in=record_path(number),
            )
        source = dataset.sources[number]
        return cls(
            number=number,
            spec=manifest.spec,
            spans=(SpanRecord(source=source.identity, span=source.span, rows=source.rows),),
            documents=source.documents,
            record=None,
            file=source.identity.url,
            counted_in=manifest.shuffled.sources.path,
        )

    @property
    def size(self) -> int:
        """Bytes that are read of its sources."""
        spans = [source_span.span or (0, source_span.source.size) for source_span in self.spans]
        return sum(end - begin for begin, end in spans)


def draw_groups(dataset: Opened, documents: int, seed: int) -> list[Group]:
    """Parts, or sources of a shuffled dataset, that have so many documents or more."""
    manifest = dataset.manifest
    if manifest is None or dataset.tokenizer is None:
        return []
    numbers = [*dataset.records] if manifest.shuffled is None else [*range(len(dataset.sources))]
    random.Random(seed).shuffle(numbers)  # noqa: S311
    groups: list[Group] = []
    for number in numbers:
        if sum(group.documents for group in groups) < documents:
            groups.append(Group.of(dataset, manifest, number))
    return groups


class IdHashes:
    """Hashes of the ids of some documents of a split, whose shards are seen one after another.

    Attributes:
        shards: that holds the last ids of each document.
    """

    def __init__(self, lengths: Ints, chosen: Ints) -> None:
        """Begin before the first shard.

        Args:
            lengths: tokens of all documents of the split, without end-of-text ids.
            chosen: those that are hashed, by number, ascending.
        """
        self._ends = np.cumsum(lengths + 1)[chosen]
        self._starts = self._ends - lengths[chosen] - 1
        self._digests = [xxhash.xxh3_64() for _ in chosen]
        self._left = lengths[chosen] + 1
        self.shards = [""] * len(chosen)

    def see(self, flat: Ids, begin: int, shard: str) -> None:
        """Go on with a shard, whose ids begin at `begin` of the stream."""
        first = int(np.searchsorted(self._ends, begin, side="right"))
        last = int(np.searchsorted(self._starts, begin + len(flat)))
        for number in range(first, last):
            start = max(int(self._starts[number]) - begin, 0)
            ids = flat[start : int(self._ends[number]) - begin]
            self._digests[number].update(np.ascontiguousarray(ids, "<u4").data)
            self._left[number] -= len(ids)
            self.shards[number] = shard

    @property
    def hashes(self) -> list[int | None]:
        """Of each document; None where a shard is damaged."""
        pairs = zip(self._digests, self._left.tolist(), strict=True)
        return [None if left else digest.intdigest() for digest, left in pairs]


def compare_with_sources(
    groups: Sequence[Group],
    listed: pa.Table,
    tokenizer: Tokenizer,
    *,
    hashes: HashesOf | None,
    out: Outcome,
    progress: Progress,
    workers: int,
) -> None:
    """Make groups again by the reference, and compare all that comes of it.

    Args:
        groups: to make.
        listed: their documents, see `PartFound`.
        tokenizer: the reference.
        hashes: of texts, where copies were left out.
        out: gets the findings.
        progress: gets the bytes of sources.
        workers: threads.
    """
    progress.expect(sum(group.size for group in groups))

    def compare(group: Group) -> Outcome:
        found = Outcome()
        own = listed.filter(pc.equal(listed["source"], group.number)).sort_by("row")
        with found.about(*(source_span.source.url for source_span in group.spans)):
            _MadeAgain(group, own, hashes, found).compare(tokenizer, progress)
        progress.done(group.size)
        return found

    with ThreadPoolExecutor(workers) as threads, progress:
        for found in threads.map(compare, groups):
            out.take(found)


class _MadeAgain:
    """A group made again by what makes parts, beside what the dataset lists of it."""

    def __init__(
        self, group: Group, listed: pa.Table, hashes: HashesOf | None, out: Outcome
    ) -> None:
        self._group, self._listed, self._hashes, self._out = group, listed, hashes, out
        self._rows = listed["row"].to_numpy()
        self._seen = self._new = self._bytes_of_copies = 0

    def compare(self, tokenizer: Tokenizer, progress: Progress) -> None:
        """Go over all rows.

        Raises:
            ShardmillError, OSError: a source is gone, another one, damaged or cannot be read.
        """
        group, spec = self._group, self._group.spec
        with tempfile.TemporaryDirectory(prefix="shardmill-verify-") as folder:
            here = [self._here(source_span, Path(folder)) for source_span in group.spans]
            documents = PartDocuments(here, spec.read_options)
            counts = tokenize_batches(
                documents,
                spec,
                tokenizer,
                IdsAsTheyAre() if spec.imported else ReferenceEngine(tokenizer),
                self._take,
                where=group.file,
                report=lambda *_: progress.done(0),
                audited=False,
            )
            self._out.unchecked.update(each.url for each in here if came_unchecked(each.path))
        self._out.sources.update(source_span.url for source_span in here)
        self._out.count(source_rows=counts.rows)
        for source_span, found in zip(group.spans, documents.rows, strict=True):
            if source_span.rows != found:
                words = f"{source_span.rows} rows of {source_span.source.url}, it has {found}"
                self._out.found(group.counted_in, words)
        if group.record is not None:
            self._compare_counts(group.record, counts)

    def _take(self, tokens: Tokens) -> None:
        """Compare the documents of a batch with the list."""
        batch = tokens.batch
        rows = batch.rows[tokens.kept]
        begin, end = np.searchsorted(self._rows, [self._seen, self._seen + batch.num_rows])
        self._seen += batch.num_rows
        there = np.isin(self._rows[begin:end], rows)
        for row in self._rows[begin:end][~there]:
            self._found("gone", row, "is listed, and its source has no text for it")
        new = rows[~np.isin(rows, self._rows[begin:end])]
        self._new += len(new)
        for row in new if self._group.spec.subset is None else ():
            self._found("lost", row, "is not listed, but it has a text that gives tokens")
        listed = self._listed.slice(begin, end - begin).filter(pa.array(there))
        # at: (listed documents,), their places among those that were made again
        at = np.searchsorted(rows, listed["row"].to_numpy())
        copies = np.asarray(listed["first"].is_valid())
        if self._hashes is not None and tokens.digests is not None:
            self._compare_hashes(self._hashes, listed, copies, tokens.digests[tokens.kept][at])
        sizes = np.diff(text_buffers(batch.texts)[1])[tokens.kept]
        self._bytes_of_copies += int(sizes[at[copies]].sum())
        self._compare(tokens, listed.filter(pa.array(~copies)), at[~copies])

    def _compare(self, tokens: Tokens, listed: pa.Table, at: Ints) -> None:
        """Compare listed documents, which stand `at` these places of what was made again."""
        spec, rows, splits = self._group.spec, listed["row"].to_numpy(), listed["split"].to_numpy()
        held = tokens.in_holdout[at].astype(np.int8)
        for index in np.flatnonzero(splits != held):
            stands, belongs = SPLITS[int(splits[index])], SPLITS[held[index]]
            words = f"stands in {stands}; the hash of its text puts it into {belongs}"
            self._found("side", rows[index], words)
        if spec.shuffle is not None:
            names = tokens.batch.named_by[tokens.kept][at]
            for index in np.flatnonzero(listed["place"].to_numpy() != names):
                self._found("name", rows[index], "is not named as in its source")
        for name, column in zip(spec.keep_columns, tokens.values, strict=True) if len(at) else ():
            kept, made = listed[f"{KEPT_PREFIX}{name}"].combine_chunks(), column.take(pa.array(at))
            for index in differing(kept, made):
                words = (
                    f"has {kept[index].as_py()!r} in {name!r}, its source {made[index].as_py()!r}"
                )
                self._found(name, rows[index], words)
        lengths, stream = listed["tokens"].to_numpy(), tokens.stream.astype("<u4", copy=False)
        for index in np.flatnonzero(lengths != tokens.lengths[at]):
            words = f"has {lengths[index]} tokens, the reference makes {tokens.lengths[at[index]]}"
            path = documents_path(listed["part"][int(index)].as_py())
            self._found("length", rows[index], f"is listed: it {words}", file=path)
        ends = np.cumsum(tokens.lengths + 1)
        begins = ends - tokens.lengths - 1
        made_again = [xxhash.xxh3_64_intdigest(stream[begins[i] : ends[i]].data) for i in at]
        held_ids = listed["ids"].to_pylist()
        for index, (ids, wanted) in enumerate(zip(held_ids, made_again, strict=True)):
            if ids is not None and ids != wanted:
                words = "has other ids than the reference makes of its text"
                self._found("ids", rows[index], words, file=listed["shard"][index].as_py())
        compared = np.array([ids is not None for ids in held_ids], np.bool_)
        tokens_compared = int((lengths[compared] + 1).sum())
        self._out.count(retokenized=int(compared.sum()), retokenized_tokens=tokens_compared)

    def _compare_hashes(
        self, known: HashesOf, listed: pa.Table, copies: Flags, hashes: Keys
    ) -> None:
        """Compare hashes of texts with those that are kept, a copy's with those of its first."""
        rows = listed["row"].to_numpy()
        own = codes(np.full(len(rows), self._group.number), rows)
        firsts = np.where(copies, listed["first"].fill_null(0).to_numpy(), own)
        wrong = (known.of(firsts) != hashes).any(axis=1)
        for index in np.flatnonzero(wrong & ~copies):
            self._found("hash", rows[index], "has another hash", file=DIGESTS_FOLDER)
        for index in np.flatnonzero(wrong & copies):
            words = f"is no copy of {shown(int(firsts[index]))} by their texts"
            self._found("copy", rows[index], words, file=DUPLICATES_FOLDER)
        self._out.count(compared=len(rows))

    def _compare_counts(self, record: PartRecord, made: Counts) -> None:
        """Compare what a record counts with what was made again."""
        subset = record.spec.subset is not None
        counts = {
            "rows": made.rows,
            "null_documents": made.nulls,
            "empty_documents": made.empty + (0 if subset else self._new),
            "unchosen_documents": self._new if subset else 0,
            "dropped_documents": {name: made.dropped[name] for name in record.dropped_documents},
            "bad_documents": made.bad,
            "bad_listed": tuple(made.bad_listed),
        }
        if not subset:
            counts["text_bytes"] = made.text_bytes - self._bytes_of_copies
        if words := differences(record, record.model_copy(update=counts)):
            self._out.found(self._group.counted_in, words)

    def _found(self, kind: str, row: int, words: str, *, file: str = "") -> None:
        self._out.found(file or self._group.file, f"row {row} {words}", kind=kind)

    def _here(self, source_span: SpanRecord, folder: Path) -> LocalSpan:
        """The bytes that a span was made from; remote ones are fetched."""
        source, options = source_span.source, self._group.spec.read_options
        span = (
            source_span.span if self._group.spec.shuffle is None else None
        )  # else all of a file is pinned
        path = Path(source.url)
        if not is_remote(source.url):
            now = SourceFile(url=source.url, size=path.stat().st_size)
        elif options.ids is None:
            now = listed_again(source)
        else:
            (now,) = list_token_files([source.url], options.ids)
        version = now.pin or identify(now, path, span=span, options=options).version
        if (now.size, version) != (source.size, source.version):
            raise CorruptDatasetError(
                f"{source.url}: {now.size} bytes of {version}, the dataset was made from "
                f"{source.size} of {source.version}"
            )
        if now.remote and span is None:
            path = fetch(now, folder)[0]
        elif now.remote and span is not None:
            path = fetch_span(now, folder, options=options, span=span)[0]
        return LocalSpan(source.url, path, source_span.span, source.size)
