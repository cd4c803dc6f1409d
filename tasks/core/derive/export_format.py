"""What writes an export: a format, given the whole documents of a part, a split at a time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import Split
from streaming_ext.format.schema import Count, Value
from streaming_ext.format.spec import DatasetSpec
from tasks.core.derive.export_files import HashedOut
from tasks.core.derive.export_records import ExportOptions, Extent, Extents, Made
from tasks.core.reading.documents import Documents

_DEFAULTS = ExportOptions()


class PartPosition(Value):
    """What a part holds of a split, and its position in the split.

    Attributes:
        part: its number.
        split: of the dataset.
        before: what the parts before it hold.
        own: what it holds.
    """

    part: Count
    split: Split
    before: Extent
    own: Extent


class ExportFormat:
    """How a dataset is laid out in the files of another trainer.

    A format is a function of the dataset's specification, the options, and what each split holds.

    Args:
        spec: of the dataset.
        options: of the export.
        totals: what each split holds; their `files` are the sums of `files_of`, and not known yet
            when that is called.

    Attributes:
        name: of the format.
        takes: the options that it has a use for.
        needs_origins: whether it writes where documents come from.
    """

    name: ClassVar[str]
    takes: tuple[str, ...] = ()
    needs_origins = False

    def __init__(self, spec: DatasetSpec, options: ExportOptions, totals: Extents) -> None:
        self.spec, self.options, self.totals = spec, options, totals

    def require_possible(self) -> None:
        """Refuse what the format cannot hold.

        Raises:
            UsageError: saying what it can.
        """
        for field in ExportOptions.model_fields:
            given = getattr(self.options, field)
            if given != getattr(_DEFAULTS, field) and field not in self.takes:
                possible = ", ".join(map(_option, self.takes)) or "no such option"
                raise UsageError(
                    f"{_option(field)} is of no use with {self.name}, which takes {possible}."
                )

    def require_uint16(self) -> None:
        """Refuse a vocabulary that 16 bits do not hold.

        Raises:
            UsageError: naming formats that do.
        """
        ids = self.spec.tokenizer.vocab_size
        if ids > 2**16:
            raise UsageError(
                f"{self.name} stores an id in 16 bits, so it holds 65,536 different ones; this "
                f"dataset's vocabulary has {ids:,}. Formats for larger ones: megatron, llmc, "
                "nanotron, olmo, litdata, levanter, parquet, webdataset."
            )

    def files_of(self, documents: int, tokens: int) -> int:
        """How many files a part makes of a split, if their names depend on those of other parts."""
        return 0

    def shared(self) -> Mapping[str, int]:
        """Files that several parts write into, with their sizes in bytes."""
        return {}

    def write(
        self, position: PartPosition, documents: Iterable[Documents], out: HashedOut
    ) -> Sequence[Made]:
        """Write what a part holds of a split; returns the files that belong to the part.

        Args:
            position: of the part in the split.
            documents: in order; each block is valid until the next one is taken.
            out: takes the files.
        """
        raise NotImplementedError

    def finish(self, made: Mapping[Split, Sequence[Made]], out: HashedOut) -> None:
        """Write what belongs to no part: heads of shared files, indexes.

        Args:
            made: the files of each split that belong to one part, in order.
            out: takes the files.
        """


MakeFormat = Callable[[DatasetSpec, ExportOptions, Extents], ExportFormat]


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"
