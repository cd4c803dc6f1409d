"""A secret in a refused URL reaches neither Prefect's records nor the terminal."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import PATIENCE_SECONDS, output_of, refused
from tests.warm import start_module

SECRET = "pl4ntedSecret"


URL = f"s3://KEY:{SECRET}@bucket/x"
QUERY = f"az://container/x?sig={SECRET}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["shard", "/x", "--tokenizer", "gpt2", "--output", "/y", f"--outputt={URL}"],
        ["shard", "/x", "--tokenizer", "gpt2", "--output", "/y", "--scratch", QUERY],
        ["shard", "/x", "--tokenizer", "gpt2", "--output", URL],
        ["shard", "/x", "--output", "/y", "--tokenizer", f"https://user:{SECRET}@host/v.tiktoken"],
        ["plan", URL, "--tokenizer", "gpt2"],
        ["verify", QUERY],
        ["inspect", f"ftp://user:{SECRET}@host/x"],
        ["trace", f"https://user:{SECRET}@host/x", "--step", "0", "--batch-size", "1"],
        ["demo", URL],
        ["submit", "demo", f"output={URL}"],
        ["submit", "demo", QUERY],
        ["submit", URL],
    ],
)
def test_is_not_repeated_by_any_command(shardmill, arguments) -> None:
    ended = refused(shardmill(*arguments))
    assert SECRET not in ended.stdout + ended.stderr
    assert "must not hold" in ended.stderr


GOOD = {"sources": ["/x"], "output": "/y", "tokenizer": "gpt2"}
DIRECT: list[tuple[str, dict[str, Any]]] = [
    ("shard-dataset", {"config": GOOD | {"output": URL}}),
    ("shard-dataset", {"config": GOOD | {"outptu": URL}}),
    ("shard-dataset", {"config": GOOD | {"output": [URL]}}),
    ("shard-dataset", {"config": GOOD | {"tokenizer": {"url": QUERY}}}),
    ("shard-dataset", {"config": URL}),
    ("shard-dataset", {"config": GOOD, "output": URL}),
    ("shard-dataset", {"config": GOOD, "output": QUERY}),
    ("shard-partition", {"output": URL, "run": "r", "partition": 1, "attempt": 1}),
]


def test_of_parameters_that_went_to_prefect_directly(served) -> None:
    """Prefect holds the parameters before any of our code runs; nothing else repeats them."""
    env = {**served.env, "PYTHONPATH": str(Path(__file__).parents[3])}
    module = "tests.flows.prefect_api.direct_runs"
    with start_module(module, [json.dumps(DIRECT)], env) as ran:
        stdout, stderr = output_of(ran, seconds=PATIENCE_SECONDS)
    assert ran.returncode == 0, stderr
    assert SECRET not in stdout + stderr
    runs = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
    assert len(runs) == len(DIRECT)
    for run in runs:
        assert run["state"] == "Failed"
        assert "must not hold" in run["message"]
