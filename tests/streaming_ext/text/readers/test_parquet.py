"""Parquet rows are read as written, with row groups of any size; damage is named by its row."""

import base64
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.parquet import encryption

from streaming_ext.base.errors import SourceError, UsageError
from streaming_ext.format.spec import ReadOptions
from streaming_ext.text.documents.document_rows import DocumentBatch
from streaming_ext.text.readers import parquet as module
from streaming_ext.text.readers.parquet import ParquetFormat
from tests.streaming_ext.text.reading import looked_at, read
from tests.tasks.core.doubles import write_source

TEXT = ReadOptions()


def batches(path: Path, batch_bytes: int = 2**20) -> list[DocumentBatch]:
    return list(ParquetFormat().read(path, TEXT, batch_bytes=batch_bytes))


def documents_of(found: Iterable[DocumentBatch]) -> list[tuple[int, str]]:
    return [
        pair
        for batch in found
        for pair in zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.none() | st.text(max_size=12), max_size=40),
    batch_bytes=st.integers(1, 200),
    row_group_size=st.integers(1, 50),
    rows_a_batch=st.integers(1, 50),
)
def test_batches_never_change_rows_or_texts(
    tmp_path: Path,
    texts: list[str | None],
    batch_bytes: int,
    row_group_size: int,
    rows_a_batch: int,
) -> None:
    write_source(tmp_path / "x.parquet", texts, row_group_size=row_group_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_rows_a_batch", lambda *_: rows_a_batch)
        found = batches(tmp_path / "x.parquet", batch_bytes)
    assert documents_of(found) == [pair for pair in enumerate(texts) if pair[1] is not None]
    assert sum(batch.num_rows for batch in found) == len(texts)
    for batch in found:
        sizes = [len(text.encode()) for text in batch.texts.to_pylist()]
        assert sum(sizes) <= batch_bytes or len(sizes) == 1


def test_batches_are_cut_by_bytes_and_by_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_rows_a_batch", lambda *_: 100)
    write_source(tmp_path / "x.parquet", ["aa", "bb", "", "cccc", "d"])
    for batch_bytes, expected in (
        (3, [["aa"], ["bb", ""], ["cccc"], ["d"]]),
        (9, [["aa", "bb", "", "cccc", "d"]]),
    ):
        found = batches(tmp_path / "x.parquet", batch_bytes)
        assert [batch.texts.to_pylist() for batch in found] == expected
    monkeypatch.undo()
    monkeypatch.setattr(module, "MAX_BATCH_ROWS", 3)
    write_source(tmp_path / "x.parquet", [""] * 10)
    assert [batch.num_rows for batch in batches(tmp_path / "x.parquet")] == [3, 3, 3, 1]


def test_only_the_column_of_texts_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"s": [{"text": "no", "b": 1}] * 9, "a.b": ["x" * 99] * 9, "c": [1] * 9})
    pq.write_table(table, path, row_group_size=3)
    chunks = [pq.read_metadata(path).row_group(group).column(2) for group in range(3)]
    assert chunks[0].path_in_schema == "a.b"
    file, options = looked_at(path), ReadOptions(columns=("a.b",))
    blocks = ParquetFormat().blocks(file, options)
    assert [block.size for block in blocks] == [each.total_uncompressed_size for each in chunks]
    head, *wanted, footer = ParquetFormat().needed(file, options, None)
    assert (head, footer[1]) == ((0, 4), file.size)
    assert [end - start for start, end in wanted] == [each.total_compressed_size for each in chunks]


def test_a_file_without_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.ParquetWriter(path, pa.schema([("text", pa.string())])).close()
    assert pq.read_metadata(path).num_row_groups == 0
    assert ParquetFormat().blocks(looked_at(path), TEXT) == []
    assert read(path).rows == 0


def test_blocks_sum_up_the_row_groups_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[list[int]] = []

    def summed(numbers: Iterable[int], **start: int) -> Iterable[int]:
        sums.append([*accumulate(numbers, **start)])
        return sums[-1]

    write_source(tmp_path / "x.parquet", ["a"] * 50, row_group_size=1)
    monkeypatch.setattr(module, "accumulate", summed)
    assert len(ParquetFormat().blocks(looked_at(tmp_path / "x.parquet"), TEXT)) == 50
    assert len(sums) == 2  # of their bytes and rows


