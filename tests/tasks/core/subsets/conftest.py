"""A dataset of each kind whose sources have columns."""

from pathlib import Path

import pytest

from tests.tasks.core.build_dataset import build_from
from tests.tasks.core.extending.extended import extended
from tests.tasks.core.subsets.with_columns import KEPT, KINDS, subset, write


@pytest.fixture(scope="module", params=[*KINDS, "extended", "extended shuffled", "subset"])
def dataset(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kind")
    (folder / "sources").mkdir()
    for number in range(3):
        write(folder / f"sources/{number}.parquet", number)
    kind = request.param.removeprefix("extended").strip()
    root = build_from(
        folder / "sources", folder / "dataset", keep_columns=KEPT, **KINDS.get(kind, {})
    )
    if "extended" in request.param:
        write(folder / "more.parquet", 9)
        extended(root, folder / "more.parquet")
    if kind == "subset":
        subset(root, folder / "subset", documents=70, seed=2)
        return folder / "subset"
    return root
