"""Small files of these tests are read as large ones."""

import pytest

from streaming_ext.text.readers import json_files


@pytest.fixture(autouse=True)
def small_blocks_as_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small files take Arrow's parser too; a separate test compares both ways."""
    monkeypatch.setattr(json_files, "_SMALL", 0)
