"""Texts, and files of them."""

from pathlib import Path

import pytest

from tasks.core.synthetic import make_documents
from tests.command_line import file_hashes
from tests.streaming_ext.text.packed import write_documents
from tests.tasks.core.shuffle.building import DOCUMENTS, FILES, SETTINGS, Builder


@pytest.fixture(scope="package")
def texts() -> list[list[str]]:
    return [
        [text[:1500] for text in make_documents(DOCUMENTS, seed=number)] for number in range(FILES)
    ]


@pytest.fixture(scope="package")
def lines(tmp_path_factory, texts) -> Path:
    folder = tmp_path_factory.mktemp("lines")
    for number, own in enumerate(texts):  # each with a row without text
        write_documents(folder / f"{number}.jsonl", [*own[:7], None, *own[7:]])
    return folder


@pytest.fixture
def builder(lines, tmp_path) -> Builder:
    return Builder(lines, tmp_path, SETTINGS)


@pytest.fixture(scope="package")
def whole(lines, tmp_path_factory) -> dict[str, str]:
    """The hashes of the files of the dataset made undisturbed, with the default settings."""
    return file_hashes(Builder(lines, tmp_path_factory.mktemp("whole"), SETTINGS).build())
