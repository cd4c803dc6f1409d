"""`--deep`: parts, or sources of a shuffled dataset, are made again by the reference and compared.

If the record of a part that is made again is the same, nothing else is compared. If it differs,
perhaps due to other versions of libraries, documents are compared one by one, to name the first
that differ. Documents are also compared one by one in parts that left some out, as copies or for a
subset, and in sources of a shuffled dataset, whose documents lie in all parts.
"""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from streaming_ext.base.arrays import Ints
from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.duplicates import (
    NearDuplicates,
    codes,
    duplicates_path,
    fixed_binary,
    fixed_bytes,
)
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
from streaming_ext.format.schema import FileRecord, to_json
from streaming_ext.format.shuffled import SOURCES_PATH, Keys
from streaming_ext.store.scratch import new_folder
from streaming_ext.text.documents.columns import differing, untyped_if_null
from streaming_ext.text.documents.text_array import text_buffers
from streaming_ext.text.fetch import came_unchecked, fetch
from streaming_ext.text.listing import listed_again
from streaming_ext.text.parts import Part, SourceSpan
from streaming_ext.text.sketches import num_matches
from streaming_ext.text.sources import SourceFile, is_remote
from streaming_ext.text.token_sets.token_set import IdsAsTheyAre
from streaming_ext.text.tokenizer.engine import ReferenceEngine
from streaming_ext.text.tokenizer.json_file import one_thread_each
from streaming_ext.writing.part_documents import PartDocuments
from streaming_ext.writing.part_files import PartFiles, Tokens
from streaming_ext.writing.tokenize import Counts, tokenize_batches
from tasks.core.check.copies import KeptHashes, shown
from tasks.core.check.findings import Outcome, Progress, differences
from tasks.core.check.manifest import Opened
from tasks.core.reading.documents import (
    Ids,
    PartOfDataset,
    document_codes,
    duplicates_of,
    listed_documents,
)
from tasks.core.shard.sources import difference, list_token_files, spans_of
from tasks.core.shuffle.sort import sketched


def draw(dataset: Opened, manifest: Manifest, documents: int, seed: int) -> list[int]:
    """Draw parts, or sources of a shuffled dataset, with at least this many documents in total."""
    if dataset.tokenizer is None:
        return []
    counts = {source: held.documents for source, held in enumerate(dataset.sources)}
    if manifest.shuffled is None:
        counts = {part: record.documents_kept for part, record in dataset.records.items()}
    numbers = [*counts]
    random.Random(seed).shuffle(numbers)  # noqa: S311
    before = accumulate((counts[number] for number in numbers), initial=0)
    return [number for number, drawn in zip(numbers, before, strict=False) if drawn < documents]


def compare_with_sources(
    numbers: Sequence[int],
    dataset: Opened,
    manifest: Manifest,
    *,
    out: Outcome,
    progress: Progress,
    workers: int,
) -> None:
    """Make parts, or sources of a shuffled dataset, again by the reference, and compare them.

    Args:
        numbers: the numbers of the parts or sources.
        dataset: the dataset, whose lists are sound.
        manifest: the manifest of the dataset.
        out: gets the findings.
        progress: gets the bytes of sources.
        workers: the number of threads.
    """

    def held_in(record: PartRecord) -> pa.Table:
        progress.done(0)
        return _held(dataset, manifest, record, np.array(numbers, np.int64))

    def compare(number: int) -> Outcome:
        comparison = _Comparison(dataset, manifest, number, held, hashes)
        with comparison.out.about(*(each.source.url for each in comparison.spans)):
            comparison.run(progress)
        progress.done(_size(comparison.spans))
        return comparison.out

    progress.expect(sum(_size(_spans(dataset, number)) for number in numbers))
    held = hashes = None
    with one_thread_each(), ThreadPoolExecutor(workers) as threads, progress:
        if numbers and (dataset.sources or manifest.spec.lists_copies):
            parts = dataset.records if dataset.sources else numbers
            tables = threads.map(held_in, [dataset.records[part] for part in parts])
            held = pa.concat_tables(tables, promote_options="permissive")
            if manifest.spec.lists_copies:
                named = np.union1d(document_codes(held), held["first"].drop_null().to_numpy())
                hashes = KeptHashes.read(manifest, dataset.files, named)
        for found in threads.map(compare, numbers):
            out.take(found)


