"""How the files of these tests are read."""

import pytest

from streaming_ext.text.readers import json_files


@pytest.fixture(autouse=True)
def small_blocks_as_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files take Arrow's parser too; that both ways agree has a test of its own."""
    monkeypatch.setattr(json_files, "_SMALL", 0)
