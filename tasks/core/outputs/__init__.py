"""What a run makes of tokenized documents: one file an output, found by its name."""

from tasks.core.outputs.contract import OpenSplit
from tasks.core.outputs.mds import MdsSplitWriter
from tasks.core.outputs.webdataset import WebdatasetSplitWriter

OUTPUTS: dict[str, OpenSplit] = {"mds": MdsSplitWriter, "webdataset": WebdatasetSplitWriter}
