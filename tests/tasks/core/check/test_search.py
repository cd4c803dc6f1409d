"""A search finds each document that says something, and no other."""

from pathlib import Path
from typing import Any

import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.format.layout import SPLITS
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


@pytest.fixture(scope="module", params=["tiktoken", "huggingface", "with a beginning"])
def searched(request, tmp_path_factory, tokenizer_json) -> LocalStorage:
    folder = tmp_path_factory.mktemp(request.param)
    config: dict[str, Any] = {}
    if request.param != "tiktoken":
        (folder / "tokenizer.json").write_text(tokenizer_json)
        config = {"tokenizer": str(folder / "tokenizer.json"), "pattern": None}
    if request.param == "with a beginning":
        config["bos_token"] = "<pad>"
    return LocalStorage(build_dataset(folder, TEXTS, **config))


@pytest.mark.parametrize("is_all", [False, True], ids=["that hold", "that are"])
@pytest.mark.parametrize(
    "text",
    [
        "the",
        "東京",
        "<|endoftext|>",
        "<pad>",
        ODD,
        "e",
        "nowhere 7x",
        "twice the same",
        TEXTS[0][7],
        "the end",
    ],
)
def test_all_documents(searched, text, is_all) -> None:
    """A row is named by its source file's number and its own; no document is in both splits."""
    found = [
        row for split in SPLITS for row in find_documents(searched, split, text, is_all=is_all)
    ]
    assert sorted((int(Path(row.source).stem), row.row) for row in found) == [
        (file, row)
        for file, texts in enumerate(TEXTS)
        for row, other in enumerate(texts)
        if other and (other == text if is_all else text in other)
    ]


def test_the_command_prints_their_steps(searched, tmp_path, capsys) -> None:
    found = {split: find_documents(searched, split, ODD, is_all=True) for split in SPLITS}
    ((split, row),) = [(split, row) for split, rows in found.items() for row in rows]

    def steps_of(**chosen: Any) -> list[str]:
        assert trace(str(searched), batch_size=1, split=split, epochs=2, **chosen) == 0
        lines: list[str] = capsys.readouterr().out.splitlines()
        return lines

    visits = steps_of(document=f"{row.source}:{row.row}")
    assert any("step " in line for line in visits)
    file = tmp_path / "odd.txt"
    file.write_text(ODD + "\n")
    named, *rest = steps_of(text=file)
    assert named.endswith(f"row {row.row}")
    assert rest == visits
    assert steps_of(grep=ODD) == [named, *visits]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grep": ""}, "No words"),
        ({"grep": "nowhere 7x"}, "no document of split 'train'"),
        ({"text": Path("missing")}, "cannot be read"),
        ({"text": Path("missing"), "grep": "x"}, "one of"),
        ({"grep": "x", "output": "x.parquet"}, "goes with"),
    ],
)
def test_wrong_usage(searched, options, said) -> None:
    with pytest.raises(UsageError, match=said):
        trace(str(searched), batch_size=1, **options)
