"""`shardmill trace`: several steps at once, a table, and the plan."""

import inspect
import random
import re

import pyarrow.parquet as pq
import pytest

from flows.commands.app import run
from flows.commands.trace import TraceConfig
from streaming_ext import StreamingTokenDataset, StreamingTokenLoader, TokenStream
from streaming_ext.base.errors import UsageError, option_name
from streaming_ext.format.schema import content_hash
from tests.flows.commands.tracing import trace
from tests.streaming_ext.build import build, numbered_parts, some_documents
from tests.tasks.core.build_dataset import build_dataset
from tests.tasks.core.extending.extended import extended, write_source


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("traced") / "dataset"
    return str(build(folder, numbered_parts(some_documents(60)), compression="none").root)


def test_a_table_of_some_steps_is_what_exclude_takes(root, tmp_path, capsys) -> None:
    path = tmp_path / "excluded.parquet"
    assert trace(root, step="2:4", batch_size=2, ranks=2, output=str(path)) == 0
    table = pq.read_table(path).to_pylist()
    assert {row["step"] for row in table} == {2, 3}
    assert {row["rank"] for row in table} == {0, 1}
    assert f"{len(table)} spans of documents in" in capsys.readouterr().out
    dataset = StreamingTokenDataset(
        local=root, batch_size=2, exclude=path, dp_rank=0, dp_world_size=1
    )
    assert 8 <= dataset.size - dataset.plan.epoch_size < dataset.size


@pytest.mark.parametrize(
    ("requested", "name"), [({"step": "1"}, "x.svg.tmp"), ({"plan": True}, "x.svg")]
)
def test_a_file_that_cannot_be_written(root, tmp_path, requested, name) -> None:
    path = tmp_path / "x.svg"
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        trace(root, **requested, batch_size=2, output=str(path))
    assert not (tmp_path / "x.svg.tmp").is_symlink()
    with pytest.raises(OSError, match="[Nn]o such file or directory"):
        trace(root, **requested, batch_size=2, output=str(tmp_path / "a/b.svg"))


def test_where_a_document_comes(root, capsys) -> None:
    assert trace(root, document="source-1.parquet:4", batch_size=2, ranks=2) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("step ")
    assert "from its token 0 on" in printed
    step = printed.split()[1].rstrip(",")
    trace(root, step=step, batch_size=2, ranks=2)
    assert "row 4 of mem://source-1.parquet" in capsys.readouterr().out


def test_a_step_of_a_schedule(root, capsys) -> None:
    changes = {"global_batch": "0:4 50:8", "sequence_length": "0:4 50:8", "ranks": 2}
    assert trace(root, step="1:5", **changes) == 0
    steps = [part.count("rank ") for part in capsys.readouterr().out.split("step ")[1:]]
    assert steps == [4, 4, 4, 8]  # of 16, 16, 16 and 64 tokens


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": "4:2"}, "--step"),
        ({"step": "0", "epoch": 10**23}, "`epoch` must be a whole number up to"),
        ({"step": "0", "repeat": [2.0, 1.0]}, "1 datasets and 2 of `--repeat`: give one for each"),
        ({"document": "a:b"}, "--document: must match pattern"),
        ({"plan": True, "output": "plan.png"}, "Name the file .svg"),
        ({"plan": True, "epochs": 999_999}, "--epochs: must be less than or equal to 10000"),
        ({"plan": True, "proportion": ["1"], "max_repeats": [0.5], "epochs": 9}, "max_repeats"),
    ],
)
def test_wrong_usage(root, options, words) -> None:
    with pytest.raises(UsageError, match=words):
        trace(root, **{"batch_size": 2, **options})


MIXTURE = {"shuffle": True, "proportion": ["1", "1"], "epoch_size": "400", "num_canonical_nodes": 1}
PLAN = {"global_batch": "0:4 200:8", "sequence_length": "0:4 200:8", "ranks": 2}


