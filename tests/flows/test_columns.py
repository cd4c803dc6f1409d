"""Columns of rows in several formats, as a configuration names them."""

import pyarrow.parquet as pq

from tasks.core.synthetic import make_documents
from tests.flows.conftest import manifest_of, undisturbed_by
from tests.streaming_ext.text.packed import write_rows


def test_columns_of_avro_csv_and_tsv(embedded, tmp_path) -> None:
    """Conditions and kept columns are those of JSON Lines."""
    rows = [
        {"id": number, "title": "even" if number % 2 == 0 else None, "text": text}
        for number, text in enumerate(make_documents(200, seed=9))
    ]
    options = {
        "where": "id >= 30 and title == 'even'",
        "keep_columns": ("title",),
        "part_size": "16KiB",
        "engine": "reference",
    }
    found = {}
    for name in ("x.jsonl", "x.avro", "x.csv.gz", "x.tsv.zst"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        write_rows(folder / name, rows)
        output = undisturbed_by(embedded, folder / "out", sources=[str(folder / name)], **options)
        manifest = manifest_of(output)
        assert (len(manifest.parts) > 1) == (name == "x.jsonl")
        tables = [pq.read_table(file) for file in sorted(output.glob("documents/*.parquet"))]
        found[name] = [
            (row["tokens"], row["column.title"]) for table in tables for row in table.to_pylist()
        ]
    assert len(found["x.jsonl"]) == 85
    assert all(title == "even" for _, title in found["x.jsonl"])
    assert all(one == found["x.jsonl"] for one in found.values())
