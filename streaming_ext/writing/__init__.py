"""From the documents of a part to its shards: one file an output, found by its name."""

from streaming_ext.writing.mds import MdsSplitWriter
from streaming_ext.writing.split_writer import OpenSplit
from streaming_ext.writing.webdataset import WebdatasetSplitWriter

OUTPUTS: dict[str, OpenSplit] = {"mds": MdsSplitWriter, "webdataset": WebdatasetSplitWriter}
