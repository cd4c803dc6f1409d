"""nanotron's and datatrove's `.ds`: bare ids, with the ends of documents beside them."""

from collections.abc import Iterable, Sequence

import numpy as np

from tasks.core.derive.export_files import HashedOut
from tasks.core.derive.export_format import ExportFormat, PartPosition
from tasks.core.derive.export_records import Made
from tasks.core.reading.documents import Documents


class NanotronFormat(ExportFormat):
    """A file of ids per part, with an index and metadata."""

    name = "nanotron"

    def write(
        self, position: PartPosition, documents: Iterable[Documents], out: HashedOut
    ) -> Sequence[Made]:
        """Write a part's files."""
        path = f"{position.split}/{position.part:05}.ds"
        dtype = np.dtype(self.spec.dtype).newbyteorder("<")
        tokens = 0
        with out.file(path) as ids, out.file(f"{path}.index") as ends:
            for block in documents:
                ids.write(np.ascontiguousarray(block.stream, dtype))
                ends.write((block.ends + tokens).astype("<u8"))
                tokens += len(block.stream)
        lines = f"{self.spec.tokenizer.name}|{dtype.itemsize}", tokens, _in_words(tokens)
        out.put(f"{path}.metadata", "\n".join(map(str, lines)).encode())
        return ()


def _in_words(tokens: int) -> str:
    """A number for people, as datatrove writes it: three figures, with the unit T for tokens."""
    power = (len(str(tokens)) - 1) // 3
    prefix = ("", "k", "M", "G", "T", "P")[power]
    return f"{tokens / 1000**power:.3g} {prefix}T"
