"""WebDataset: tar files of samples, each the ids of a row, or of a document, as `.npy`.

Beside them lie what Energon wants to find (an index of each tar, `.nv-meta`) and what `wids` does
(a list of the tars of a split).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming_ext.dataset.layout import Split
from streaming_ext.dataset.spec import DatasetSpec
from streaming_ext.errors import UsageError
from tasks.core.exports.containers import tar
from tasks.core.exports.containers.npy_rows import NpyRows
from tasks.core.exports.contract import (
    Buffer,
    ExportOptions,
    Extent,
    Extents,
    Made,
    Out,
    Place,
    SplitExporter,
)
from tasks.core.exports.formats.asked import require_only
from tasks.core.reading.shard_tokens import Ids
from tasks.core.reading.whole_documents import Documents, Ints, Origins

_USUAL_BYTES = 128 * 2**20
_MOST_OF_ENERGON = 10_000  # tars
_PARTS_OF_ENERGON: dict[Split, str] = {"train": "train", "holdout": "val"}


class WebdatasetFormat:
    """See `ExportFormat`."""

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self._spec, self._options, self._totals = spec, options, totals
        self._length = options.sequence_length or spec.sequence_length
        self._itemsize = np.dtype(spec.dtype).itemsize

    @property
    def tells_origins(self) -> bool:
        """Where that is asked for."""
        return self._options.provenance

    def require_possible(self) -> None:
        """Refuse to tell of rows, which hold several documents, where they come from."""
        if self._options.rows == "documents":
            require_only(
                "webdataset --rows documents", self._options, "rows", "provenance", "max_file_size"
            )
        else:
            require_only("webdataset", self._options, "rows", "sequence_length", "max_file_size")
            size = self._options.max_file_size
            if size is not None and size < self._samples_bytes(self._length) + len(tar.END):
                raise UsageError(
                    f"--max-file-size {size:,} bytes holds no sample of {self._length:,} tokens."
                )

    def files_of(self, own: Extent) -> int:
        """As many tars as its samples fill."""
        return -(-self._samples(own) // self._samples_a_tar())

    def _samples(self, own: Extent) -> int:
        return (
            own.documents if self._options.rows == "documents" else -(-own.tokens // self._length)
        )

    def _samples_bytes(self, tokens: int) -> int:
        content = tar.NPY_HEAD + tokens * self._itemsize
        return tar.BLOCK + content + -content % tar.BLOCK

    def _samples_a_tar(self) -> int:
        """Of documents as many as fill a tar where they are as long as all are on average."""
        length = self._length
        if self._options.rows == "documents":
            documents = sum(total.documents for total in self._totals.values())
            length = sum(total.tokens for total in self._totals.values()) // max(documents, 1)
        room = (self._options.max_file_size or _USUAL_BYTES) - len(tar.END)
        told = 2 * tar.BLOCK if self._options.provenance else 0  # a head, and a line of JSON
        return max(room // (self._samples_bytes(length) + told), 1)

    def shared(self) -> Mapping[str, int]:
        """None."""
        return {}

    def open(self, place: Place, out: Out) -> SplitExporter:
        """Begin a part's first tar."""
        tars = _Tars(place, out, self._samples_a_tar())
        if self._options.rows == "documents":
            return _Documents(tars, place)
        return _Rows(tars, place, self._length, self._spec)

    def finish(self, made: Mapping[Split, Sequence[Made]], out: Out) -> None:
        """Write the lists of tars."""
        tars = {
            split: [file for file in files if file.path.endswith(".tar")]
            for split, files in made.items()
        }
        for split, files in tars.items():
            listed = {
                "__kind__": "wids-shard-index-v1",
                "wids_version": 1,
                "name": split,
                "shardlist": [
                    {
                        "url": file.path.rpartition("/")[2],
                        "nsamples": file.samples,
                        "filesize": file.size,
                    }
                    for file in files
                ],
            }
            _write(out, f"{split}/index.json", listed)
        if sum(map(len, tars.values())) >= _MOST_OF_ENERGON:
            return
        counts = {file.path: file.samples for files in tars.values() for file in files}
        _write(out, ".nv-meta/.info.json", {"energon_version": "7.0.0", "shard_counts": counts})
        parts = {
            name: [file.path for file in tars.get(split, ())]
            for split, name in _PARTS_OF_ENERGON.items()
        }
        # JSON is YAML too.
        _write(out, ".nv-meta/split.yaml", {"split_parts": {**parts, "test": []}, "exclude": []})
        kind = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
        _write(out, ".nv-meta/dataset.yaml", kind)


def _write(out: Out, path: str, value: object) -> None:
    sink = out.file(path)
    sink.write((json.dumps(value, indent=1) + "\n").encode())
    sink.close()


