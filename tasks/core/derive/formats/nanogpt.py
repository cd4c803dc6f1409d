"""nanoGPT: `train.bin` and `val.bin` of bare uint16 ids, end of text after each document."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from streaming_ext.format.layout import Split
from tasks.core.derive.export_files import HashedOut
from tasks.core.derive.export_format import ExportFormat, PartPosition
from tasks.core.derive.export_records import Made
from tasks.core.derive.formats.flat import FlatFiles, StreamWriter
from tasks.core.reading.documents import Documents, Ids

_NAMES: dict[Split, str] = {"train": "train.bin", "holdout": "val.bin"}


class NanogptFormat(ExportFormat):
    """Each split is one stream of ids in files that all parts write into."""

    name = "nanogpt"

    def files(self, split: Split) -> FlatFiles:
        """The files of a split."""
        total = self.totals[split].tokens
        return FlatFiles(path=lambda number: _NAMES[split], dtype=np.dtype("<u2"), total=total)

    def stream(self, documents: Iterable[Documents]) -> Iterator[Ids]:
        """What is written of some documents."""
        return (block.stream for block in documents)

    def require_possible(self) -> None:
        """Refuse ids that need more than 16 bits."""
        super().require_possible()
        self.require_uint16()

    def shared(self) -> Mapping[str, int]:
        """All files: a part may end within one."""
        return {
            path: size for split in self.totals for path, size in self.files(split).sizes.items()
        }

    def write(
        self, position: PartPosition, documents: Iterable[Documents], out: HashedOut
    ) -> Sequence[Made]:
        """Write a part's range of ids."""
        files = self.files(position.split)
        with StreamWriter(out, files, position.before.tokens) as writer:
            for ids in self.stream(documents):
                writer.write(ids)
        return ()
