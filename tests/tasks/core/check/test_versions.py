"""Datasets of a newer shardmill are reported as newer."""

import json
import shutil
from pathlib import Path

import pytest

from streaming_ext.base.errors import NewerVersionError
from streaming_ext.store import open_storage
from tasks.core.check.verify import verify

FIXTURE = Path(__file__).parents[3] / "fixtures/dataset-0.1"


def test_a_newer_one_is_not_called_damaged(tmp_path: Path) -> None:
    root = Path(shutil.copytree(FIXTURE, tmp_path / "newer"))
    value = json.loads((root / "manifest.json").read_bytes()) | {"format": 2, "pieces": [1]}
    (root / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(NewerVersionError, match="manifest.json was made by a newer shardmill"):
        verify(open_storage(str(root)))
