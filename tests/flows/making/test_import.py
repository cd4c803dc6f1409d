"""`shardmill import` as a user runs it."""

import json
from itertools import chain

from tests.command_line import succeeded
from tests.flows.conftest import files_of
from tests.tasks.core.exports.exporting import exported
from tests.tasks.core.imports.importing import documents_in, imported


def test_the_command_makes_what_it_is_asked_for(served, dataset, tmp_path) -> None:
    """Two at once make the bytes that one makes; all documents of text come back as they were."""
    source = exported(dataset, tmp_path / "export", "megatron")
    output = tmp_path / "out"
    options = {"tokenizer": str(served.tokenizer), "pattern": "gpt2", "part_size": 2**14}
    named = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    words = [word for pair in named for word in pair]
    command = ("import", "megatron", source, "--output", output, *words, "--workers", 2)
    ended = succeeded(served.run(*command, "--sequence-length", 16, "--shard-size", 1024))
    assert " MB/s)" in ended.stdout
    expected = imported("megatron", source, tmp_path / "one", **options)
    assert files_of(output) == files_of(expected)
    manifest = json.loads((output / "manifest.json").read_bytes())
    assert len(manifest["parts"]) > 2
    assert "holdout_by" not in manifest["spec"]["imported"]  # by ids, the default
    before, after = documents_in(dataset), documents_in(output)
    assert sorted(chain(*after.values())) == sorted(chain(*before.values()))
