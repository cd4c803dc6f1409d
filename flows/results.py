"""The results of the functions of `import shardmill`: a published dataset, a published export."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from streaming_ext.base.errors import CorruptDatasetError
from streaming_ext.format.layout import Split
from streaming_ext.format.reading import read_manifest
from streaming_ext.store import open_storage
from tasks.core.derive.export_format import ExportDescription, describe_export, read_export

if TYPE_CHECKING:
    from streaming_ext import StreamingTokenDataset
    from tasks.core.check.export import ExportReport
    from tasks.core.check.findings import DatasetReport, Report
    from tasks.core.check.inspect import DatasetDescription

Checked = TypeVar("Checked", bound="Report")


class Dataset:
    """A published dataset.

    Args:
        path: folder or URL of the dataset.

    Attributes:
        path: folder or URL of the dataset, without a trailing slash.
        tokens: number of tokens in all splits.
        documents: number of documents in each split.
        samples: number of samples in each split.

    Raises:
        NotADatasetError: there is no published dataset at the path.
        CorruptDatasetError: the manifest is damaged.
    """

    path: str
    tokens: int
    documents: Mapping[Split, int]
    samples: Mapping[Split, int]

    def __init__(self, path: str | Path) -> None:
        self._storage = open_storage(str(path))
        manifest = read_manifest(self._storage)
        self.path = str(self._storage)
        self.tokens = manifest.tokens
        self.documents = {name: each.documents for name, each in manifest.splits.items()}
        self.samples = {name: each.samples for name, each in manifest.splits.items()}

    def __repr__(self) -> str:
        documents = sum(self.documents.values())
        return f"Dataset({self.path!r}: {self.tokens:,} tokens of {documents:,} documents)"

    def open(self, **arguments: Any) -> "StreamingTokenDataset":
        """Open the dataset for training.

        Args:
            arguments: the arguments of `StreamingTokenDataset` except `remote`, such as
                `batch_size`, and `local` for a cache, which shards in object storage need.
        """
        from streaming_ext import StreamingTokenDataset

        return StreamingTokenDataset(remote=self.path, **arguments)

    def inspect(self) -> "DatasetDescription":
        """Read what the dataset says about itself; no shard is read."""
        from tasks.core.check.inspect import describe

        return describe(self._storage)

    def verify(
        self, *, deep: bool = False, documents: int = 200, seed: int = 0, workers: int = 1
    ) -> "DatasetReport":
        """Check every byte.

        Args:
            deep: True to make some parts again from their sources, and compare them.
            documents: the least number of documents in these parts.
            seed: the seed for the choice of these parts.
            workers: number of threads.

        Raises:
            CorruptDatasetError: something is wrong; each line names a file and its problem.
        """
        from tasks.core.check.verify import verify

        return _sound(
            verify(self._storage, deep=deep, deep_documents=documents, seed=seed, workers=workers)
        )


class Export:
    """A published export: a dataset in the format of another trainer.

    Args:
        path: folder or URL of the export.

    Attributes:
        path: folder or URL of the export, without a trailing slash.
        dataset: folder or URL of the dataset that was exported.
        tokens: number of tokens in all splits.
        documents: number of documents in each split.
    """

    path: str
    dataset: str
    tokens: int
    documents: Mapping[Split, int]

    def __init__(self, path: str | Path) -> None:
        self._storage = open_storage(str(path))
        manifest = read_export(self._storage)
        self.path, self.dataset = str(self._storage), manifest.dataset
        self.tokens = sum(each.tokens for each in manifest.splits.values())
        self.documents = {name: each.documents for name, each in manifest.splits.items()}

    def __repr__(self) -> str:
        return f"Export({self.path!r}: {self.tokens:,} tokens of {self.dataset})"

    def inspect(self) -> ExportDescription:
        """Read what the export says about itself."""
        return describe_export(self._storage)

    def verify(self, *, workers: int = 1) -> "ExportReport":
        """Check every byte, and compare all documents with the dataset.

        Args:
            workers: number of threads.

        Raises:
            CorruptDatasetError: something is wrong; each line names a file and its problem.
        """
        from tasks.core.check.export import verify_export

        return _sound(verify_export(self._storage, workers=workers))


def _sound(report: Checked) -> Checked:
    if not report.sound:
        raise CorruptDatasetError("\n".join(map(str, report.findings)))
    return report
