"""This project's dataset under the names that mosaicml-streaming's own tests import.

Those tests read samples of an id and a number; here a sample is one token, the number.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming_ext import StreamingTokenDataset, TokenStream
from streaming_ext.training.stock import streaming

StreamingDataLoader = streaming.StreamingDataLoader


@pytest.fixture
def local_remote_dir() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder, "local")), str(Path(folder, "remote"))


def convert_to_mds(
    *,
    out_root: str,
    num_samples: int = 117,
    offset: int = 0,
    size_limit: int = 1 << 8,
    dataset_name: str,
    **_: Any,
) -> None:
    """Write samples with the numbers that their sequence dataset counts."""
    import numpy as np

    assert dataset_name == "sequencedataset"
    columns = {"tokens": "ndarray:int64:1"}
    with streaming.MDSWriter(out=out_root, columns=columns, size_limit=size_limit) as out:
        for number in range(num_samples):
            out.write({"tokens": np.array([3 * number + offset])})


Stream = TokenStream


class StreamingDataset(StreamingTokenDataset):
    def __init__(self, *, split: str | None = None, **given: Any) -> None:
        super().__init__(split=split, **given)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in super().__iter__():
            yield _theirs(sample)

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        return _theirs(super().get_item(sample_id, retry))


def _theirs(sample: dict[str, Any]) -> dict[str, Any]:
    number = int(sample["tokens"][0])
    return {"id": f"{number // 3:06}", "sample": number}