def _spans(dataset: Opened, number: int) -> tuple[SpanRecord, ...]:
    """Return the spans that a part, or a source of a shuffled dataset, was made of."""
    if dataset.sources:
        return tuple(spans_of([dataset.sources[number]]))
    return dataset.records[number].made_of


def _size(spans: Sequence[SpanRecord]) -> int:
    """Return the size of some spans, in bytes."""
    sizes = (each.span or (0, each.source.size) for each in spans)
    return sum(end - begin for begin, end in sizes)


def _held(dataset: Opened, manifest: Manifest, record: PartRecord, wanted: Ints) -> pa.Table:
    """Return the documents and copies that a part lists, of itself or of some sources.

    A copy has the code of its `first` copy in place of a hash of its ids.
    """
    part = PartOfDataset(dataset.files.storage, manifest, record.part)
    listed = listed_documents(part.files, record, values=True)
    chosen = np.isin(listed["source"].to_numpy(), wanted)
    hashes = np.zeros(len(listed), np.uint64)
    for at, block in part.blocks(listed):
        hashes[at] = _hashes_of_ids(block.stream, block.ends, chosen[at])
    listed = listed.append_column("hash_of_ids", pa.array(hashes))
    documents = listed.filter(pa.array(chosen))
    found = duplicates_of(part.files, record)
    of_copies = np.isin(found.groups, wanted)
    columns: dict[str, npt.NDArray[Any]] = {
        "source": found.groups,
        "row": found.rows,
        "tokens": found.tokens,
        "first": codes(found.first_groups, found.first_rows),
    }
    if isinstance(found, NearDuplicates):
        columns["similarity"] = found.similarities
    copies = pa.table({name: column[of_copies] for name, column in columns.items()})
    both = pa.concat_tables([documents, copies], promote_options="permissive")
    return both.append_column("part", pa.array(np.full(len(both), record.part)))


def _hashes_of_ids(stream: Ids, ends: Ints, chosen: npt.NDArray[np.bool_] | None = None) -> Keys:
    """Return the hash of the ids of each document, or of each chosen one, (documents,).

    Args:
        stream: the ids, with an end-of-text id after each document, (tokens,).
        ends: the end of each document in the stream, (documents,).
        chosen: the flags of the wanted documents, (documents,); others get 0.
    """
    stream, begins = stream.astype("<u4", copy=False), np.append(0, ends[:-1])
    hashes = np.zeros(len(ends), np.uint64)
    for number in np.flatnonzero(np.ones(len(ends)) if chosen is None else chosen):
        own = stream[begins[number] : ends[number]]
        hashes[number] = xxhash.xxh3_64_intdigest(np.ascontiguousarray(own).data)
    return hashes


