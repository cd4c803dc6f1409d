"""Plain messages for wrong usage, the help, and docs/reference/options.md."""

import re
import shlex
from pathlib import Path

import pytest

from flows.commands.app import app
from flows.commands.options import OptionNames
from tests.command_line import refused
from tests.flows.commands.options_page import reference

SHARD = ("shard", "a", "--output", "b", "--tokenizer", "c")
OF_THE_LIBRARIES = re.compile(r"Field required|Input should|String should|Value error|\^\(|\[\^/\]")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("shard", "a"), ["--tokenizer is missing\n--output is missing\n"]),
        ((*SHARD, "--executor", "foo"), ["--executor: must be here, prefect://FLOW/DEPLOYMENT"]),
        ((*SHARD, "--shard-size", "12"), ["--shard-size: must be greater than", "1024, got '12'"]),
        ((*SHARD, "--shard-size", "3 parsecs"), ["a size such as 64MiB, got '3 parsecs'"]),
        ((*SHARD, "--workers", "two"), ["--workers: must be a valid integer", "got 'two'"]),
        ((*SHARD, "--engine", "magic"), ["--engine: must be 'auto' or 'reference'"]),
        (("shard", "a", "--output", "", "--tokenizer", "c"), ["--output: must have at least 1"]),
        (
            ("shard",),
            ["SOURCES is missing\n--tokenizer is missing\n--output is missing. See `shardmill"],
        ),
        (("export", "megatron"), ["shardmill: DATASET is missing\n--output is missing\n"]),
        (("export", "foo", "a", "--output", "b"), ["shardmill: --format: must be one of megatron"]),
        (("merge", "a", "--output", "b"), ["must have at least 2 items, not 1, got ['a']"]),
        (
            (*SHARD, "--holdout", "0.1"),
            ["Did you mean --holdout-fraction or --holdout-seed? See `shardmill shard --help`.\n"],
        ),
        ((*SHARD, "--holdout=0.1"), ["option: --holdout. Did you mean --holdout-fraction or"]),
        ((*SHARD, "--outptu", "b"), ["option: --outptu. Did you mean --output? See"]),
        ((*SHARD, "--zz"), ["Unknown option: --zz. See"]),
        (("plna",), ['Unknown command "plna". Did you mean "plan"? See `shardmill --help`.\n']),
        (
            ("copy", "a", "b", "--workers", "1", "--workers", "2"),
            ["--workers specified multiple times"],
        ),
        (("copy", "--config"), ["--config needs a value. See"]),
        (("copy", "--dataset", "a", "b"), ['"b" must be passed as a keyword to --output']),
        (("trace", "x"), ["give one of --step, --document, --text, --grep, --plan"]),
        (("trace", "x", "--step", "0"), ["give --batch-size", "or --global-batch"]),
    ],
)
def test_wrong_values_in_plain_words(shardmill, arguments, said) -> None:
    ended = refused(shardmill(*arguments), *said)
    assert not OF_THE_LIBRARIES.search(ended.stderr)
    assert ", ." not in ended.stderr
    assert "?." not in ended.stderr


RANK_FILE = "shard {sources} --output out --tokenizer {folder}/odd.tiktoken --dry-run"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (RANK_FILE, ["which pattern splits the text? Pass `--pattern` as one of"]),
        ("plan {sources} --tokenizer {folder}/odd.tiktoken", ["`--pattern` as"]),
        ("plan {sources} --tokenizer gpt2 --pattern x", ["`--pattern` belongs to a"]),
        ("inspect {dataset} --sample 99999999", ["`--sample` must be in [0, "]),
        ("trace {dataset} --step 99999 --batch-size 1", ["`--step` must be in [0, "]),
        (
            "trace {dataset} --step 0 --global-batch 3 --ranks 2",
            ["`--global-batch` is 3 from token 0 on"],
        ),
        (
            "trace {dataset} --step 0 --batch-size 1 --document-multiple 2",
            ["`--document-multiple` needs documents that are packed: give --packing=best_fit."],
        ),
        ("trace {dataset} --step 0 --batch-size 1 --exclude a.b", ["--exclude=a.b cannot be"]),
    ],
)
def test_parameters_of_python_are_options_in_messages(
    shardmill, dataset, vocabulary, tmp_path, command, said
) -> None:
    (tmp_path / "odd.tiktoken").write_bytes(vocabulary.read_bytes())
    sources = tmp_path / "texts.jsonl"
    sources.write_text('{"text": "a"}\n')
    names = {"sources": sources, "dataset": dataset, "folder": tmp_path}
    refused(shardmill(*command.format(**names).split()), *said)


