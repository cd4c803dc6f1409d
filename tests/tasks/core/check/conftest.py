"""A sound dataset of three parts, and a copy of it to damage."""

import shutil
from pathlib import Path

import pytest

from tasks.core.synthetic import make_documents
from tests.tasks.core.build_dataset import build_dataset


@pytest.fixture(scope="session")
def texts() -> list[list[str | None]]:
    """Three files: ordinary texts, texts with nulls and empty ones, and a single document."""
    made = [text[:600] for text in make_documents(40, seed=5)]
    mixed: list[str | None] = [*made[20:39]]
    mixed[3:3] = [None, ""]
    return [[*made[:20]], [*mixed, None], ["One document.", None]]


@pytest.fixture(scope="session")
def sound(tmp_path_factory, texts) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    return build_dataset(folder, texts)


@pytest.fixture
def copy(sound, tmp_path) -> Path:
    return shutil.copytree(sound, tmp_path / "dataset")
