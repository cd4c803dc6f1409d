"""Sources with copies, within a file and over files; some are copies only once normalized."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tasks.core.synthetic import make_documents
from tests.streaming_ext.text.packed import write_documents
from tests.tasks.core.shuffle.building import KINDS, Builder

DOCUMENTS = 20  # in each file


def write_copies(folder: Path, files: int) -> Path:
    """Write files; every fourth document of each is in all others too, some in another case."""
    common = [text[:400] for text in make_documents(5, seed=99)]
    for number in range(files):
        own: list[str | None] = [text[:500] for text in make_documents(DOCUMENTS, seed=number)]
        own[::4] = common if number != 1 else common[::-1]
        own[2] = own[1] if number else own[2]  # a copy beside the first one
        own[3] = f"  {common[0].upper()}\n\n"  # the same text except for case and white space
        own[7] = common[1].replace(" ", " \t ", 3)
        own[5:5] = ["", None]
        write_documents(folder / f"{number}.jsonl", own)
    return folder


@pytest.fixture(scope="session")
def lines(tmp_path_factory) -> Path:
    return write_copies(tmp_path_factory.mktemp("copies"), 3)


@pytest.fixture
def kind(request) -> str:
    """The kind of the dataset: in the order of the sources, unless a test names others."""
    return getattr(request, "param", "in order")


@pytest.fixture
def builder(lines, tmp_path, kind) -> Builder:
    return Builder(lines, tmp_path, KINDS[kind])


@pytest.fixture(scope="session")
def wholes(lines, tmp_path_factory) -> Callable[[str], Path]:
    """Makes the dataset of each kind, undisturbed."""

    @cache
    def whole(kind: str) -> Path:
        return Builder(lines, tmp_path_factory.mktemp("whole"), KINDS[kind]).build()

    return whole


@pytest.fixture
def whole(wholes, kind) -> Path:
    return wholes(kind)
