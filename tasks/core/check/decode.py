"""A dataset as text: the contents of samples, and a search for documents."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from streaming_ext.base.errors import CorruptDatasetError, UsageError, one_line
from streaming_ext.base.threads import mapped_ahead
from streaming_ext.format.layout import Split, index_path
from streaming_ext.format.manifest import Manifest, index_file
from streaming_ext.format.provenance import SourceRow
from streaming_ext.format.shard import TokenArray
from streaming_ext.store import Storage
from streaming_ext.text.tokenizer.tokenizer import Tokenizer
from tasks.core.reading.dataset_files import (
    DatasetFiles,
    naming,
    open_dataset,
    open_tokenizer,
)
from tasks.core.reading.documents import (
    DocumentBlock,
    Ids,
    PartOfDataset,
    read_shard,
)

_THREADS = 4  # per search: each holds an unpacked shard and its text


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpt:
    """The segment of a document that a sample holds.

    Attributes:
        text: the text; bytes that are not UTF-8 are replaced, and a character that the edge of the
            sample cuts is left out.
        tokens: the number of the document's ids in the sample, without the end-of-text id.
        begins, ends: True if the document's first token, or its end-of-text id, is in the sample.
        first_token: the position in the document of the first token.
        document_tokens: the number of ids of the whole document, without the end-of-text id.
        part: the number of the part that holds the document.
        source_row: the row of a source file that became the document.
    """

    text: str
    tokens: int
    begins: bool
    ends: bool
    first_token: int
    document_tokens: int
    part: int
    source_row: SourceRow


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedSample:
    """A sample as text; `shard` is its file, relative to the dataset's root."""

    split: Split
    sample: int
    shard: str
    sample_in_shard: int
    excerpts: tuple[Excerpt, ...]
    padding: int


def decode_samples(
    storage: Storage, split: Split, samples: Sequence[int], *, generation: str | None = None
) -> list[DecodedSample]:
    """Decode samples of a split, in the given order; only their shards are read.

    Args:
        storage: the storage of the dataset.
        split: the split of the samples.
        samples: the numbers of the samples.
        generation: the requested generation; see `open_dataset`.

    Raises:
        UsageError: there is no such split or sample.
        NotADatasetError: there is no published dataset.
        CorruptDatasetError: a file that is needed is missing or damaged.
    """
    files, manifest = _open(storage, split, generation)
    total = manifest.splits[split].samples
    for sample in samples:
        if not 0 <= sample < total:
            possible = f"in [0, {total})" if total else "none: the split is empty"
            raise UsageError(f"`sample` must be {possible} for {split} of {storage}, got {sample}.")
    tokenizer = open_tokenizer(files, manifest.spec)
    index = index_file(split, manifest.splits[split].index, files.sizes)
    with naming(files, index.path):
        table = manifest.spec.shard_format.table(files.read(index), where=index.path)
        # ends: (shards,), the number of samples up to the end of each shard
        ends, parts = np.cumsum(table.samples), [int(n.partition("/")[0]) for n in table.raw_names]
        wanted = np.unique(np.array(samples, np.int64)).tolist()
        shards = np.searchsorted(ends, wanted, side="right").tolist()
        begins, of_shards = ends - table.samples, [parts[shard] for shard in shards]
    decoded, opened = {}, None
    for sample, shard, part in zip(wanted, shards, of_shards, strict=True):
        first = parts.index(part)
        if opened is None or opened.part != part:
            opened = _Part(files, manifest, part, split, tokenizer)
        in_shard, in_part = sample - int(begins[shard]), sample - int(begins[first])
        decoded[sample] = opened.decode(sample, shard - first, in_shard, in_part)
    return [decoded[sample] for sample in samples]


