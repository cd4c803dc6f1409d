"""Documents are found by what they say: each one that says it, and no other."""

from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import SPLITS
from streaming_ext.format.provenance import SourceRow
from streaming_ext.store import LocalStorage
from tasks.core.check.decode import find_documents
from tasks.core.synthetic import make_documents
from tests.flows.commands.tracing import trace
from tests.tasks.core.build_dataset import build_dataset

ODD = "naïve 東京 <|endoftext|> and on"
TEXTS: list[list[str | None]] = [
    [*make_documents(40, seed=3), None, "", ODD, "twice the same"],
    ["the end of one", "twice the same", *make_documents(40, seed=4), "one of the"],
]


@pytest.fixture(scope="module", params=["tiktoken", "huggingface"])
def searched(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    rank_path: Path,
    tokenizer_json: str,
) -> LocalStorage:
    folder = tmp_path_factory.mktemp(request.param)
    config: dict[str, Any] = {"tokenizer": str(rank_path), "sequence_length": 64}
    if request.param == "huggingface":
        (folder / "tokenizer.json").write_text(tokenizer_json)
        config |= {"tokenizer": str(folder / "tokenizer.json"), "pattern": None}
    return LocalStorage(build_dataset(folder, TEXTS, **config))


def rows_of(places: list[SourceRow]) -> list[tuple[int, int]]:
    """Number of the source file and row, by its name's order."""
    return sorted((int(Path(place.source).stem[-1]), place.row) for place in places)


def expected(condition) -> list[tuple[int, int]]:
    return [
        (file, row)
        for file, texts in enumerate(TEXTS)
        for row, text in enumerate(texts)
        if text and condition(text)
    ]


def found(storage: LocalStorage, text: str, *, is_all: bool) -> list[tuple[int, int]]:
    """In both splits; no document is in both."""
    places = [
        place for split in SPLITS for place in find_documents(storage, split, text, is_all=is_all)
    ]
    return rows_of(places)


@pytest.mark.parametrize("words", ["the", " of ", "東京", "<|endoftext|>", ODD, "e", "nowhere 7x"])
def test_all_that_hold_some_words(searched: LocalStorage, words: str) -> None:
    assert found(searched, words, is_all=False) == expected(lambda text: words in text)


@pytest.mark.parametrize("text", [ODD, "twice the same", str(TEXTS[0][7]), "the end", "nowhere"])
def test_all_that_are_a_text(searched: LocalStorage, text: str) -> None:
    assert found(searched, text, is_all=True) == expected(lambda other: other == text)


def test_what_cannot_be_looked_for(searched: LocalStorage) -> None:
    with pytest.raises(UsageError, match="No words"):
        find_documents(searched, "train", "", is_all=False)


class TestOnTheCommandLine:
    @pytest.fixture
    @staticmethod
    def root(searched: LocalStorage) -> str:
        return str(searched)

    def test_their_steps(self, root: str, tmp_path: Path, capsys) -> None:
        storage = LocalStorage(Path(root))
        ((split, place),) = (
            (split, place)
            for split in SPLITS
            for place in find_documents(storage, split, ODD, is_all=True)
        )
        asked = {"batch_size": 1, "split": split, "epochs": 2}
        assert trace(root, document=f"{place.source}:{place.row}", **asked) == 0
        visits = capsys.readouterr().out
        assert "step " in visits
        file = tmp_path / "odd.txt"
        file.write_text(ODD + "\n")
        assert trace(root, text=file, **asked) == 0
        named = capsys.readouterr().out
        assert named.splitlines()[0].endswith(f"row {place.row}")
        assert named.splitlines()[1:] == visits.splitlines()
        assert trace(root, grep=ODD, **asked) == 0
        assert capsys.readouterr().out == named

    def test_none_and_too_many(self, root: str, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no document of split 'train'"):
            trace(root, grep="nowhere 7x", batch_size=1)
        with pytest.raises(UsageError, match="cannot be read"):
            trace(root, text=tmp_path / "missing", batch_size=1)
        with pytest.raises(UsageError, match="one of"):
            trace(root, text=tmp_path / "missing", grep="x", batch_size=1)
        with pytest.raises(UsageError, match="goes with"):
            trace(root, grep="x", output=str(tmp_path / "x.parquet"), batch_size=1)
