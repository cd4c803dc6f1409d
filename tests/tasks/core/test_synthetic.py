"""The project's synthetic text is the same every time, and similar to real text."""

import hashlib

import pyarrow.parquet as pq
import pytest

from tasks.core.synthetic import make_documents, train_vocabulary, write_parquet_files


def test_documents_are_a_function_of_the_seed() -> None:
    documents = make_documents(200, seed=5)
    assert len(set(documents)) == 200
    assert not set(documents) & set(make_documents(200, seed=6))
    digest = hashlib.sha256("\x00".join(documents).encode()).hexdigest()
    # The digest is fixed: the text is the same on every machine and release of Python.
    assert digest == "719939d53716987b0b4b18ca9de79505188612a2eb1694bf353728770ae40dd6"


def test_a_vocabulary_is_a_function_of_the_documents(vocabulary, tokenizer, tmp_path) -> None:
    """Another process may have trained the session's vocabulary."""
    documents = make_documents(300, seed=1)
    train_vocabulary(documents, 1024, tmp_path / "again.tiktoken")
    assert (tmp_path / "again.tiktoken").read_bytes() == vocabulary.read_bytes()
    assert tokenizer.vocab_size == 1025
    ids = tokenizer.encode(documents[0])
    assert tokenizer.decode_bytes(ids) == documents[0].encode()
    assert len(ids) < len(documents[0]) / 2.5
    with pytest.raises(ValueError, match="at least 256"):
        train_vocabulary(documents, 255, tmp_path / "c.tiktoken")


def test_parquet_files(tmp_path) -> None:
    paths, again = (
        write_parquet_files(tmp_path / name, num_files=2, documents_per_file=600, seed=4)
        for name in ("x", "y")
    )
    assert [path.name for path in paths] == ["000_00000.parquet", "001_00000.parquet"]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    metadata = pq.read_metadata(paths[0])
    assert [metadata.row_group(i).num_rows for i in range(2)] == [500, 100]
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    table = pq.read_table(paths)
    assert table.column_names == ["text", "id", "url"]
    assert len(set(table["text"].to_pylist())) == 1200