class _Tars:
    """The tars of a part's split, filled with `most` samples each."""

    def __init__(self, place: Place, out: Out, most: int) -> None:
        self._place, self._out, self.most = place, out, most
        self._made: list[Made] = []
        self._held = self._tokens = 0
        self._places: list[Ints] = []

    def room(self) -> int:
        """Samples that the tar in hand still takes."""
        return self.most - self._held

    def add(self, content: Iterable[Buffer], sizes: Ints, tokens: int) -> None:
        """Append samples, as many as there is room for at most.

        Args:
            content: their bytes, in pieces.
            sizes: of each, (samples,).
            tokens: in all of them.
        """
        if not self._held:
            number = self._place.before.files + len(self._made)
            self._path = f"{self._place.split}/{self._place.split}-{number:06}.tar"
            self._sink, self._size = self._out.file(self._path), 0
        self._places.append(self._size + np.cumsum(sizes) - sizes)
        for piece in content:
            self._sink.write(piece)
        self._size += int(sizes.sum())
        self._held += len(sizes)
        self._tokens += tokens
        if self._held == self.most:
            self.end()

    def end(self) -> list[Made]:
        """End the tar in hand; returns all tars."""
        if self._held:
            self._sink.write(tar.END)
            self._sink.close()
            index = self._out.file(f"{self._path}.idx")
            index.write(np.concatenate([*self._places, [self._size]]).astype("<u8"))
            index.close()
            self._made.append(
                Made(
                    path=self._path,
                    samples=self._held,
                    tokens=self._tokens,
                    size=self._size + len(tar.END),
                )
            )
            self._held = self._tokens = 0
            self._places = []
        return self._made


class _Rows:
    """Rows of one length; the last one of a part is filled up with end-of-text ids."""

    def __init__(self, tars: _Tars, place: Place, length: int, spec: DatasetSpec) -> None:
        self._tars, self._length, self._eot = tars, length, spec.tokenizer.eot_id
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        self._rows = NpyRows(f"{place.split}-", length, self._dtype)
        self._next = place.before.files * tars.most  # so that no two samples have one number
        self._rest = np.empty(0, self._dtype)  # of a row

    def add(self, documents: Documents) -> None:
        stream = documents.stream
        if len(self._rest):
            more = self._length - len(self._rest)
            self._rest, stream = np.concatenate([self._rest, stream[:more]]), stream[more:]
            if len(self._rest) < self._length:
                return
            self._write(self._rest)
        whole = len(stream) - len(stream) % self._length
        self._write(stream[:whole])
        self._rest = stream[whole:].copy()

    def _write(self, stream: Ids) -> None:
        rows = len(stream) // self._length
        done = 0
        while done < rows:
            count = min(self._tars.room(), rows - done)
            ids = stream[done * self._length : (done + count) * self._length]
            sizes = np.full(count, self._rows.size)
            self._tars.add(self._rows.members(self._next, ids), sizes, len(ids))
            self._next += count
            done += count

    def finish(self) -> list[Made]:
        if len(self._rest):
            last = np.full(self._length, self._eot, self._dtype)
            last[: len(self._rest)] = self._rest
            self._write(last)
        return self._tars.end()


@dataclass(frozen=True, slots=True)
class _Some:
    """Documents that go into one tar."""

    ids: Ids
    ends: Ints
    origins: Origins | None


class _Documents:
    """A document a sample, its end-of-text id with it; where it comes from in `.json`."""

    def __init__(self, tars: _Tars, place: Place) -> None:
        self._tars, self._split = tars, place.split
        self._next = place.before.documents

    def add(self, documents: Documents) -> None:
        for some in self._cut(documents):
            numbers = self._next + np.arange(len(some.ends))
            prefix = f"{self._split}-"
            parts = [tar.members(prefix, numbers, ".npy", tar.npy_files(some.ids, some.ends))]
            if some.origins is not None:
                parts.append(tar.members(prefix, numbers, ".json", _told(some.origins)))
            samples = tar.joined(parts)
            sizes = np.asarray(pc.binary_length(samples))
            self._tars.add([tar.content_of(samples)], sizes, len(some.ids))
            self._next += len(some.ends)

    def _cut(self, documents: Documents) -> Iterator[_Some]:
        ends, first = documents.ends, 0
        while first < len(ends):
            last = min(first + self._tars.room(), len(ends))
            begin = int(ends[first - 1]) if first else 0
            told = documents.origins
            yield _Some(
                documents.stream[begin : int(ends[last - 1])],
                ends[first:last] - begin,
                told and Origins(told.places, told.sources[first:last], told.rows[first:last]),
            )
            first = last

    def finish(self) -> list[Made]:
        return self._tars.end()


def _told(origins: Origins) -> pa.LargeBinaryArray:
    """`{"source": URL, "row": N}` of each document, `from_byte` where rows count from it."""
    numbers, rows = origins.places.numbered(origins.rows, origins.sources)
    begun = [
        json.dumps({"source": url} | ({"from_byte": first} if first else {}), ensure_ascii=False)
        for url, first in origins.places.files()
    ]
    sources = pa.array([text.removesuffix("}") for text in begun], pa.large_string())
    row = pa.array(rows).cast(pa.large_string())
    texts = pc.binary_join_element_wise(
        sources.take(pa.array(numbers)), pa.scalar(', "row": ', pa.large_string()), row,
        pa.scalar("}", pa.large_string()), pa.scalar("", pa.large_string()),
    )  # fmt: skip
    return texts.cast(pa.large_binary())
