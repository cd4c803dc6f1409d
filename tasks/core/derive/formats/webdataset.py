"""The WebDataset format: tar files of samples; each is the ids of a row or document as `.npy`.

There are also files for Energon (an index of each tar, `.nv-meta`) and for `wids` (a list of the
tars of a split).
"""

import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import ClassVar

import numpy as np

from streaming_ext.base.arrays import ceil_div
from streaming_ext.format.layout import Split
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.format.webdataset import BLOCK, END, NPY_HEAD, member, npy
from tasks.core.derive.export_format import (
    ExportFiles,
    ExportFormat,
    ExportOptions,
    Extent,
    Extents,
    Made,
    PartPosition,
)
from tasks.core.reading.documents import DocumentBlock, DocumentOrigins, Ids

_DEFAULT_BYTES = 128 * 2**20
_MOST_OF_ENERGON = 10_000  # tars
_PARTS_OF_ENERGON: dict[Split, str] = {"train": "train", "holdout": "val"}


class WebdatasetExport(ExportFormat):
    """Tars of each part, numbered over all parts, and lists of them."""

    name = "webdataset"
    made_with: ClassVar = {"python": ".".join(platform.python_version_tuple()[:2])}  # its tarfile

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        super().__init__(spec, options, totals)
        self._documents_are_samples = options.rows == "documents"
        # A row may hold several documents, so it has no single source.
        own = "provenance" if self._documents_are_samples else "sequence_length"
        self.takes, self.needs_origins = ("rows", own, "max_file_size"), options.provenance
        self._length = options.sequence_length or spec.sequence_length
        self._most = self._samples_per_tar()

    @property
    def file_sizes(self) -> tuple[int, int]:
        """The least size holds one sample, if samples have a fixed number of tokens."""
        least, most = super().file_sizes
        if self._documents_are_samples:
            return least, most
        return self._sample_bytes(self._length) + len(END), most

    def files_of(self, documents: int, tokens: int) -> int:
        """Return the number of tars that the samples fill."""
        samples = documents if self._documents_are_samples else ceil_div(tokens, self._length)
        return ceil_div(samples, self._most)

    def _sample_bytes(self, tokens: int) -> int:
        content = NPY_HEAD + tokens * self.dtype.itemsize
        return BLOCK + content + -content % BLOCK

    def _samples_per_tar(self) -> int:
        """Return the samples per tar; if these are documents, as many as fill a tar on average."""
        length = self._length
        if self._documents_are_samples:
            total = sum(self.totals.values(), Extent())
            length = total.tokens // max(total.documents, 1)
        room = (self.options.max_file_size or _DEFAULT_BYTES) - len(END)
        origin = 2 * BLOCK if self.needs_origins else 0  # a head, and a line of JSON
        return max(room // (self._sample_bytes(length) + origin), 1)

    def write(
        self, position: PartPosition, documents: Iterable[DocumentBlock], out: ExportFiles
    ) -> None:
        """Write a part's tars."""
        split, number = position.split, position.before.files
        if self._documents_are_samples:
            samples = _documents(f"{split}-", position.before.documents, documents)
        else:  # begins with a number that no earlier part has reached
            samples = self._rows(f"{split}-", number * self._most, documents)
        for first in samples:
            path, tokens, begins = f"{split}/{split}-{number:06}.tar", 0, []
            with out.file(path) as tar:
                for sample, length in chain([first], islice(samples, self._most - 1)):
                    begins.append(tar.size)
                    tar.write(sample)
                    tokens += length
                index = np.array([*begins, tar.size], "<u8")
                tar.write(END)
            out.put(f"{path}.idx", index)
            out.made.append(Made(path=path, samples=len(begins), tokens=tokens, size=tar.size))
            number += 1

    def _rows(
        self, prefix: str, number: int, documents: Iterable[DocumentBlock]
    ) -> Iterator[tuple[bytes, int]]:
        """Yield rows of equal length; a part's last row is filled up with end-of-text ids."""
        length, eot = self._length, self.spec.tokenizer.eot_id
        rest = np.empty(0, self.dtype)

        def rows() -> Iterator[Ids]:
            nonlocal rest
            for block in documents:
                stream = np.concatenate([rest, block.stream])
                end = len(stream) - len(stream) % length
                yield from stream[:end].reshape(-1, length)
                rest = stream[end:]
            if len(rest):
                yield np.append(rest, np.full(length - len(rest), eot, self.dtype))

        for key, row in enumerate(rows(), number):
            yield member(f"{prefix}{key:012}.npy", npy(row)), length

    def finish(self, made: Mapping[Split, Sequence[Made]], out: ExportFiles) -> None:
        """Write the lists of tars."""
        for split, files in made.items():
            tars = [
                {
                    "url": file.path.rpartition("/")[2],
                    "nsamples": file.samples,
                    "filesize": file.size,
                }
                for file in files
            ]
            index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": split}
            _put(out, f"{split}/index.json", index | {"shardlist": tars})
        counts = {file.path: file.samples for files in made.values() for file in files}
        if len(counts) >= _MOST_OF_ENERGON:
            return
        _put(out, ".nv-meta/.info.json", {"energon_version": "7.0.0", "shard_counts": counts})
        parts = {
            name: [file.path for file in made.get(split, ())]
            for split, name in _PARTS_OF_ENERGON.items()
        }
        # JSON is valid YAML.
        _put(out, ".nv-meta/split.yaml", {"split_parts": {**parts, "test": []}, "exclude": []})
        kind = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
        _put(out, ".nv-meta/dataset.yaml", kind)


def _put(out: ExportFiles, path: str, value: object) -> None:
    out.put(path, (json.dumps(value, indent=1) + "\n").encode())


def _documents(
    prefix: str, number: int, documents: Iterable[DocumentBlock]
) -> Iterator[tuple[bytes, int]]:
    """Yield documents as samples, with the end-of-text id, and the origin in `.json` if known."""
    for block in documents:
        origins = iter(() if block.origins is None else _origins(block.origins))
        for ids in np.split(block.stream, block.ends[:-1]):
            key, number = f"{prefix}{number:012}", number + 1
            sample = member(f"{key}.npy", npy(ids))
            for origin in islice(origins, 1):
                sample += member(f"{key}.json", origin)
            yield sample, len(ids)


def _origins(origins: DocumentOrigins) -> Iterator[bytes]:
    """Yield origins as `{"source": URL, "row": N}`, with `from_byte` if rows count from there."""
    files = origins.source_rows.files
    numbers, rows = origins.source_rows.numbered(origins.rows, origins.sources)
    for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
        url, first = files[number]
        begin = {"from_byte": first} if first else {}
        yield json.dumps({"source": url, **begin, "row": row}, ensure_ascii=False).encode()