def rows_of(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the words of each printed line."""
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def fractions_of(rows: list[list[str]]) -> list[float]:
    """Return the first stream's fraction in percent, by row of a plan."""
    return [float(row[-1].rstrip("%")) for row in rows[1:-1]]


def test_the_plan_as_a_table(root, capsys) -> None:
    assert trace(root, plan=True, epoch_size="100", epochs=2, **PLAN) == 0
    assert rows_of(capsys)[1:] == [
        ["0", "13", "0", "0", "208", "4", "4"],
        ["0", "9", "13", "208", "784", "8", "8"],
        ["1", "12", "22", "800", "1,568", "8", "8"],  # 800: two sequences were left out
        ["all", "34", "1,552"],
    ]


def test_a_mixture_s_plan_and_picture(root, tmp_path, capsys) -> None:
    settings = MIXTURE | {"proportion": ["0:1 800:2 1600:3", "1"]}
    assert trace(root, root, plan=True, **settings, **PLAN) == 0
    rows = rows_of(capsys)
    fractions = fractions_of(rows)
    assert [row[3] for row in rows[1:-1]] == ["0", "208", "848", "1,616"]
    assert fractions == pytest.approx([50, 50, 33, 25], abs=4)
    path = tmp_path / "plan.svg"
    assert trace(root, root, plan=True, output=str(path), **settings, **PLAN) == 0
    picture = path.read_text()
    for words in ("global batch", "tokens per sequence", "fraction of each stream", "stream 1"):
        assert words in picture
    capsys.readouterr()
    assert trace(root, root, step="3", **settings, **PLAN) == 0
    printed = capsys.readouterr().out
    assert "of stream 0" in printed
    assert "of stream 1" in printed


def test_an_older_generation(root, tmp_path, vocabulary, capsys) -> None:
    """The steps of an extended dataset's older generation are those that training on it had."""
    texts = [f"Text {number} of what was there first." for number in range(80)]
    old = build_dataset(
        tmp_path / "old",
        [texts],
        tokenizer=str(vocabulary),
        sequence_length=16,
        holdout_fraction=0,
    )

    def printed(*datasets: str, **requested: object) -> str:
        assert trace(*datasets, batch_size=4, shuffle=True, **requested) == 0
        return capsys.readouterr().out

    source = str(next((tmp_path / "old/sources").iterdir()))
    requested = [{"step": "0:9"}, {"document": f"{source}:7"}, {"grep": "Text 1"}]
    before = [printed(str(old), **each) for each in requested]
    parent = content_hash((old / "manifest.json").read_bytes())[:12]
    extended(old, write_source(tmp_path / "new.parquet", texts))
    assert [printed(str(old), generation=[parent], **each) for each in requested] == before
    newest = content_hash((old / "manifest.json").read_bytes())
    own = printed(str(old), generation=[newest], step="0:9")
    assert own == printed(str(old), step="0:9") != before[0]
    mixed = {"step": "0:4", "num_canonical_nodes": 1}
    printed(str(old), str(old), generation=[parent, newest], **mixed)
    with pytest.raises(UsageError, match="2 datasets and 1 of `--generation`"):
        trace(str(old), root, generation=[parent], batch_size=4, **mixed)


def parameters(of: object) -> set[str]:
    assert callable(of)
    return {*inspect.signature(of).parameters} - {"self", "stock"}


# Arguments that leave the documents of a step as they are: the location of the data, the way it is
# read, the other contents of a batch, and the rank of the caller.
NO_ORDER = {
    "streams",
    "remote",
    "local",
    "domain_by",
    "extras",
    "eot_id",
    "tokenizer",
    "token_dtype",
    "predownload",
    "cache_limit",
    "download_retry",
    "download_timeout",
    "storage_options",
    "replication",
    "dp_rank",
    "dp_world_size",
    "device_mesh",
    "process_group",
    "cp_rank",
    "cp_size",
    "cp_layout",
    "node_local",
    "proportion_by",  # for streams of `where` and `proportion`
    "proportions",
}
NO_ORDER_OF_A_STREAM = {"remote", "local", "split", "domain"}


def test_each_argument_that_decides_the_order_has_its_option() -> None:
    dataset, streams = parameters(StreamingTokenDataset.__init__), parameters(TokenStream)
    assert dataset >= NO_ORDER
    assert TraceConfig.model_fields.keys() >= dataset - NO_ORDER
    assert TraceConfig.model_fields.keys() >= streams - NO_ORDER_OF_A_STREAM


CHOICES = {
    "shuffle": [True, False],
    "shuffle_seed": [0, 5],
    "shuffle_block_size": [16, 100],
    "num_canonical_nodes": [1, 2, 4],
    "sequence_length": [4, 8, 16, "0:4 60:8"],
    "epoch_size": [96, "0.1k"],
    "drop_last": [True],
    "split": ["train", "holdout"],
}


@pytest.mark.parametrize("seed", range(12))
def test_settings_given_or_left_out_are_those_of_the_reader(root, tmp_path, seed) -> None:
    chance = random.Random(seed)
    chosen = chance.sample(sorted(CHOICES), seed % len(CHOICES))
    settings = {name: chance.choice(CHOICES[name]) for name in chosen}
    settings |= chance.choice([{"batch_size": 2}, {"global_batch": 4}, {"global_batch": "4"}])
    data = StreamingTokenDataset(
        local=root, **settings, extras=["sequence_ids"], dp_rank=1, dp_world_size=2
    )
    loader = StreamingTokenLoader(data)
    for _ in range(2):  # sequences of nothing but padding hold no document
        steps = [
            batch["sequence_ids"][(batch["tokens"] != data.eot_id).any(1)].tolist()
            for batch in loader
        ]
    last = len(loader) - 1 if data.drop_last else len(loader) - 2  # the last step may be filled up
    path, words = tmp_path / "documents.parquet", []
    for name, value in settings.items():
        option = option_name(name)
        flag = option if value is True else option_name(f"no_{name}")
        words += [flag] if isinstance(value, bool) else [option, str(value)]
    asked = [root, "--step", f"0:{last + 1}", "--epoch", str(loader.epoch), "--ranks", "2"]
    with pytest.raises(SystemExit) as ended:
        run(["trace", *asked, "--output", str(path), *words])
    assert ended.value.code == 0
    found = [[] for _ in range(last + 1)]
    for row in pq.read_table(path).to_pylist():
        own = found[row["step"]]
        if row["rank"] == 1 and row["sequence"] not in own:
            own.append(row["sequence"])
    assert found == steps[: last + 1] != []


def test_streams_of_chosen_documents(root, capsys) -> None:
    settings = {"step": "3", "batch_size": 8, "where": ["tokens > 15", ""]}
    assert trace(root, root, **settings) == 0
    printed = capsys.readouterr().out
    first = [part for part in printed.split("rank 0: ") if "of stream 0" in part]
    assert first
    spans = [line for part in first for line in part.splitlines()[1:]]
    rows = numbered_parts(some_documents(60))
    for line in spans:
        row, part = re.search(r"row (\d+) of mem://source-(\d)", line).groups()
        assert len(rows[int(part)][int(row)][1]) > 15
