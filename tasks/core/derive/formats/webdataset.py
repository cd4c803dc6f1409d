"""WebDataset: tar files of samples, each the ids of a row, or of a document, as `.npy`.

Beside them lie what Energon wants to find (an index of each tar, `.nv-meta`) and what `wids` does
(a list of the tars of a split).
"""

import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.format.webdataset import BLOCK, NPY_HEAD
from streaming_ext.writing.webdataset import END, member, npy
from tasks.core.derive.export_format import (
    ExportOptions,
    Extent,
    Extents,
    Made,
    Out,
    Place,
    SplitExporter,
)
from tasks.core.derive.formats.asked import require_only
from tasks.core.reading.documents import Documents, Ids, Origins

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
            if size is not None and size < self._samples_bytes(self._length) + len(END):
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
        content = NPY_HEAD + tokens * self._itemsize
        return BLOCK + content + -content % BLOCK

    def _samples_a_tar(self) -> int:
        """Of documents as many as fill a tar where they are as long as all are on average."""
        length = self._length
        if self._options.rows == "documents":
            documents = sum(total.documents for total in self._totals.values())
            length = sum(total.tokens for total in self._totals.values()) // max(documents, 1)
        room = (self._options.max_file_size or _USUAL_BYTES) - len(END)
        told = 2 * BLOCK if self._options.provenance else 0  # a head, and a line of JSON
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
        self._begins: list[int] = []  # of the samples in the tar in hand
        self._tokens = 0

    def add(self, sample: bytes, tokens: int) -> None:
        """Append a sample.

        Args:
            sample: its members.
            tokens: that it holds.
        """
        if not self._begins:
            number = self._place.before.files + len(self._made)
            self._path = f"{self._place.split}/{self._place.split}-{number:06}.tar"
            self._sink = self._out.file(self._path)
        self._begins.append(self._sink.size)
        self._sink.write(sample)
        self._tokens += tokens
        if len(self._begins) == self.most:
            self.end()

    def end(self) -> list[Made]:
        """End the tar in hand; returns all tars."""
        if self._begins:
            index = self._out.file(f"{self._path}.idx")
            index.write(np.array([*self._begins, self._sink.size], "<u8"))
            index.close()
            self._sink.write(END)
            self._sink.close()
            self._made.append(
                Made(
                    path=self._path,
                    samples=len(self._begins),
                    tokens=self._tokens,
                    size=self._sink.size,
                )
            )
            self._begins, self._tokens = [], 0
        return self._made


class _Rows:
    """Rows of one length; the last one of a part is filled up with end-of-text ids."""

    def __init__(self, tars: _Tars, place: Place, length: int, spec: DatasetSpec) -> None:
        self._tars, self._length, self._eot = tars, length, spec.tokenizer.eot_id
        self._dtype = np.dtype(spec.dtype).newbyteorder("<")
        self._prefix = f"{place.split}-"
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
        for row in stream.reshape(-1, self._length):
            self._tars.add(member(f"{self._prefix}{self._next:012}.npy", npy(row)), len(row))
            self._next += 1

    def finish(self) -> list[Made]:
        if len(self._rest):
            last = np.full(self._length, self._eot, self._dtype)
            last[: len(self._rest)] = self._rest
            self._write(last)
        return self._tars.end()


class _Documents:
    """A document a sample, its end-of-text id with it; where it comes from in `.json`."""

    def __init__(self, tars: _Tars, place: Place) -> None:
        self._tars, self._split = tars, place.split
        self._next = place.before.documents

    def add(self, documents: Documents) -> None:
        told = None if documents.origins is None else _told(documents.origins)
        for ids in np.split(documents.stream, documents.ends[:-1]):
            key = f"{self._split}-{self._next:012}"
            sample = member(f"{key}.npy", npy(ids))
            if told is not None:
                sample += member(f"{key}.json", next(told))
            self._tars.add(sample, len(ids))
            self._next += 1

    def finish(self) -> list[Made]:
        return self._tars.end()


def _told(origins: Origins) -> Iterator[bytes]:
    """`{"source": URL, "row": N}` of each document, `from_byte` where rows count from it."""
    files = origins.places.files()
    numbers, rows = origins.places.numbered(origins.rows, origins.sources)
    for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
        url, first = files[number]
        begun = {"from_byte": first} if first else {}
        yield json.dumps({"source": url, **begun, "row": row}, ensure_ascii=False).encode()
