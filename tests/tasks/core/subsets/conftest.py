"""A dataset of each kind whose sources have columns."""

from pathlib import Path

import pytest

from tests.tasks.core.extending.extended import extended
from tests.tasks.core.subsets.with_columns import KINDS, made, subset, write


@pytest.fixture(scope="module", params=[*KINDS, "extended", "extended shuffled", "subset"])
def dataset(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kind")
    kind = request.param.removeprefix("extended").strip()
    root = made(folder, 0, 1, 2, **KINDS.get(kind, {}))
    if "extended" in request.param:
        write(folder / "more.parquet", 9)
        extended(root, folder / "more.parquet")
    if kind == "subset":
        subset(root, folder / "subset", documents=70, seed=2)
        return folder / "subset"
    return root