class TestDamage:
    """Damage is a SourceError that names the file, and within the data also the row."""

    TEXTS: Sequence[str] = [
        " ".join(random.Random(row).choices("abcdefghijkl", k=300)) for row in range(60)
    ]

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """Six row groups of ten rows, with checksums on their pages."""
        write_source(
            tmp_path / "x.parquet",
            pa.array(self.TEXTS),
            row_group_size=10,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )
        return tmp_path / "x.parquet"

    @pytest.mark.parametrize("content", [b"no parquet at all", b"PAR1", b"PAR1PAR1"])
    def test_what_is_no_parquet(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.parquet").write_bytes(content)
        with pytest.raises(SourceError, match=r"x\.parquet: not a whole Parquet file \([^\n]*\)"):
            batches(tmp_path / "x.parquet")
        with pytest.raises(SourceError, match="cannot be read: is a directory"):
            batches(tmp_path)

    @pytest.mark.parametrize("group", [0, 2, 5])
    def test_a_flipped_byte_is_named_by_its_row(self, file: Path, group: int) -> None:
        chunk = pq.ParquetFile(file).metadata.row_group(group).column(0)
        data = bytearray(file.read_bytes())
        data[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 0x40
        file.write_bytes(data)
        found = []
        with pytest.raises(SourceError, match=r"damaged from row \d+ on \([^\n]*$") as caught:
            for batch in ParquetFormat().read(file, TEXT, batch_bytes=1000):
                found += batch.texts.to_pylist()
        row = int(str(caught.value).split("row ")[1].split()[0])
        # Arrow's batches begin at row groups here or within: never after the damage.
        assert group * 10 - 10 <= len(found) <= row <= group * 10 + 10
        assert found == self.TEXTS[: len(found)]

    @settings(
        max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(data=st.data())
    def test_any_damage_is_noticed_or_harmless(self, file: Path, data: st.DataObject) -> None:
        whole = file.with_suffix(".whole")
        if not whole.exists():
            whole.write_bytes(file.read_bytes())
        changed = bytearray(whole.read_bytes())
        position = data.draw(st.integers(4, len(changed) - 1))
        changed[position] ^= data.draw(st.integers(1, 255))
        file.write_bytes(changed)
        try:
            found = read(file, TEXT)[0]
        except (SourceError, UsageError):
            return
        assert [text for _, text in found] == self.TEXTS


class Kms(encryption.KmsClient):  # type: ignore[misc]
    """A key service without secrets."""

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, _: str) -> bytes:
        return base64.b64decode(wrapped)


def write_encrypted(path: Path, column: str, *, plain_footer: bool = True) -> None:
    """Write a file of 20 documents with one encrypted column."""
    keys = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"own": [column]}, plaintext_footer=plain_footer
    )
    properties = encryption.CryptoFactory(lambda _: Kms()).file_encryption_properties(
        encryption.KmsConnectionConfig(), keys
    )
    table = pa.table({"text": ["some text"] * 20, "year": [2000 + n // 10 for n in range(20)]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table, row_group_size=10)


@pytest.mark.parametrize("column", ["text", "year"])
@pytest.mark.parametrize("plain_footer", [True, False])
def test_an_encrypted_file_is_refused(tmp_path: Path, column: str, plain_footer: bool) -> None:
    """It is refused before Arrow looks up a column in it, which would end the process."""
    path = tmp_path / "x.parquet"
    write_encrypted(path, column, plain_footer=plain_footer)
    reads, file = ParquetFormat(), looked_at(path)
    uses: list[Callable[[], object]] = [
        lambda: read(path, TEXT),
        lambda: reads.check(file, TEXT),
        lambda: reads.blocks(file, TEXT),
        lambda: reads.needed(file, TEXT, (0, file.size)),
    ]
    for use in uses:
        with pytest.raises(SourceError, match=r"x\.parquet: not a whole .*encrypted"):
            use()
