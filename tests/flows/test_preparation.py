"""What a run does before there is a flow run, while Prefect's API gets ready."""

from pathlib import Path

from flows.preparation import prepared_ahead, preparing
from tasks.core.config import ShardConfig
from tasks.core.reporting.progress import RunProgress
from tasks.core.workers.jobs import RESULT_FILE
from tests.command_line import wait_for


def test_workers_tokenize_before_there_is_a_flow_run(
    tmp_path: Path, vocabulary: Path, sources: Path
) -> None:
    config = ShardConfig(
        sources=(str(sources),), output=str(tmp_path / "out"), tokenizer=str(vocabulary),
        pattern="gpt2", engine="reference", workers=1,
    )  # fmt: skip
    progress = RunProgress()
    with prepared_ahead(config, progress), preparing(config, progress) as prepared:
        assert prepared.begun is not None
        assert len(prepared.plan.todo) > 1
        wait_for((prepared.plan.part_scratch(0) / RESULT_FILE).exists)
        assert not prepared.plan.part_scratch(1).exists()  # one a worker
    assert not (tmp_path / "out/parts").exists()  # a part that no task took is none
