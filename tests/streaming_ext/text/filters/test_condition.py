"""A condition has the value that Python gives for each row; anything else is refused."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_ext.base.errors import UsageError
from streaming_ext.format.condition import Condition

ROWS: list[dict[str, Any]] = [
    {"language": "en", "score": 0.65, "stars": 3, "fork": False},
    {"language": "de", "score": 0.9, "stars": 2**53 + 1, "fork": True},
    {"language": "fr", "score": -1.0, "stars": 0, "fork": False},
]
TABLE = pa.Table.from_pylist(ROWS)


def kept(text: str, table: pa.Table = TABLE) -> list[bool | None]:
    found: list[bool | None] = Condition(text).apply(table.column).to_pylist()
    return found


@pytest.mark.parametrize(
    "text",
    [
        "language == 'en' and score >= 0.65",
        "language in ['en', 'fr'] or not fork",
        "language not in ('en', 'fr')",
        "0 < score <= 0.9",
        "stars == 9007199254740993",
        "stars > 2.5",
        "score == -1",
        "not (fork or stars < 3)",
        "fork == True",
        "language < 'f'",
    ],
)
def test_rows_stay_as_python_says(text: str) -> None:
    assert kept(text) == [eval(text, {}, dict(row)) for row in ROWS]  # noqa: S307
    if text == "stars > 2.5":
        return  # Arrow refuses to compare so large a whole number with a fraction
    as_expression = TABLE.filter(Condition(text).apply(pc.field)).to_pylist()
    assert as_expression == [row for row in ROWS if eval(text, {}, dict(row))]  # noqa: S307


def test_paths_and_odd_names() -> None:
    condition = Condition("meta.language == 'en' and `lang-score` > 0.5 and meta.`a b`.c is None")
    assert condition.columns == {
        "meta.language": "text",
        "lang-score": "number",
        "meta.a b.c": "any",
    }


@pytest.mark.parametrize("name", ["\u00b5", "cafe\u0301", "meta.\uff76\uff85", "हिन्दी"])
def test_names_are_not_normalized(name: str) -> None:
    condition = Condition(f"{name} == 'caf\u00e9 {name}'")
    assert condition.columns == {name: "text"}
    assert condition.holds({name: pa.array([f"caf\u00e9 {name}", name])}).tolist() == [True, False]


def test_backticks_within_texts_are_characters() -> None:
    table = pa.table({"kind": ["a `b` c", "it's `b`", "other"], "it's": [1, 2, 3]})
    assert kept("kind != 'a `b` c'", table) == [False, True, True]
    assert kept(r"kind == 'it\'s `b`'", table) == [False, True, False]
    assert kept("`it's` > 1 and kind != \"it's `b`\"", table) == [False, False, True]


def test_any_name_may_stand_beside_one_in_backticks() -> None:
    condition = Condition("quoted == 1 and `z z` == 2 and `quoted`.x == 3 and `\uff51uoted` == 4")
    assert [*condition.columns] == ["quoted", "z z", "quoted.x", "\uff51uoted"]
    with pytest.raises(UsageError, match="not understood"):
        Condition("`z`5 == 1")


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.int64(), pa.int8()])
def test_numbers_that_a_type_does_not_hold(kind: pa.DataType) -> None:
    table = pa.table({"n": pa.array([1, 2], kind)})
    for number in (9007199254740993, 16777217, -9007199254740993, 300, 0.1):
        for how in ("==", "!=", "<", ">="):
            text = f"n {how} {number}"
            assert kept(text, table) == [eval(text, {"n": n}) for n in (1, 2)]  # noqa: S307
    assert kept("n in [1, 9007199254740993]", table) == [True, False]
    doubles = pa.table({"n": [2.0**53, 2.0**53 + 2]})
    assert kept("n == 9007199254740993", doubles) == [True, False]
    assert kept("n < 9007199254740993", doubles) == [False, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a == 1", [True, None, False]),
        ("a != 1", [False, None, True]),
        ("not a == 1", [False, None, True]),
        ("a not in [1]", [False, None, True]),
        ("a is None", [False, True, False]),
        ("a is not None and a > 1", [False, False, True]),
        ("a == 1 or a is None", [True, True, False]),
    ],
)
def test_nothing_is_neither_true_nor_false(text: str, expected: list[bool | None]) -> None:
    assert kept(text, pa.table({"a": [1, None, 2]})) == expected


@given(st.lists(st.one_of(st.none(), st.integers(-(2**62), 2**62)), min_size=1), st.integers(-9, 9))
def test_whole_numbers_are_exact(values: list[int | None], bound: int) -> None:
    table = pa.table({"n": pa.array(values, pa.int64())})
    expected = [None if value is None else value > bound for value in values]
    assert kept(f"n > {bound}", table) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "invalid syntax"),
        ("language == 'en", "unterminated string"),
        ("1 == 1", "a column is compared with a value"),
        ("language == other", "a column is compared with a value"),
        ("__import__('os').system('true')", "no comparison"),
        ("language == 'en' and score > 'x' and score > 1", "a text and a number"),
        ("score in []", "no list of values of one kind"),
        ("score in [1, 'x']", "no list of values of one kind"),
        ("score == 1j", "no text, number"),
        ("score == b'x'", "no text, number"),
        ("score == 99999999999999999999", "64 bits"),
        ("score is 3", "None alone"),
        ("score + 1 > 3", "a column is compared with a value"),
        ("language == f'{score}'", "no text, number"),
        ("language if fork else score", "no comparison"),
        ("(" * 3000 + "fork" + ")" * 3000, "nested"),
        ("`a b` == größe", "'a b' and 'größe'"),
        ("language == \u201cen\u201d", "invalid character"),
        ("not " * 2000 + "fork", "recursion"),
        (r"language == '\ud800'", "surrogates"),
        ("_in_backticks_x == 1", "hexadecimal"),
        ("x" * 20_000, "20000 characters"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match="--where") as raised:
        Condition(text)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
