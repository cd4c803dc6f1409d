"""Arrow IPC: files and streams, as `save_to_disk` writes them; a document is a row.

A file can be cut at its record batches, whose offsets are in its footer; a stream cannot be cut.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.files import SourceBytes, Span, open_for_arrow
from streaming_ext.text.documents.source_format import Names, Table, TableFormat, faults

_MAGIC = b"ARROW1"  # of a file; a stream has none
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_HEAD_BYTES = 8  # the padded magic
_TAIL_BYTES = 10  # the length of the footer, and the magic
_DICTIONARIES, _BATCHES = 2, 3  # fields of the table `Footer` in Arrow's File.fbs
_REQUEST_BYTES = 2**18  # per request for a remote file


class ArrowFormat(TableFormat):
    """Arrow IPC files and streams."""

    name = "arrow"
    suffixes = (".arrow",)

    def is_in_folder(self, name: str) -> bool:
        """Accept all files but the cache files that `datasets` leaves next to a saved dataset."""
        is_cache = name.rpartition("/")[2].startswith("cache-")
        return super().is_in_folder(name) and not is_cache

    def schema(self, file: SourceBytes, options: ReadOptions) -> pa.Schema:
        """See `TableFormat.schema`."""
        with open_for_arrow(file, _REQUEST_BYTES) as raw:
            return _open(raw).schema

    def tables(self, rows: DocumentRows, names: Names) -> Iterator[Table]:
        """See `TableFormat.tables`.

        The position of a row is the byte at which its record batch begins, plus its row there.
        """
        roots = {root for name in names or () for root in (name, name.partition(".")[0])}
        with open_for_arrow(rows.file, _REQUEST_BYTES) as raw:
            for batch, begin, fraction in _batches(raw, rows.file, rows.span):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if names is None or name in roots:
                        _require_sound(column)
                positions = np.arange(begin, begin + len(batch), dtype=np.int64)
                yield Table(batch, fraction, positions=positions)
                del batch

    def can_be_cut(self, file: SourceBytes) -> bool:
        """See `SourceFormat.can_be_cut`: a file can, a stream cannot."""
        return file.read(0, min(len(_MAGIC), file.size)) == _MAGIC

    def needed(self, file: SourceBytes, options: ReadOptions, span: Span | None) -> Sequence[Span]:
        """See `SourceFormat.needed`: the record batches, the dictionaries and the footer."""
        if span is None:
            return super().needed(file, options, span)
        with faults(file, self.name):
            footer, dictionaries, batches = _layout(file)
            own = [batch for batch in batches if span[0] <= batch[0] < span[1]]
            found = sorted({(0, _HEAD_BYTES), *dictionaries, *own, (footer, file.size)})
            if any(before[1] > after[0] for before, after in pairwise(found)):
                raise ValueError("its record batches overlap")
        return found


def _open(raw: pa.NativeFile) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    head = raw.read(len(_MAGIC))
    raw.seek(0)
    if head == _MAGIC:
        return pa.ipc.open_file(raw)
    raw.seek(max(0, raw.size() - len(_END_OF_STREAM)))
    if raw.read() != _END_OF_STREAM:  # else a stream cut between two batches would pass
        raise pa.ArrowInvalid("it does not end as an Arrow stream does")
    raw.seek(0)
    return pa.ipc.open_stream(raw)


def _batches(
    raw: pa.NativeFile, file: SourceBytes, span: Span | None
) -> Iterator[tuple[pa.RecordBatch, int, float]]:
    """Yield record batches, the byte at which each begins, and the fraction read with it."""
    reader = _open(raw)
    if isinstance(reader, pa.ipc.RecordBatchStreamReader):
        begin = raw.tell()
        for batch in reader:
            yield batch, begin, raw.tell() / raw.size()
            begin = raw.tell()
        return
    begins = [begin for begin, _ in _layout(file)[2]]
    chosen = [n for n, at in enumerate(begins) if span is None or span[0] <= at < span[1]]
    for done, number in enumerate(chosen, 1):
        yield reader.get_batch(number), begins[number], done / len(chosen)


def _require_sound(column: pa.Array) -> None:
    """Refuse offsets beyond the buffers; texts that are not UTF-8 become bad rows later."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        column.validate()
        kind = column.type
        if pa.types.is_struct(kind):
            for field in column.flatten():
                _require_sound(field)
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            plain = pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
            column.view(plain).validate(full=True)
        else:
            raise


def _layout(file: SourceBytes) -> tuple[int, list[Span], list[Span]]:
    """Return the offset of the footer, and the spans of dictionaries and record batches."""
    tail = file.read(max(0, file.size - _TAIL_BYTES), file.size)
    begin = file.size - _TAIL_BYTES - int.from_bytes(tail[:4], "little")
    if not tail.endswith(_MAGIC) or begin < _HEAD_BYTES:
        raise ValueError("it has no footer")
    footer = file.read(begin, file.size)
    dictionaries, batches = (list(_spans(footer, field)) for field in (_DICTIONARIES, _BATCHES))
    if any(not _HEAD_BYTES <= start <= end <= begin for start, end in dictionaries + batches):
        raise ValueError("its footer leads out of the file")
    return begin, dictionaries, batches


def _spans(footer: bytes, field: int) -> Iterator[Span]:
    """Yield the spans of messages that a field of the footer, a FlatBuffers table, lists."""
    (root,) = struct.unpack_from("<I", footer)
    fields = root - struct.unpack_from("<i", footer, root)[0]
    (size,) = struct.unpack_from("<H", footer, fields)
    entry = 4 + 2 * field
    offset = struct.unpack_from("<H", footer, fields + entry)[0] if entry < size else 0
    if not offset:
        return
    at = root + offset + struct.unpack_from("<I", footer, root + offset)[0]
    (count,) = struct.unpack_from("<I", footer, at)
    for block in range(at + 4, at + 4 + 24 * count, 24):
        begin, head, body = struct.unpack_from("<qi4xq", footer, block)
        yield begin, begin + head + body
