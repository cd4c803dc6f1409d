"""Values of kept columns in the blocks of runs: an Arrow stream behind a block's ids.

    ... | ids | Arrow stream | its size, 8 bytes

Without kept columns nothing stands there.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

_SIZE: Final = 8  # bytes of a stream's size


def packed(names: Sequence[str], values: Sequence[pa.Array]) -> bytes:
    """What stands behind the ids of a block, for the values of its documents."""
    if not names:
        return b""
    batch = pa.record_batch(list(values), names=list(names))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data + len(data).to_bytes(_SIZE, "little")


def unpacked(names: Sequence[str], block: memoryview) -> tuple[memoryview, list[pa.Array]]:
    """A block without what `packed` put behind its ids, and the values: (documents,) each."""
    if not names:
        return block, []
    size = int.from_bytes(block[-_SIZE:], "little")
    end = len(block) - _SIZE - size
    stream = bytes(block[end : end + size])  # copied, so that what was read is let go of
    with pa.ipc.open_stream(stream) as reader:
        table = reader.read_all()
    return block[:end], [table.column(name).combine_chunks() for name in names]
