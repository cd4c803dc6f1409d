"""`--deep`: some parts, or sources of a shuffled dataset, made again and compared."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.layout import (
    DIGESTS_FOLDER,
    DUPLICATES_FOLDER,
    SPLITS,
    documents_path,
    record_path,
)
from streaming_ext.format.provenance import KEPT_PREFIX
from streaming_ext.format.record import PartRecord, SpanRecord
from streaming_ext.format.shuffled import SOURCES_PATH, Keys
from streaming_ext.store.scratch import new_folder
from streaming_ext.text.documents.columns import differing
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.fetch import came_unchecked, fetch
from streaming_ext.text.listing import listed_again
from streaming_ext.text.parts import Part, SourceSpan
from streaming_ext.text.sources import SourceFile, is_remote
from streaming_ext.text.token_sets.token_set import IdsAsTheyAre
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from streaming_ext.text.tokenizer.json_file import one_thread_each
from streaming_ext.writing.part_documents import PartDocuments
from streaming_ext.writing.part_files import Tokens
from streaming_ext.writing.tokenize import Counts, tokenize_batches
from tasks.core.check.copies import KeptHashes, shown
from tasks.core.check.findings import Outcome, Progress, differences
from tasks.core.check.manifest import Opened
from tasks.core.reading.documents import Ids
from tasks.core.shard.import_config import list_token_files
from tasks.core.shard.same_sources import difference, spans_of
from tasks.core.shuffle.copies import codes

DEFAULT_DOCUMENTS: Final = 200


def draw(dataset: Opened, documents: int, seed: int) -> list[int]:
    """Numbers of parts, or of sources of a shuffled dataset, that have this many documents."""
    if dataset.manifest is None or dataset.tokenizer is None:
        return []
    counts = {source: held.documents for source, held in enumerate(dataset.sources)}
    if dataset.manifest.shuffled is None:
        counts = {part: record.documents_kept for part, record in dataset.records.items()}
    numbers = [*counts]
    random.Random(seed).shuffle(numbers)  # noqa: S311
    before = accumulate((counts[number] for number in numbers), initial=0)
    return [number for number, drawn in zip(numbers, before, strict=False) if drawn < documents]


class ListedDocuments:
    """The listed documents of a split; those of wanted sources get a hash of their ids.

    Args:
        documents: of the split, by `documents_of`.
        sources: the wanted ones.

    Attributes:
        lengths: tokens of all documents, without end-of-text ids.
    """

    def __init__(self, documents: pa.Table, sources: Ints) -> None:
        self.lengths: Ints = documents["tokens"].to_numpy()
        chosen = np.isin(documents["source"].to_numpy(), sources)
        self._wanted = documents.filter(pa.array(chosen))
        self._ends = np.cumsum(self.lengths + 1)[chosen]
        self._left = (self.lengths[chosen] + 1).tolist()
        self._starts = self._ends - self._left
        self._digests = [xxhash.xxh3_64() for _ in self._left]

    def see(self, ids: Ids, begin: int) -> None:
        """Take the ids of the next shard, the first of which is at `begin` of the stream."""
        first = int(np.searchsorted(self._ends, begin, side="right"))
        last = int(np.searchsorted(self._starts, begin + len(ids)))
        for number in range(first, last):
            start = max(int(self._starts[number]) - begin, 0)
            own = ids[start : int(self._ends[number]) - begin]
            self._digests[number].update(np.ascontiguousarray(own, "<u4").data)
            self._left[number] -= len(own)

    def wanted(self, part: int) -> pa.Table:
        """The wanted documents of a part with the hash of their ids; null if a shard is damaged."""
        pairs = zip(self._digests, self._left, strict=True)
        hashes = [None if left else digest.intdigest() for digest, left in pairs]
        documents = self._wanted.append_column("hash_of_ids", pa.array(hashes, pa.uint64()))
        return documents.append_column("part", pa.array(np.full(len(hashes), part)))


def compare_with_sources(
    numbers: Sequence[int],
    listed: pa.Table,
    dataset: Opened,
    *,
    hashes: KeptHashes | None,
    out: Outcome,
    progress: Progress,
    workers: int,
) -> None:
    """Make parts again by the reference, or sources of a shuffled dataset, and compare the result.

    Args:
        numbers: of the parts or sources.
        listed: their documents, see `PartFound`.
        dataset: that they are of.
        hashes: of texts, if copies were left out.
        out: gets the findings.
        progress: gets the bytes of sources.
        workers: threads.
    """

    def compare(comparison: _Comparison) -> Outcome:
        with comparison.out.about(*(each.source.url for each in comparison.spans)):
            comparison.run(progress)
        progress.done(comparison.size)
        return comparison.out

    comparisons = [_Comparison(dataset, number, listed, hashes) for number in numbers]
    progress.expect(sum(comparison.size for comparison in comparisons))
    with one_thread_each(), ThreadPoolExecutor(workers) as threads, progress:
        for found in threads.map(compare, comparisons):
            out.take(found)


class _Comparison:
    """Makes a part or a source again with the code that makes parts, and compares the result.

    Attributes:
        out: gets the findings.
        spans: of source files.
        size: bytes of these.
    """

    def __init__(
        self, dataset: Opened, number: int, listed: pa.Table, hashes: KeptHashes | None
    ) -> None:
        self._dataset, self._number, self._hashes = dataset, number, hashes
        self._listed = listed.filter(pc.equal(listed["source"], number)).sort_by("row")
        self._rows, self.out = self._listed["row"].to_numpy(), Outcome()
        self._seen = self._new = self._bytes_of_copies = 0
        self._record = dataset.records[number] if not dataset.sources else None
        if self._record is None:
            self._spec = next(iter(dataset.records.values())).spec
            self.spans = tuple(spans_of([dataset.sources[number]]))
            self._file, self._counted_in = self.spans[0].source.url, SOURCES_PATH
        else:
            self._spec, self.spans = self._record.spec, self._record.made_of
            self._file, self._counted_in = documents_path(number), record_path(number)
        spans = [each.span or (0, each.source.size) for each in self.spans]
        self.size = sum(end - begin for begin, end in spans)

    def run(self, progress: Progress) -> None:
        """Compare all rows of the sources.

        Raises:
            ShardmillError, OSError: a source is missing, changed, damaged or cannot be read.
        """
        tokenizer, spec = self._dataset.tokenizer, self._spec
        assert tokenizer is not None  # noqa: S101  (nothing is drawn without it)
        with new_folder() as folder:
            located = [self._local(each, folder) for each in self.spans]
            part = Part(self._number, tuple(span for span, _ in located))
            paths = [path for _, path in located]
            documents = PartDocuments(part, paths, spec.read_options, pinned=False)
            counts = tokenize_batches(
                documents,
                spec,
                tokenizer,
                IdsAsTheyAre() if spec.imported else ReferenceEngine(tokenizer),
                self._take,
                where=self._file,
                report=lambda *_: progress.done(0),
                audited=False,
            )
            self.out.unchecked.update(
                each.source.url
                for each, path in zip(self.spans, paths, strict=True)
                if came_unchecked(path)
            )
        self.out.sources.update(each.source.url for each in self.spans)
        self.out.count(source_rows=counts.rows)
        for source_span, found in zip(self.spans, documents.rows, strict=True):
            if source_span.rows != found:
                words = f"{source_span.rows} rows of {source_span.source.url}, it has {found}"
                self.out.found(self._counted_in, words)
        if self._record is not None:
            self._compare_counts(self._record, counts)

    def _take(self, tokens: Tokens) -> None:
        """Compare the documents of a batch with those that are listed of its rows."""
        spec, batch, rows = self._spec, tokens.batch, tokens.rows
        begin, end = np.searchsorted(self._rows, [self._seen, self._seen + batch.num_rows])
        self._seen += batch.num_rows
        own = self._rows[begin:end]
        known = np.isin(own, rows)
        self._new += len(rows) - int(known.sum())
        for row in own[~known] if spec.subset else np.setxor1d(own, rows):
            words = f"row {row} is not listed and has a text, or is listed and has none"
            self.out.found(self._file, words, kind="listed")
        listed = self._listed.slice(begin, end - begin).filter(pa.array(known))
        # at: (listed documents,), their positions among those that were made again
        at, copies = np.searchsorted(rows, own[known]), np.asarray(listed["first"].is_valid())
        if self._hashes is not None and tokens.digests is not None:
            self._compare_texts(self._hashes, listed, tokens.digests[tokens.kept][at])
        sizes = np.diff(text_buffers(batch.texts)[1])[tokens.kept]
        self._bytes_of_copies += int(sizes[at[copies]].sum())
        made = {
            "split": tokens.in_holdout.astype(np.int8),
            "tokens": tokens.lengths,
            "hash_of_ids": _hashes_of_ids(tokens),
        }
        if spec.shuffle is not None:
            made["place"] = batch.positions[tokens.kept]
        names = [f"{KEPT_PREFIX}{name}" for name in spec.keep_columns]
        made |= dict(zip(names, tokens.values, strict=True))
        stayed = listed.filter(pa.array(~copies))
        for name, column in made.items() if len(stayed) else ():
            self._compare(name, stayed, pa.array(column).take(pa.array(at[~copies])))
        compared = stayed.filter(stayed["hash_of_ids"].is_valid())["tokens"].to_numpy()
        self.out.count(retokenized=len(compared), retokenized_tokens=int((compared + 1).sum()))

    def _compare(self, name: str, listed: pa.Table, made: pa.Array) -> None:
        """Compare a column of documents with what was made again."""
        column = listed[name].combine_chunks()
        for index in differing(column, made):
            values = [each[index].as_py() for each in (column, made)]
            if name == "hash_of_ids" and values[0] is None:
                continue  # its shard is damaged
            if name == "split":
                values = [SPLITS[value] for value in values]
            row, part = (listed[of][index].as_py() for of in ("row", "part"))
            words = f"row {row}: {name} is {values[0]!r}, made again {values[1]!r}"
            self.out.found(documents_path(part), words, kind=name)

    def _compare_texts(self, known: KeptHashes, listed: pa.Table, hashes: Keys) -> None:
        """Compare hashes of texts with those that are kept, a copy's with those of its first."""
        rows, copies = listed["row"].to_numpy(), np.asarray(listed["first"].is_valid())
        own = codes(np.full(len(rows), self._number), rows)
        firsts = np.where(copies, listed["first"].fill_null(0).to_numpy(), own)
        for index in np.flatnonzero((known.look_up(firsts) != hashes).any(axis=1)):
            file, words = DIGESTS_FOLDER, "has another hash"
            if copies[index]:
                file = DUPLICATES_FOLDER
                words = f"is no copy of {shown(int(firsts[index]))} by their texts"
            self.out.found(file, f"row {rows[index]} {words}", kind="texts")
        self.out.count(compared=len(rows))

    def _compare_counts(self, record: PartRecord, made: Counts) -> None:
        """Compare what a record counts with what was made again."""
        subset = record.spec.subset is not None
        listed = {(one.file, one.row): one for one in record.bad_listed}  # words may change
        counts = {
            "rows": made.rows,
            "null_documents": made.null_documents,
            "empty_documents": made.empty_documents + (0 if subset else self._new),
            "unchosen_documents": self._new if subset else 0,
            "dropped_documents": {
                name: made.dropped_documents[name] for name in record.dropped_documents
            },
            "bad_documents": made.bad_documents,
            "bad_listed": tuple(listed.get((one.file, one.row), one) for one in made.bad_listed),
        }
        if not subset:
            counts["text_bytes"] = made.text_bytes - self._bytes_of_copies
        if words := differences(record, record.model_copy(update=counts)):
            self.out.found(self._counted_in, words)

    def _local(self, source_span: SpanRecord, folder: Path) -> tuple[SourceSpan, Path]:
        """The bytes that a span was made from; remote ones are fetched.

        Raises:
            CorruptDatasetError: the source holds other bytes now.
        """
        source, options = source_span.source, self._spec.read_options
        # The version of a source of a shuffled dataset is that of the complete file.
        span = source_span.span if self._spec.shuffle is None else None
        path = Path(source.url)
        if not is_remote(source.url):
            now = SourceFile(url=source.url, size=path.stat().st_size)
        elif options.ids is None:
            now = listed_again(source)
        else:
            (now,) = list_token_files([source.url], options.ids)
        made = source_span.model_copy(update={"span": span})
        if words := difference(SourceSpan(now, span), made, options):
            raise CorruptDatasetError(words)
        if now.remote:
            path = fetch(now, folder, options=None if span is None else options, span=span)[0]
        return SourceSpan(now, source_span.span), path


def _hashes_of_ids(tokens: Tokens) -> npt.NDArray[np.uint64]:
    """The hash of each document's ids, as `ListedDocuments` makes it, (documents,)."""
    stream, ends = tokens.stream.astype("<u4", copy=False), np.cumsum(tokens.lengths + 1).tolist()
    hashes = [
        xxhash.xxh3_64_intdigest(stream[begin:end].data) for begin, end in pairwise([0, *ends])
    ]
    return np.array(hashes, np.uint64)
