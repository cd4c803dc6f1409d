"""A dataset that tests export in many formats, and import again."""

from pathlib import Path

import pytest

from tests.streaming_ext.build import some_documents
from tests.tasks.core.imports.importing import OWN, Documents, imported, write_ids

FILES = (2, 10, 11)  # the numbers in the names of the files, in their order


@pytest.fixture(scope="session")
def written() -> Documents:
    return some_documents(90, longest=60)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory, written) -> Path:
    """A dataset of three parts, which was imported itself."""
    folder = tmp_path_factory.mktemp("made")
    for index, number in enumerate(FILES):
        write_ids(folder / "in" / f"{number}.bin", written[index * 30 : (index + 1) * 30])
    return imported("nanogpt", folder / "in", folder / "dataset", **OWN)
