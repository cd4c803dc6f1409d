"""`--config`: what is wrong with a file is told with its name and the line."""

from pathlib import Path

import pytest

from flows.console.config_file import read_config
from tests.flows.conftest import Command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shard.yaml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"tokenizer: gpt2\nsources: [a\n", ["line 3", "no YAML"]),
        (b"tokenizer: gpt2\n\tsources: a\n", ["line 2", "no YAML"]),
        (b"PAR1\x15\x00\xff\xfe", ["byte 6", "no UTF-8 text"]),
        (b"\x00\x01\x02", ["expected a YAML file"]),
        (b"- tokenizer\n- gpt2\n", ["line 1", "expected options"]),
        (b"gpt2\n", ["line 1", "expected options"]),
        (b"tokenizer: a\nworkers: 2\ntokenizer: b\n", ["line 3", "stands in line 1 already"]),
        (b"tokenizer: !!python/object:os.system x\n", ["line 1", "not a plain value"]),
        (b"sources: [x]\nsequence_lenght: 5\n", ["line 2", "'sequence_lenght'",
                                                 "'sequence_length' meant"]),
        (b"config: other.yaml\n", ["line 1", "no option 'config'"]),
    ],
)  # fmt: skip
def test_a_config_file_that_is_wrong_is_named_with_the_line(
    shardmill: Command, file: Path, text: bytes, said: list[str]
) -> None:
    file.write_bytes(text)
    ended = shardmill("shard", "--config", file)
    assert ended.returncode == 2
    for words in (str(file), *said):
        assert words in ended.stderr


def test_a_folder_and_a_missing_file_as_config_file(shardmill: Command, file: Path) -> None:
    for place, reason in ((file.parent, "is a directory"), (file, "no such file")):
        ended = shardmill("shard", "--config", place)
        assert ended.returncode == 2
        assert f"{place}: cannot be read: {reason}" in ended.stderr


def test_a_value_of_a_config_file_that_is_not_allowed_is_told_with_its_line(
    shardmill: Command, file: Path
) -> None:
    file.write_text("sources: [a]\noutput: b\ntokenizer: c\nsequence_length: 0\nworkers: 0\n")
    ended = shardmill("shard", "--config", file, "--workers", "-1")
    assert ended.returncode == 2
    assert (
        f"--sequence-length: expected more than 0, got '0' (--config {file}, line 4)"
        in ended.stderr
    )
    assert "--workers: expected more than 0, got '-1'\n" in ended.stderr


def test_options_below_the_command_s_name_are_taken(file: Path) -> None:
    file.write_text("tokenizer: top\nworkers: 2\nshard:\n  tokenizer: below\nplan:\n  hosts: 4\n")
    others = {"shard", "plan"}
    assert read_config(file, command="shard", others=others) == {
        "tokenizer": ("below", 4),
        "workers": (2, 2),
    }
    assert read_config(file, command="plan", others=others)["hosts"] == (4, 6)
    file.write_text("")
    assert read_config(file, command="shard", others=others) == {}


def test_the_command_line_goes_before_the_file(shardmill: Command, file: Path) -> None:
    file.write_text("shard:\n  sources: [/nonexistent/a]\n  output: b\n  tokenizer: c\n")
    ended = shardmill("shard", "/nonexistent/given", "--config", file)
    assert "/nonexistent/given" in ended.stderr
    assert "/nonexistent/a" not in ended.stderr
    ended = shardmill("shard", "--config", file)
    assert "/nonexistent/a: no such file" in ended.stderr
    assert ended.returncode == 2


def test_values_are_those_of_yaml_1_2(file: Path) -> None:
    file.write_text(
        "a: 010\nb: 20:48\nc: yes\nd: no\ne: 2024-01-01\nf: 0x1f\ng: 0o17\nh: 1_000\ni: true\n"
        "j: 1e3\nk: -0.5\nl:\nm: ~\nn: -7\no: .5\np: 64 MiB\nq: [on, 1, 08]\nr: '010'\n"
    )
    read = read_config(file, command="shard", others=())
    assert {name: value for name, (value, _) in read.items()} == {
        "a": 10, "b": "20:48", "c": "yes", "d": "no", "e": "2024-01-01", "f": 31, "g": 15,
        "h": 1000, "i": True, "j": 1000.0, "k": -0.5, "l": None, "m": None, "n": -7, "o": 0.5,
        "p": "64 MiB", "q": ["on", 1, 8], "r": "010",
    }  # fmt: skip


def test_options_without_a_value_have_their_default(shardmill: Command, file: Path) -> None:
    file.write_text(
        "sources: [/nonexistent/a]\noutput: b\ntokenizer: c\nkeep_columns:\ntext_column: null\n"
    )
    ended = shardmill("shard", "--config", file)
    assert "/nonexistent/a: no such file" in ended.stderr
    assert ended.returncode == 2


def test_sections_of_other_commands_are_left_out(shardmill: Command, file: Path) -> None:
    file.write_text("sources: [/nonexistent/a]\noutput: b\ntokenizer: c\nverify: {deep: true}\n")
    assert "/nonexistent/a: no such file" in shardmill("shard", "--config", file).stderr
    file.write_text("verifi: {deep: true}\n")
    assert "no option 'verifi'" in shardmill("shard", "--config", file).stderr


def test_a_seed_without_a_shuffle_is_refused(shardmill: Command) -> None:
    given = ("shard", "/nonexistent/a", "--output", "b", "--tokenizer", "c", "--shuffle-seed", "5")
    ended = shardmill(*given)
    assert "--shuffle-seed: " in ended.stderr
    assert "goes with --shuffle" in ended.stderr
    assert ended.returncode == 2
    assert "no such file" in shardmill(*given, "--shuffle", "documents").stderr


def test_what_is_merged_into_a_file_is_taken(file: Path) -> None:
    file.write_text("<<: [{workers: 2, output: x}, {workers: 3}]\noutput: y\n")
    assert {name: value for name, (value, _) in read_config(file, command="copy", others=()).items()
            } == {"workers": 2, "output": "y"}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dataset: [1, 2]\noutput: b\n", "--dataset: expected one value (--config "),
        ("? [a]\n: b\n", "line 1: expected the name of an option"),
        ("<<: 3\n", "line 1: expected options, or a list of them, behind `<<`"),
        ('dataset: a\noutput: "a\\0b"\n', "--output: 'a\\x00b' holds a zero byte"),
        ('dataset: "a\\0b"\noutput: b\n', "--dataset: 'a\\x00b' holds a zero byte"),
        (f"dataset: {'[' * 5000}{']' * 5000}\n", "nested too deep"),
        ("dataset: &a [*a]\noutput: b\n", "--config "),
    ],
)
def test_files_that_no_command_can_take(
    shardmill: Command, file: Path, text: str, said: str
) -> None:
    file.write_text(text)
    ended = shardmill("copy", "--config", file)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