def test_names_in_paths_values_and_other_words_stay() -> None:
    names = OptionNames(app, ["shard"])
    assert names.put_into("Pass `pattern`, drop_last=True, or shard_size=.") == (
        "Pass `--pattern`, drop_last=True, or --shard-size."
    )
    for text in (
        "/data/shard_size/a.txt, got 'shard_size', shard_size/a, a.shard_size",
        "https://host/a?workers=3&shard_size=4 and output=s3://bucket/text",
        "the column `language` of shard_sizes; shard_size: the output has 1",
    ):
        assert names.put_into(text) == text
    assert OptionNames(app, ["trace"]).put_into("shuffle=False, packing='best_fit'") == (
        "--no-shuffle, --packing=best_fit"
    )
    assert OptionNames(app, []).put_into("`pattern`") == "`pattern`"


@pytest.mark.parametrize(
    ("words", "one_too_many"),
    [
        ("copy a b 1 x y", "1"),
        ("export megatron a b --output c", "b"),
        ("inspect a b c", "b"),
    ],
)
def test_an_argument_too_many_is_no_option(shardmill, words, one_too_many) -> None:
    command, *more = words.split()
    ended = refused(shardmill(command, *more))
    assert ended.stderr.startswith(f"shardmill: Unused Tokens: [{one_too_many!r}")
    assert ended.stderr.endswith(f"See `shardmill {command} --help`.\n")


@pytest.mark.parametrize("command", [name for name in app if not name.startswith("-")])
class TestHelp:
    """The help of each command."""

    def test_each_option_is_listed_once_and_no_default_is_empty(self, shardmill, command) -> None:
        said = shardmill(command, "--help").stdout
        shown = re.findall(r"^  ((?:--)?[A-Za-z][\w-]*)[ ,]", said, re.MULTILINE)
        arguments = app[command].assemble_argument_collection().filter_by(show=True)
        expected = [
            each.name if each.index is None else each.name.removeprefix("--").upper()
            for each in arguments
        ]
        assert sorted(shown) == sorted(expected)
        assert "[default: ]" not in said
        assert "()" not in said

    def test_its_examples_can_be_typed(self, command) -> None:
        shown = app[command].help_epilogue or ""
        assert max(map(len, shown.splitlines())) < 80
        examples = shown.replace(" \\\n     ", "").split("\n    ")[1:]
        assert len(examples) == 2
        for example in examples:
            program, *words = shlex.split(example)
            assert program == "shardmill"
            app.parse_args(words, exit_on_error=False, print_error=False)


def test_help_and_short_flags(shardmill) -> None:
    assert shardmill("help").stdout == shardmill("--help").stdout
    assert shardmill("help", "shard").stdout == shardmill("shard", "--help").stdout
    assert shardmill("-v").stdout == shardmill("--version").stdout
    assert "Traceback" in shardmill("inspect", "nope", "-v").stderr


@pytest.mark.parametrize(
    "command",
    [("verify",), ("inspect",), ("extend", "a"), ("trace", "--step", 0, "--batch-size", 1)],
)
def test_a_dataset_that_does_not_exist_is_wrong_usage_to_each_command(
    shardmill, tmp_path, command
) -> None:
    name, *options = command
    refused(shardmill(name, tmp_path / "nope", *options), "nope is no dataset")
    assert not (tmp_path / "nope").exists()


def test_the_options_page_is_current_and_every_option_has_words() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/options.md").read_text()
    assert page == reference(), (
        "python -m tests.flows.commands.options_page > docs/reference/options.md"
    )
    items = [line for line in page.splitlines() if line.startswith("- `")]
    assert len(items) > 60
    assert [item for item in items if item.endswith("): ")] == []