class _Comparison:
    """A comparison of a part or source with the result of making it again by the same code.

    Args:
        dataset: the dataset.
        manifest: the manifest of the dataset.
        number: the number of the part or source.
        held: the documents and copies that the dataset holds, of this and other numbers; None if
            a part may be compared by its record.
        hashes: the hashes of texts, if copies were left out.

    Attributes:
        out: gets the findings.
        spans: the spans of the source files.
    """

    def __init__(
        self,
        dataset: Opened,
        manifest: Manifest,
        number: int,
        held: pa.Table | None,
        hashes: KeptHashes | None,
    ) -> None:
        self._dataset, self._manifest, self._number = dataset, manifest, number
        self._held, self._hashes = held, hashes
        self._record = None if dataset.sources else dataset.records[number]
        record = self._record or next(iter(dataset.records.values()))
        self._spec, self.spans, self.out = record.spec, _spans(dataset, number), Outcome()
        self._counted_in = SOURCES_PATH if self._record is None else record_path(number)
        self._files: PartFiles | None = None
        self._made: list[pa.Table] = []

    def run(self, progress: Progress) -> None:
        """Make the part or source again, and compare it.

        Raises:
            ShardmillError, OSError: a source is missing, changed, damaged or cannot be read.
        """
        tokenizer, spec, record = self._dataset.tokenizer, self._spec, self._record
        assert tokenizer is not None  # noqa: S101  (nothing is drawn without it)
        with new_folder() as folder:
            located = [self._local(each, folder) for each in self.spans]
            paths = [path for _, path in located]
            part = Part(self._number, tuple(span for span, _ in located))
            documents = PartDocuments(part, paths, spec.read_options, pinned=False)
            if self._held is None and spec.subset is None:
                self._files = PartFiles(folder / "made", self._number, spec, {})
            counts = tokenize_batches(
                documents,
                spec,
                tokenizer,
                IdsAsTheyAre() if spec.imported else ReferenceEngine(tokenizer),
                self._take,
                report=lambda *_: progress.done(0),
                audited=False,
            )
            for each, path in zip(self.spans, paths, strict=True):
                self.out.sources.add(each.source.url)
                if came_unchecked(path):
                    self.out.unchecked.add(each.source.url)
            is_same = record is not None and self._has_same_hash(record, counts, folder / "made")
        self.out.count(source_rows=counts.rows)
        for source_span, found in zip(self.spans, documents.rows, strict=True):
            if source_span.rows != found:
                words = f"{source_span.rows} rows of {source_span.source.url}, it has {found}"
                self.out.found(self._counted_in, words)
        if record is not None and is_same:
            self.out.count(retokenized=record.documents_kept, retokenized_tokens=record.tokens_kept)
        else:
            self._compare_documents(counts)

    def _take(self, tokens: Tokens) -> None:
        """Note the documents of a batch; pack them into shards if the record is compared."""
        if self._files is not None:
            self._files.add(tokens)
        made: dict[str, Any] = {
            "row": tokens.rows,
            "split": tokens.in_holdout.astype(np.int8),
            "tokens": tokens.lengths,
            "hash_of_ids": _hashes_of_ids(tokens.stream, np.cumsum(tokens.lengths + 1)),
            "place": tokens.batch.positions[tokens.kept],
            "text_bytes": np.diff(text_buffers(tokens.batch.texts)[1])[tokens.kept],
        }
        if tokens.digests is not None:
            made["high"], made["low"] = tokens.digests[tokens.kept].T
        if (near := self._spec.listed_near) is not None:
            found = [np.empty((0, near.bins), np.uint8), *sketched(tokens, self._spec)]
            made["sketch"] = fixed_binary(np.concatenate(found))
        names = [f"{KEPT_PREFIX}{name}" for name in self._spec.source_columns]
        made |= dict(zip(names, map(untyped_if_null, tokens.values), strict=True))
        self._made.append(pa.table(made))

    def _has_same_hash(self, record: PartRecord, counts: Counts, folder: Path) -> bool:
        """Return whether the record of the part has the same bytes when it is made again."""
        if self._files is None:
            return False
        made = _counts_of(record, counts)
        made["splits"] = self._files.finish()
        path = documents_path(record.part)
        made["documents"] = FileRecord.of(path, (folder / path).read_bytes())
        return to_json(record.model_copy(update=made)) == to_json(record)

    def _compare_documents(self, counts: Counts) -> None:
        """Compare document by document, and then the counts."""
        held, record, spec = self._held, self._record, self._spec
        if held is None:
            assert record is not None  # noqa: S101  (`held` is given for sources)
            held = _held(self._dataset, self._manifest, record, np.array([self._number]))
        held = held.filter(pc.equal(held["source"], self._number)).sort_by("row")
        none = held.slice(0, 0).append_column("text_bytes", pa.array([], pa.int64()))
        made = pa.concat_tables(self._made or [none], promote_options="permissive").combine_chunks()
        rows, own = made["row"].to_numpy(), held["row"].to_numpy()
        file = documents_path(self._number) if record else self.spans[0].source.url
        for row in np.setdiff1d(own, rows) if spec.subset else np.setxor1d(own, rows):
            words = f"row {row} is not listed and has a text, or is listed and has none"
            self.out.found(file, words, kind="listed")
        held = held.filter(pa.array(np.isin(own, rows)))
        again = made.take(pa.array(np.searchsorted(rows, held["row"].to_numpy())))
        if self._hashes is not None and len(held):
            self._compare_texts(self._hashes, held, again)
        is_copy = held["first"].is_valid()
        copied = pc.sum(again["text_bytes"].filter(is_copy)).as_py() or 0
        copies = [table.filter(is_copy) for table in (held, again)]
        self._compare("tokens", *copies, listed_in=duplicates_path)
        held, again = (table.filter(pc.invert(is_copy)) for table in (held, again))
        names = ["split", "tokens", "hash_of_ids", *(["place"] if spec.shuffle else [])]
        for name in (*names, *(f"{KEPT_PREFIX}{name}" for name in spec.source_columns)):
            self._compare(name, held, again, listed_in=documents_path)
        tokens = held["tokens"].to_numpy() + 1
        self.out.count(retokenized=len(tokens), retokenized_tokens=int(tokens.sum()))
        if record is None:
            return
        left_out = len(np.setdiff1d(rows, own))
        again_counts = _counts_of(record, counts, left_out=left_out, copied_bytes=copied)
        if words := differences(record, record.model_copy(update=again_counts)):
            self.out.found(self._counted_in, words)

    def _compare(
        self, name: str, held: pa.Table, made: pa.Table, *, listed_in: Callable[[int], str]
    ) -> None:
        """Compare a column of the documents, which a file of each part lists."""
        columns = [table[name].combine_chunks() for table in (held, made)]
        if columns[0].equals(columns[1]):
            return
        for index in differing(*columns):
            values = [each[index].as_py() for each in columns]
            if name == "split":
                values = [SPLITS[value] for value in values]
            row, part = (held[of][index].as_py() for of in ("row", "part"))
            words = f"row {row}: {name} is {values[0]!r}, made again {values[1]!r}"
            self.out.found(listed_in(part), words, kind=name)

    def _compare_texts(self, known: KeptHashes, held: pa.Table, made: pa.Table) -> None:
        """Compare hashes of texts with the kept hashes; a copy's with its first copy's."""
        rows, is_copy = held["row"].to_numpy(), held["first"].is_valid().to_numpy()
        own = codes(np.full(len(rows), self._number), rows)
        firsts = np.where(is_copy, held["first"].fill_null(0).to_numpy(), own)
        near, kept = self._spec.listed_near, known.look_up(firsts)
        if near is None:
            hashes = np.stack([made["high"].to_numpy(), made["low"].to_numpy()], axis=1)
            differs = (kept != hashes).any(axis=1)
        else:
            sketches = fixed_bytes(made["sketch"].combine_chunks())
            found = near.similarity_of(num_matches(kept, sketches))
            differs = found != held["similarity"].fill_null(1).to_numpy()
        for index in np.flatnonzero(differs):
            file, words = DIGESTS_FOLDER, f"has another {'hash' if near is None else 'sketch'}"
            if is_copy[index]:
                file = DUPLICATES_FOLDER
                words = f"is no copy of {shown(int(firsts[index]))} by their texts"
                if near is not None:
                    words = f"has similarity {found[index]:.3f} to {shown(int(firsts[index]))}"
            self.out.found(file, f"row {rows[index]} {words}", kind="texts")
        self.out.count(compared=len(rows))

    def _local(self, source_span: SpanRecord, folder: Path) -> tuple[SourceSpan, Path]:
        """Locate the file of a span, and fetch it if it is remote; return the span and the path.

        Raises:
            CorruptDatasetError: the source holds other bytes now.
        """
        source, options = source_span.source, self._spec.read_options
        # In a shuffled dataset, the version of a source is that of the complete file.
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


def _counts_of(
    record: PartRecord, made: Counts, *, left_out: int = 0, copied_bytes: int = 0
) -> dict[str, Any]:
    """Return the counts of a record, made again.

    Args:
        record: the record.
        made: the counts of the documents that were made again.
        left_out: the number of documents that the part does not list.
        copied_bytes: the bytes of texts that the part left out as copies.
    """
    listed = {(one.file, one.row): one for one in record.bad_listed}  # messages may change
    counts: dict[str, Any] = {
        "rows": made.rows,
        "null_documents": made.null_documents,
        "empty_documents": made.empty_documents,
        "dropped_documents": {
            name: made.dropped_documents[name] for name in record.dropped_documents
        },
        "marked_documents": made.marked_documents,
        "evaluation_texts": dict(made.evaluation_texts),
        "bad_documents": made.bad_documents,
        "bad_listed": tuple(listed.get((one.file, one.row), one) for one in made.bad_listed),
    }
    if record.spec.subset is not None:
        return counts | {"unchosen_documents": left_out}
    counts["empty_documents"] += left_out
    return counts | {"text_bytes": made.text_bytes - copied_bytes}
