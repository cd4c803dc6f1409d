"""Sources with copies: within a file, over files, some of them only once they are normalized."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tasks.core.synthetic import make_documents
from tests.streaming_ext.text.packed import write_documents
from tests.tasks.core.shuffle.building import KINDS, Builder

DOCUMENTS = 20  # of each file


def write_copies(folder: Path, files: int) -> Path:
    """Write files; every fourth document of each is in all others too, some change in case."""
    common = [text[:400] for text in make_documents(5, seed=99)]
    for number in range(files):
        own: list[str | None] = [text[:500] for text in make_documents(DOCUMENTS, seed=number)]
        own[::4] = common if number != 1 else common[::-1]
        own[2] = own[1] if number else own[2]  # a copy beside its first
        own[3] = f"  {common[0].upper()}\n\n"  # another text, but for case and white space
        own[7] = common[1].replace(" ", " \t ", 3)
        own[5:5] = ["", None]
        write_documents(folder / f"{number}.jsonl", own)
    return folder


@pytest.fixture(scope="session")
def lines(tmp_path_factory) -> Path:
    return write_copies(tmp_path_factory.mktemp("copies"), 3)


@pytest.fixture
def kind(request) -> str:
    """Of the dataset: that in the order of the sources, unless a test asks for others."""
    return getattr(request, "param", "in order")


@pytest.fixture
def builder(lines, tmp_path, kind) -> Builder:
    return Builder(lines, tmp_path, KINDS[kind])


@pytest.fixture(scope="session")
def wholes(lines, tmp_path_factory) -> Callable[[str], Path]:
    """The dataset of each kind that is made in one go."""

    @cache
    def whole(kind: str) -> Path:
        return Builder(lines, tmp_path_factory.mktemp("whole"), KINDS[kind]).build()

    return whole


@pytest.fixture
def whole(wholes, kind) -> Path:
    return wholes(kind)
