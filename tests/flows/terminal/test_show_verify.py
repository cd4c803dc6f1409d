"""What `shardmill verify --deep` says that it compared."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from flows.terminal.show_checks import show_verified
from streaming_ext.store import open_storage
from tasks.core.check.verify import verify
from tests.tasks.core.build_dataset import build_dataset


@pytest.fixture
def dataset(tmp_path: Path, rank_path: Path) -> Path:
    texts = [[f"Document {number}." * 9 for number in range(20)]]
    return build_dataset(tmp_path / "built", texts, tokenizer=str(rank_path))


def test_how_long_it_took(dataset: Path) -> None:
    console = Console(file=io.StringIO(), width=1000)
    report = verify(open_storage(str(dataset)))
    assert 0 < report.seconds < 60
    show_verified(replace(report, seconds=2.5), console)
    assert isinstance(console.file, io.StringIO)
    printed, rate = console.file.getvalue(), report.checked.bytes / 1e6 / 2.5
    assert f"kB in 2.5 s ({rate:,.0f} MB/s)\n" in printed


def printed_for(dataset: Path) -> str:
    console = Console(file=io.StringIO(), width=1000)
    show_verified(verify(open_storage(str(dataset)), deep=True, deep_documents=5), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_of_text(dataset: Path) -> None:
    printed = printed_for(dataset)
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert {"source rows 20", "retokenized 20", "retokenized, at least 5"} <= {*lines}
