"""docs/reference/options.md is what the code says."""

from pathlib import Path

from tests.flows.commands.options_page import reference

ROOT = Path(__file__).parents[3]


def test_the_options_page_is_current() -> None:
    page = (ROOT / "docs/reference/options.md").read_text()
    assert page == reference(), (
        "python -m tests.flows.commands.options_page > docs/reference/options.md"
    )


def test_every_option_has_words() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if row.endswith("|  |")] == []
