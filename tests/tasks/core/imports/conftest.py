"""A dataset that is exported in many formats, and imported again."""

from pathlib import Path
from typing import Any

import pytest

from tests.tasks.core.imports.importing import Documents, imported, some_documents, write_ids

FILES = (2, 10, 11)  # numbers in their names, in their order


@pytest.fixture(scope="session")
def own(rank_path) -> dict[str, Any]:
    """Options of all these imports."""
    return {
        "tokenizer": str(rank_path), "pattern": "gpt2", "holdout_fraction": 0.25, "holdout_seed": 7,
    }  # fmt: skip


@pytest.fixture(scope="session")
def written(tokenizer) -> Documents:
    return some_documents(90, tokenizer.eot_id)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory, tokenizer, written, own) -> Path:
    """Of some parts, which were imported themselves."""
    folder = tmp_path_factory.mktemp("made")
    for index, number in enumerate(FILES):
        chosen = written[index * 30 : (index + 1) * 30]
        write_ids(folder / "in" / f"{number}.bin", chosen, tokenizer.eot_id)
    return imported("nanogpt", folder / "in", folder / "dataset", **own)