class _Part:
    """A part whose samples are decoded in order."""

    def __init__(
        self, files: DatasetFiles, manifest: Manifest, part: int, split: Split, tokenizer: Tokenizer
    ) -> None:
        self.part, self._split, self._tokenizer = part, split, tokenizer
        opened = PartOfDataset(files.storage, manifest, part)
        self._files, self._record = opened.files, opened.record
        own, self._source_rows = opened.listed(split), opened.source_rows()
        self._rows, self._sources = own["row"].to_numpy(), own["source"].to_numpy()
        # ends: (documents,), the positions in the stream of the split after each end-of-text id
        self._ends = np.cumsum(own["tokens"].to_numpy() + 1)
        self._starts = self._ends - own["tokens"].to_numpy() - 1
        self._read: tuple[int, TokenArray] | None = None

    def decode(self, sample: int, number: int, in_shard: int, in_part: int) -> DecodedSample:
        """Decode a sample.

        Args:
            sample: the number of the sample in the split.
            number: the number of its shard in the part.
            in_shard: the number of the sample in the shard.
            in_part: the number of the sample in the part.
        """
        shards = self._record.splits[self._split].shards
        with naming(self._files, index_path(self._split)):
            path = f"{self._split}/{shards[number].name}"
        with naming(self._files, path):
            if self._read is None or self._read[0] != number:
                shard, spec = shards[number], self._record.spec
                self._read = number, read_shard(self._files, self._split, shard, spec)[0]
            ids = self._read[1][in_shard]
        first, after = in_part * len(ids), (in_part + 1) * len(ids)
        inside = np.flatnonzero((self._starts < after) & (self._ends > first))
        # expected: the positions of end-of-text ids in the sample; padding: those after the last
        expected = self._ends[inside] - 1 - first
        padding = np.arange(int(expected[-1]) + 1 if len(inside) else 0, len(ids))
        found = np.flatnonzero(ids == self._record.spec.tokenizer.eot_id)
        with naming(self._files, self._record.documents.path):
            if not np.array_equal(found, np.append(expected[expected < len(ids)], padding)):
                raise CorruptDatasetError(f"documents of sample {sample} end elsewhere")
        return DecodedSample(
            split=self._split,
            sample=sample,
            shard=path,
            sample_in_shard=in_shard,
            excerpts=tuple(self._excerpts(inside.tolist(), ids, first)),
            padding=len(padding),
        )

    def _excerpts(self, documents: list[int], ids: Ids, first: int) -> Iterator[Excerpt]:
        """Yield the excerpts of documents in a sample, which begins at `first` in the stream."""
        for document in documents:
            start, end = int(self._starts[document]) - first, int(self._ends[document]) - 1 - first
            own = ids[max(start, 0) : end].tolist()
            begins = self._tokenizer.bos_id is not None and start >= 0
            origin = self._source_rows.of(int(self._rows[document]), int(self._sources[document]))
            try:
                data = self._tokenizer.decode_bytes(own[begins:])
                text = decode_cut(data, cut_start=start < 0, cut_end=end >= len(ids))
            except Exception as error:  # noqa: BLE001 - libraries raise anything for unknown ids
                text = f"(ids that cannot be decoded: {one_line(error)})"
            yield Excerpt(
                text=text,
                tokens=len(own),
                begins=start >= 0,
                ends=end < len(ids),
                first_token=max(-start, 0),
                document_tokens=end - start,
                part=self.part,
                source_row=origin,
            )


def decode_cut(data: bytes, *, cut_start: bool, cut_end: bool) -> str:
    """Decode UTF-8, without a character that is cut at an edge where the text continues."""
    if cut_start:
        data = data[:3].lstrip(bytes(range(0x80, 0xC0))) + data[3:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(data, final=not cut_end)


def find_documents(
    storage: Storage, split: Split, text: str, *, is_all: bool, generation: str | None = None
) -> Iterator[SourceRow]:
    """Find the documents of a split that hold some words, or that have the ids of a text, in order.

    This reads all shards of the split.

    Args:
        storage: the storage of the dataset.
        split: the split to search.
        text: the exact words; with `is_all`, the whole text of the document.
        is_all: True if `text` is the whole text of the document.
        generation: the requested generation; see `DatasetFiles`.

    Raises:
        UsageError: there are no words, or there is no such split.
        NotADatasetError: there is no published dataset.
        TokenizerError: the dataset's tokenizer cannot be opened.
        CorruptDatasetError: a file is missing or damaged.
    """
    if not text and not is_all:
        raise UsageError("No words to look for were given.")
    files, manifest = _open(storage, split, generation)
    tokenizer = open_tokenizer(files, manifest.spec)
    words = text.encode(errors="surrogatepass")
    ids = np.array(tokenizer.encode(text) if is_all else [], np.int64)
    begins = tokenizer.bos_id is not None

    def matching(documents: DocumentBlock) -> Iterator[int]:
        """Yield the numbers of the matching documents of a block."""
        stream, ends = documents.stream, documents.ends - 1
        if is_all:
            for number in np.flatnonzero(documents.lengths == begins + len(ids) + 1).tolist():
                if np.array_equal(stream[ends[number] - len(ids) : ends[number]], ids):
                    yield number
            return
        # Most blocks hold no match. Other tokenizers decode an id by its neighbours, so a block
        # as a whole may give another text.
        if tokenizer.kind == "tiktoken" and words not in tokenizer.decode_bytes(stream.tolist()):
            return
        for number, found in enumerate(documents.texts(tokenizer)):
            if words in found:
                yield number

    def search(part: int) -> list[SourceRow]:
        opened = PartOfDataset(storage, manifest, part)
        return [
            origins.source_rows.of(int(origins.rows[number]), int(origins.sources[number]))
            for block in opened.documents(split, origins=True)
            if (origins := block.origins) is not None
            for number in matching(block)
        ]

    found = mapped_ahead(search, range(len(manifest.parts)), threads=_THREADS)
    return chain.from_iterable(found)


def _open(storage: Storage, split: Split, generation: str | None) -> tuple[DatasetFiles, Manifest]:
    files, manifest = open_dataset(storage, generation=generation)
    if split not in manifest.splits:
        raise UsageError(f"{storage} has no split {split!r}; it has {', '.join(manifest.splits)}.")
    return files, manifest
