"""From the documents of a part to its shards: one function an output, found by its name."""

from pathlib import Path

from streaming_ext.format.mds import MdsFormat
from streaming_ext.format.spec import DatasetSpec
from streaming_ext.writing.split_writer import Memory, OpenSplit, StreamWriter
from streaming_ext.writing.webdataset import open_webdataset


def open_mds(folder: Path, part: int, spec: DatasetSpec, memory: Memory) -> StreamWriter:
    """One split of a part as MDS shards; see `OpenSplit`."""
    form = MdsFormat(
        sequence_length=spec.sequence_length,
        dtype=spec.dtype,
        shard_size=spec.shard_size,
        compression=spec.compression,
    )
    return StreamWriter(folder, part, spec, memory, header=form.header)


OUTPUTS: dict[str, OpenSplit] = {"mds": open_mds, "webdataset": open_webdataset}
