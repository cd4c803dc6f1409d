"""The messages about what a command left out, and what `shardmill verify --deep` compared."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.terminal.run_progress import show_published
from flows.terminal.show_checks import show_verified
from streaming_ext.format.reading import read_manifest
from streaming_ext.store import open_storage
from tasks.core.check.verify import verify
from tests.flows.terminal.test_run_progress import console
from tests.tasks.core.build_dataset import build_dataset


@pytest.fixture
def dataset(tmp_path, vocabulary) -> Path:
    texts = [[f"Document {number}." * 9 for number in range(20)]]
    return build_dataset(tmp_path / "built", texts, tokenizer=str(vocabulary))


def test_what_was_compared_and_how_long_it_took(dataset) -> None:
    report = verify(open_storage(str(dataset)), deep=True, deep_documents=5)
    assert 0 < report.seconds < 60
    screen, out = console()
    show_verified(replace(report, seconds=2.5), screen)
    rate = report.checked.bytes / 1e6 / 2.5
    assert f"kB in 2.5 s ({rate:,.0f} MB/s)\n" in out.getvalue()
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert {"source rows 20", "retokenized 20", "retokenized, at least 5"} <= {*lines}


def test_copies_that_were_left_out(tmp_path, vocabulary) -> None:
    root = build_dataset(
        tmp_path / "built",
        [["Once.", "Twice.", "Twice."]],
        tokenizer=str(vocabulary),
        deduplicate="exact",
    )
    screen, out = console()
    show_published(read_manifest(open_storage(str(root))), "/out", screen)
    assert "\n1 document of " in out.getvalue()
    assert "left out as copies; duplicates/ lists them." in out.getvalue()
