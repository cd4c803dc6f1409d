"""Arrow IPC: files and streams, as `save_to_disk` leaves them; a document is a row."""

from collections.abc import Iterator

import pyarrow as pa

from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import DocumentRows
from streaming_ext.text.documents.files import SourceBytes, open_for_arrow
from streaming_ext.text.documents.source_format import Names, Table, TableFormat

_MAGIC = b"ARROW1"  # of a file; a stream has none
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowFormat(TableFormat):
    """Arrow IPC files and streams."""

    name = "arrow"
    suffixes = (".arrow",)

    def is_in_folder(self, name: str) -> bool:
        """All but the cache files that `datasets` leaves next to a saved dataset."""
        is_cache = name.rpartition("/")[2].startswith("cache-")
        return super().is_in_folder(name) and not is_cache

    def schema(self, file: SourceBytes, options: ReadOptions) -> pa.Schema:
        """See `TableFormat.schema`."""
        with open_for_arrow(file) as raw:
            return _open(raw).schema

    def tables(self, rows: DocumentRows, names: Names) -> Iterator[Table]:
        """See `TableFormat.tables`."""
        roots = {root for name in names or () for root in (name, name.partition(".")[0])}
        with open_for_arrow(rows.file) as raw:
            for batch, fraction in _batches(raw):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if names is None or name in roots:
                        _require_sound(column)
                yield Table(batch, fraction)
                del batch


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


def _batches(raw: pa.NativeFile) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Record batches, and the fraction of the file that is read with each."""
    reader = _open(raw)
    if isinstance(reader, pa.ipc.RecordBatchStreamReader):
        for batch in reader:
            yield batch, raw.tell() / raw.size()
    else:
        count = reader.num_record_batches
        for number in range(count):
            yield reader.get_batch(number), (number + 1) / count


def _require_sound(column: pa.Array) -> None:
    """Refuse offsets that lead out of the buffers; texts that are not UTF-8 are bad rows, later."""
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
