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
from tests.tasks.core.exports.exporting import exported
from tests.tasks.core.imports.importing import imported


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
    assert f"kB in 2.5 s ({rate:,.0f} MB/s): " in printed


def printed_for(dataset: Path) -> str:
    console = Console(file=io.StringIO(), width=1000)
    show_verified(verify(open_storage(str(dataset)), deep=True, deep_documents=5), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_of_text(dataset: Path) -> None:
    printed = printed_for(dataset)
    assert "the split of 20 rows by the hash of the text; 20 documents (" in printed
    assert "tokenized again by the reference" in printed


def test_of_ids(dataset: Path, tmp_path: Path, rank_path: Path) -> None:
    """Nothing is tokenized of what was imported."""
    export = exported(dataset, tmp_path / "export", "megatron")
    printed = printed_for(
        imported("megatron", export, tmp_path / "again", tokenizer=str(rank_path), pattern="gpt2")
    )
    assert "rows by the hash of the ids; " in printed
    assert "tokens) read again, at least 5 wanted" in printed
