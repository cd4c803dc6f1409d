"""`--config`: options from a file; an error message names the file."""

import re
from pathlib import Path

import pytest

from tests.command_line import refused


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "shard.yaml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"tokenizer: gpt2\nsources: [a\n", ["line 3", "cannot be read"]),
        (b"tokenizer: gpt2\n\tsources: a\n", ["line 2", "cannot be read"]),
        (b"PAR1\x15\x00\xff\xfe", ["position 6", "utf-8"]),
        (b"- tokenizer\n- gpt2\n", ["expected options"]),
        (b"shard: gpt2\n", ["expected options"]),
        (b"config: other.yaml\n", ["no `config:`"]),
        (b"shard: {config: {a: b}}\n", ["no `config:`"]),
        (b"tokenizer: !!python/object:os.system x\n", ["line 1", "could not determine a constr"]),
        (b"sources: [x]\nsequence_lenght: 5\n", ["sequence_lenght", "sequence-length"]),
        (b"? [a]\n: b\n", ["unhashable"]),
        (b"<<: 3\n", ["expected a mapping"]),
        (b"sources: " + b"[" * 5000 + b"]" * 5000, ["recursion"]),
    ],
)
def test_a_file_that_no_command_can_take_is_named(shardmill, file, text, said) -> None:
    file.write_bytes(text)
    ended = refused(shardmill("shard", "--config", file))
    assert ended.stderr.count("\n") == 1
    for words in (str(file), *said):
        assert words in ended.stderr


def test_a_folder_and_a_missing_file_as_config_file(shardmill, file) -> None:
    for path, reason in ((file.parent, "Is a directory"), (file, "No such file")):
        refused(shardmill("shard", "--config", path), f"--config {path}: cannot be read: ", reason)


def test_a_value_that_is_not_allowed_is_reported_as_on_the_command_line(shardmill, file) -> None:
    file.write_text("sources: [a]\noutput: b\ntokenizer: c\nsequence_length: 0\nworkers: 0\n")
    refused(
        shardmill("shard", "--config", file, "--workers", "-1"),
        "--sequence-length: must be greater than 0, got '0'\n",
        "--workers: must be greater than 0, got '-1'\n",
    )


COMPLETE = "sources: [/nonexistent/top]\noutput: b\ntokenizer: c\n"
BELOW = "shard:\n  sources: [/nonexistent/below]\nplan:\n  hosts: 4\n"


@pytest.mark.parametrize(
    ("text", "given", "taken"),
    [
        (COMPLETE, (), "top"),
        (f"{COMPLETE}keep_columns:\ntext_column: null\n", (), "top"),  # `null` means the default
        (COMPLETE + BELOW, (), "below"),
        (COMPLETE + BELOW, ("/nonexistent/given",), "given"),
        ("", ("/nonexistent/given", "--output", "b", "--tokenizer", "c"), "given"),
    ],
)
def test_what_is_given_nearest_to_the_command_goes_first(
    shardmill, file, text, given, taken
) -> None:
    """The command line wins, then options below the command's name, then those for all commands."""
    file.write_text(text)
    ended = refused(shardmill("shard", *given, "--config", file, "--dry-run"))
    assert re.findall(r"/nonexistent/(\w+): no such file", ended.stderr) == [taken]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dataset: [1, 2]\noutput: b\n", "unable to convert"),
        ('dataset: a\noutput: "a\\0b"\n', "--output: 'a\\x00b' holds a zero byte"),
        ("dataset: &a [*a]\noutput: b\n", "Circular"),
    ],
)
def test_values_that_no_option_can_take(shardmill, file, text, said) -> None:
    file.write_text(text)
    ended = refused(shardmill("copy", "--config", file), said)
    assert ended.stderr.count("\n") == 1
