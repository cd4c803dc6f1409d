"""Files in the formats and with the compression that their writers use."""

import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming_ext.text.documents.files import codec_of


def pack(data: bytes, path: Path, codec: str) -> None:
    """Write a compressed file."""
    if codec == "none":
        path.write_bytes(data)
    elif codec == "xz":
        path.write_bytes(lzma.compress(data, preset=1))
    else:
        with pa.CompressedOutputStream(str(path), codec) as stream:
            stream.write(data)


def write_arrow(
    path: Path, table: pa.Table, *, stream: bool = False, compression: str | None = None
) -> None:
    """Write an Arrow file or stream with a record batch for every four rows."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as raw, new(raw, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=4)


def write_documents(path: Path, documents: Sequence[str | None]) -> None:
    """Write a file of texts, in the format and with the compression that its name says."""
    write_rows(path, [{"id": row, "text": text} for row, text in enumerate(documents)])


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a file of rows in the same way."""
    from tests.streaming_ext.text.readers import test_contract as contract

    codec = codec_of(path.name)
    plain = path.name if codec == "none" else path.name.rpartition(".")[0]
    suffix = Path(plain).suffix
    if suffix in {".parquet", ".arrow"}:
        write = contract.parquet if suffix == ".parquet" else contract.arrow_stream
        write(path, rows)
        return
    made = {
        ".json": contract.json_array,
        ".cbor": contract.cbor_sequence,
        ".tar": contract.tar,
        ".avro": contract.avro("deflate"),
        ".csv": contract.cells(","),
        ".tsv": contract.cells("\t"),
    }
    pack(made.get(suffix, contract.json_lines)(rows), path, codec)
