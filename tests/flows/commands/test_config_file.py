"""`--config`: options from a file, and what is wrong with one, told with its name."""

from pathlib import Path

import pytest

from tests.flows.conftest import Command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shard.yaml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"tokenizer: gpt2\nsources: [a\n", ["line 3", "cannot be read"]),
        (b"tokenizer: gpt2\n\tsources: a\n", ["line 2", "cannot be read"]),
        (b"PAR1\x15\x00\xff\xfe", ["position 6", "utf-8"]),
        (b"\x00\x01\x02", ["cannot be read"]),
        (b"- tokenizer\n- gpt2\n", ["expected options"]),
        (b"gpt2\n", ["expected options"]),
        (b"shard: gpt2\n", ["expected options"]),
        (b"config: other.yaml\n", ["other than `config`"]),
        (b"shard: {config: {a: b}}\n", ["other than `config`"]),
        (b"tokenizer: !!python/object:os.system x\n", ["line 1", "could not determine a constr"]),
        (b"sources: [x]\nsequence_lenght: 5\n", ["sequence_lenght", "sequence-length"]),
        (b"verifi: {deep: true}\n", ["verifi"]),
        (b"? [a]\n: b\n", ["unhashable"]),
        (b"<<: 3\n", ["expected a mapping"]),
        (b"sources: " + b"[" * 5000 + b"]" * 5000, ["recursion"]),
    ],
)
def test_a_file_that_no_command_can_take_is_named(
    shardmill: Command, file: Path, text: bytes, said: list[str]
) -> None:
    file.write_bytes(text)
    ended = shardmill("shard", "--config", file)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    for words in (str(file), *said):
        assert words in ended.stderr


def test_a_folder_and_a_missing_file_as_config_file(shardmill: Command, file: Path) -> None:
    for path, reason in ((file.parent, "Is a directory"), (file, "No such file")):
        ended = shardmill("shard", "--config", path)
        assert ended.returncode == 2
        assert f"--config {path}: cannot be read: " in ended.stderr
        assert reason in ended.stderr


def test_a_value_that_is_not_allowed_is_reported_as_on_the_command_line(
    shardmill: Command, file: Path
) -> None:
    file.write_text("sources: [a]\noutput: b\ntokenizer: c\nsequence_length: 0\nworkers: 0\n")
    ended = shardmill("shard", "--config", file, "--workers", "-1")
    assert ended.returncode == 2
    assert "--sequence-length: must be greater than 0, got '0'\n" in ended.stderr
    assert "--workers: must be greater than 0, got '-1'\n" in ended.stderr


def test_options_below_the_command_s_name_go_first(shardmill: Command, file: Path) -> None:
    file.write_text(
        "sources: [/nonexistent/top]\noutput: b\ntokenizer: c\n"
        "shard:\n  sources: [/nonexistent/below]\nplan:\n  hosts: 4\n"
    )
    ended = shardmill("shard", "--config", file)
    assert "/nonexistent/below: no such file" in ended.stderr
    assert "/nonexistent/top" not in ended.stderr


def test_the_command_line_goes_before_the_file(shardmill: Command, file: Path) -> None:
    file.write_text("shard:\n  sources: [/nonexistent/a]\n  output: b\n  tokenizer: c\n")
    ended = shardmill("shard", "/nonexistent/given", "--config", file)
    assert "/nonexistent/given" in ended.stderr
    assert "/nonexistent/a" not in ended.stderr
    ended = shardmill("shard", "--config", file)
    assert "/nonexistent/a: no such file" in ended.stderr
    assert ended.returncode == 2


def test_options_without_a_value_have_their_default(shardmill: Command, file: Path) -> None:
    file.write_text(
        "sources: [/nonexistent/a]\noutput: b\ntokenizer: c\nkeep_columns:\ntext_column: null\n"
    )
    ended = shardmill("shard", "--config", file)
    assert "/nonexistent/a: no such file" in ended.stderr
    assert ended.returncode == 2


def test_an_empty_file_says_nothing(shardmill: Command, file: Path) -> None:
    file.write_text("")
    assert "no such file" in shardmill(
        "shard", "/nonexistent/a", "--output", "b", "--tokenizer", "c", "--config", file
    ).stderr  # fmt: skip


def test_a_seed_without_a_shuffle_is_refused(shardmill: Command) -> None:
    given = ("shard", "/nonexistent/a", "--output", "b", "--tokenizer", "c", "--shuffle-seed", "5")
    ended = shardmill(*given)
    assert "--shuffle-seed: " in ended.stderr
    assert "goes with --shuffle" in ended.stderr
    assert ended.returncode == 2
    assert "no such file" in shardmill(*given, "--shuffle", "documents").stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dataset: [1, 2]\noutput: b\n", "unable to convert"),
        ('dataset: a\noutput: "a\\0b"\n', "--output: 'a\\x00b' holds a zero byte"),
        ("dataset: &a [*a]\noutput: b\n", "Circular"),
    ],
)
def test_values_that_no_option_can_take(
    shardmill: Command, file: Path, text: str, said: str
) -> None:
    file.write_text(text)
    ended = shardmill("copy", "--config", file)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
