"""F1: mosaicml-streaming itself reads what the pipeline writes, sample for sample."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from streaming_ext.format.layout import SPLITS
from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import Forger, build_dataset

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not this one


@pytest.mark.parametrize("compression", ["none", "zstd:1", "gz:6", "bz2"])
def test_stock_streaming_dataset_reads_each_split(
    compression: str, tmp_path: Path, rank_path: Path
) -> None:
    from streaming_ext.training.stock import streaming

    texts = [text[:400] for text in make_documents(24, seed=4)]
    root = build_dataset(
        tmp_path,
        [texts[:12], texts[12:]],
        tokenizer=str(rank_path),
        compression=compression,
        holdout_fraction=0.5,
    )
    forger = Forger(root)
    for split in SPLITS:
        expected = np.concatenate([forger.stream(part, split) for part in (0, 1)])
        local = Path(shutil.copytree(root / split, tmp_path / split))  # it unpacks in there
        dataset = streaming.StreamingDataset(local=str(local), batch_size=1, validate_hash="xxh128")
        assert len(dataset) * 64 == len(expected) > 0
        for number, row in enumerate(expected.reshape(-1, 64)):
            sample = dataset[number]
            assert list(sample) == ["tokens"]
            np.testing.assert_array_equal(sample["tokens"], row)
