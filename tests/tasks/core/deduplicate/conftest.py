"""Sources with copies: within a file, over files, some of them only once they are normalized."""

import json
from pathlib import Path

import pytest

from tasks.core.synthetic import make_documents

FILES, DOCUMENTS = 3, 20


@pytest.fixture(scope="session")
def texts() -> list[list[str]]:
    """Three files; every fourth document of each is in all others too, some change in case."""
    found = []
    common = [text[:400] for text in make_documents(5, seed=99)]
    for number in range(FILES):
        own = [text[:500] for text in make_documents(DOCUMENTS, seed=number)]
        own[::4] = common if number != 1 else common[::-1]
        own[2] = own[1] if number else own[2]  # a copy beside its first
        own[3] = f"  {common[0].upper()}\n\n"  # another text, but for case and white space
        own[7] = common[1].replace(" ", " \t ", 3)
        found.append(own)
    return found


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory, texts: list[list[str]]) -> Path:
    folder = tmp_path_factory.mktemp("copies")
    for number, documents in enumerate(texts):
        rows = [json.dumps({"text": text}) for text in documents]
        rows.insert(5, json.dumps({"text": ""}))
        rows.insert(6, json.dumps({"text": None}))
        (folder / f"{number}.jsonl").write_text("\n".join(rows) + "\n")
    return folder
