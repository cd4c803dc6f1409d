"""Conditions on the columns of listed documents."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streaming_ext.base.errors import UsageError
from streaming_ext.format.condition import Condition
from streaming_ext.format.provenance import ListedRows, SourceRows, require_columns

VALUES: dict[str, pa.Array] = {
    "score": pa.array([1.0, 3.0, float("nan"), None, 5.0]),
    "language": pa.array(["de", "de", "en", "de", None], pa.large_string()),
    "empty": pa.nulls(5, pa.large_string()),  # a column without values is written like this
}
ORIGINS = SourceRows([("/a.parquet", 0), ("/b.parquet", 0)], starts=np.array([0, 3]))


def listed(**values: Any) -> ListedRows:
    """List rows 0 and 2 to 5 of a part: two of its first file, three of its second."""
    return ListedRows(
        rows=np.array([0, 2, 3, 4, 5]),
        splits=np.zeros(5, np.int8),
        tokens=np.array([4, 5, 6, 7, 8]),
        values={**VALUES, **values},
    )


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("score >= 3", [1, 4]),
        ("not score < 3", [1, 2, 4]),
        ("score is None or language is None", [3, 4]),
        ("score >= 3 and language == 'de'", [1]),
        ("tokens > 5 and tokens <= 7", [2, 3]),
        ("source == '/b.parquet'", [2, 3, 4]),
        ("empty > 3 or score == 1", [0]),
    ],
)
def test_documents_for_which_a_condition_holds(condition, expected) -> None:
    assert np.flatnonzero(listed().where(Condition(condition), ORIGINS)).tolist() == expected


def test_sources_of_a_shuffled_dataset_are_named_by_number() -> None:
    rows = listed()
    rows = ListedRows(rows.rows, rows.splits, rows.tokens, sources=np.array([1, 0, 0, 1, 0]))
    origins = SourceRows(ORIGINS.files)
    assert rows.where(Condition("source == '/b.parquet'"), origins).tolist() == [1, 0, 0, 1, 0]


def test_a_kept_column_goes_before_ours() -> None:
    kept = listed(source=pa.array(["web", "web", "book", "web", None], pa.large_string()))
    assert kept.where(Condition("source == 'web'"), ORIGINS).tolist() == [1, 1, 0, 1, 0]


def test_names_and_kinds_that_do_not_fit_are_refused() -> None:
    require_columns(Condition("score > 1 and tokens > 1"), [*VALUES], where="data")
    with pytest.raises(
        UsageError,
        match=r"^data has no column 'scores'; its documents have score, language, empty, tokens, "
        r"source\. .* Did you mean score\?$",
    ):
        require_columns(Condition("scores > 1"), [*VALUES], where="data")
    with pytest.raises(UsageError, match="column 'language' is of type large_string, and --where"):
        listed().where(Condition("language > 1"), ORIGINS)
