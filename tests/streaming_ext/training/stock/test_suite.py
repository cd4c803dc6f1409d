"""mosaicml-streaming's own tests, run on this project's dataset: each outcome has its reason.

Their source is not part of this project. SHARDMILL_STOCK_SOURCE names a clone of it, with or
without files; without this variable, the test is skipped.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

FILE = "tests/test_streaming.py"
IMPORT = "from streaming.base import Stream, StreamingDataLoader, StreamingDataset\n"


def source_of_theirs() -> str:
    """Return the text of their tests."""
    told = os.environ.get("SHARDMILL_STOCK_SOURCE")
    if told is None:
        pytest.skip("SHARDMILL_STOCK_SOURCE names no clone of mosaicml/streaming: nothing to run")
    clone = Path(told)
    if (clone / FILE).exists():
        return (clone / FILE).read_text()
    command = ["git", f"--git-dir={clone}", "show", f"HEAD:{FILE}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def outcomes(folder: Path) -> dict[str, Counter[str]]:
    """Run their tests; count the cases of each that passed, or failed with which message."""
    tests = folder / "tests"
    (tests / "common").mkdir(parents=True)
    (tests / "__init__.py").touch()
    (tests / "common/__init__.py").touch()
    (tests / "common/utils.py").write_text("from stand_in import convert_to_mds\n")
    (tests / "conftest.py").write_text("from stand_in import local_remote_dir\n")
    stand_in = Path(__file__).with_name("stand_in.py").read_text()
    (folder / "stand_in.py").write_text(stand_in)
    text = source_of_theirs()
    assert IMPORT in text
    mine = text.replace(IMPORT, IMPORT.replace("streaming.base", "stand_in"))
    (folder / FILE).write_text(mine)
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        FILE,
        "-p",
        "no:cacheprovider",
        f"--junitxml={folder}/told.xml",
        f"--rootdir={folder}",
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(folder / "told.xml").iter("testcase"):  # noqa: S314
        name = re.sub(r"\[.*", "", case.attrib["name"])
        bad = [each for each in case if each.tag in ("failure", "error")]
        message = bad[0].attrib["message"].splitlines()[0] if bad else "passed"
        found.setdefault(name, Counter())[message] += 1
    return found


LEFT_OUT = "what is less than a global batch is left out, where theirs comes short or filled up"
PASSED = {
    "test_dataset_no_shuffle": 24,
    "test_dataloader_epoch_size_no_streams": 4,
    "test_dataloader_stratified_batching_user_set": 3,
    "test_dataloader_single_device": 8,
    "test_dataloader_determinism": 8,
    "test_dataloader_sample_order": 8,
    "test_streamingdataloader_mid_epoch_resumption": 4,
    "test_multiple_dataset_instantiation": 2,
}
# For each test: how many cases failed, what their message contains, and why.
FAILED = [
    (
        "test_tiny_dataset_exception",
        1,
        "DID NOT RAISE",
        "canonical nodes may be empty: one sequence is an epoch",
    ),
    ("test_no_batch_size_exception", 1, "UsageError", "the same is refused, in other words"),
    ("test_dataset_no_shuffle", 8, "assert \\[", "an epoch begins with what the last one left out"),
    (
        "test_dataloader_epoch_size_no_streams",
        4,
        "assert 8 == ",
        f"{LEFT_OUT}, here to a multiple of the canonical nodes",
    ),
    (
        "test_dataloader_per_stream_batching",
        8,
        "assert (125 == 126|70 == 71)",
        "no sequence comes twice to fill up a canonical node",
    ),
    (
        "test_dataloader_device_per_stream_batching",
        16,
        "no attribute 'sampling_method'",
        "it looks into their class, not at batches",
    ),
    (
        "test_dataloader_stratified_batching",
        8,
        "assert \\d == \\d",
        "within two of proportions that do not make whole sequences",
    ),
    ("test_dataloader_stratified_batching_user_set", 5, "assert \\d == \\d", "as above"),
    (
        "test_stratified_batching_Exception",
        7,
        "DID NOT RAISE",
        "a stream that is less than one sequence a step comes in some steps",
    ),
    (
        "test_dataloader_epoch_size_multiple_streams_default",
        8,
        "Leave epoch_size out, or give proportions",
        "theirs takes the proportions of sizes",
    ),
    (
        "test_dataloader_fixed_balanced_sampling",
        32,
        "`sampling_method`",
        "no sequence comes twice before all came once",
    ),
    (
        "test_dataloader_mid_epoch_exit",
        1,
        "assert 1 == 0",
        "a process that another one started must say its rank",
    ),
    ("test_py1e_shuffle_block_warning", 4, "`shuffle_algo`", "there is one shuffle"),
    ("test_dataloader_single_device", 8, "assert (77 == 78|234 == 235)", LEFT_OUT),
    ("test_sampling_method_invalid_Exception", 5, "`sampling_method`", "refused, whatever it says"),
    (
        "test_streamingdataloader_mid_epoch_resumption",
        4,
        "ConfigMismatchError",
        "it leaves num_canonical_nodes out on the resume, and shuffles",
    ),
    ("test_same_local_no_remote", 1, "assert 116 == 117", LEFT_OUT),
    (
        "test_same_local_diff_remote",
        1,
        "NotADatasetError",
        "a remote that holds no dataset is refused at once",
    ),
    ("test_custom_stream_name_and_kwargs", 1, "`stream_name`", "streams are TokenStream"),
]


@pytest.mark.soak
def test_each_outcome_has_its_reason(tmp_path) -> None:
    found = outcomes(tmp_path)
    for name, passed in PASSED.items():
        assert found[name].pop("passed") == passed, name
    for name, count, message, _ in FAILED:
        ours = [each for each in found[name] if re.search(message, each)]
        assert sum(found[name].pop(each) for each in ours) == count, (name, message)
    assert not any(found.values()), found
    assert len(found) == 22
    assert sum(PASSED.values()) + sum(count for _, count, _, _ in FAILED) == 184
