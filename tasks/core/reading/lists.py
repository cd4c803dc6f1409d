"""The lists of a part as a whole: its documents, and what it left out as copies."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from streaming_ext.dataset.deduplicated.duplicates import (
    Duplicates,
    duplicates_limit,
    read_duplicates,
)
from streaming_ext.dataset.provenance import (
    KEPT_PREFIX,
    DocumentRows,
    count_documents,
    documents_limit,
    read_provenance,
)
from streaming_ext.dataset.record import PartRecord
from streaming_ext.errors import CorruptDatasetError
from streaming_ext.text.documents.kept_values import nothing_less
from tasks.core.reading.dataset_files import DatasetFiles


def documents_of(files: DatasetFiles, record: PartRecord, *, values: bool = False) -> pa.Table:
    """All documents of a part, some 40 bytes of memory each.

    Columns: `row`, `split` (its place in `SPLITS`), `tokens` without the end-of-text id, `source`
    and `place`, which are the part and the row where nothing is shuffled; see `DocumentRows`.

    Args:
        files: of the dataset.
        record: of the part.
        values: whether to read what was kept of columns too, under their names behind a prefix.

    Raises:
        CorruptDatasetError: the list is not as recorded; saying what was found, not where.
        StorageError: it cannot be read.
    """
    kept = record.spec.keep_columns
    data = files.read(record.documents, limit=documents_limit(record.rows, len(kept)))
    if (found := count_documents(data)) > record.rows:
        raise CorruptDatasetError(f"lists {found} documents of {record.rows} rows")
    none = np.empty(0, np.int64)
    tables = [_table_of(record, DocumentRows(none, none.astype(np.int8), none), {})]
    for batch in read_provenance(data):
        if tuple(batch.values) != kept:
            raise CorruptDatasetError(
                f"keeps the columns {' and '.join(batch.values) or 'none'}, the record says "
                f"{' and '.join(kept) or 'none'}"
            )
        if (batch.sources is None) != (record.spec.shuffle is None):
            raise CorruptDatasetError("names sources where nothing is shuffled, or names none")
        tables.append(_table_of(record, batch, batch.values if values else {}))
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _table_of(record: PartRecord, batch: DocumentRows, values: Mapping[str, pa.Array]) -> pa.Table:
    own = np.full(len(batch.rows), record.part)
    columns = {
        "row": batch.rows,
        "split": batch.splits,
        "tokens": batch.tokens,
        "source": own if batch.sources is None else batch.sources,
        "place": batch.rows if batch.places is None else batch.places,
    }
    kept = {f"{KEPT_PREFIX}{name}": nothing_less(column) for name, column in values.items()}
    return pa.table({**columns, **kept})


def duplicates_of(files: DatasetFiles, record: PartRecord) -> Duplicates:
    """All that a part left out as copies.

    Raises:
        CorruptDatasetError: the list is not as recorded; saying what was found, not where.
        StorageError: it cannot be read.
    """
    if record.duplicates is None:
        return Duplicates.joined([])
    data = files.read(record.duplicates, limit=duplicates_limit(record.duplicate_documents))
    return Duplicates.joined([*read_duplicates(data, shuffled=record.spec.shuffle is not None)])
