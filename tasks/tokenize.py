"""Turn a source file into packed shards on scratch, in a worker process."""

from pathlib import Path

from prefect import task

from tasks.core.planning.part import Part
from tasks.core.workers.jobs import TokenizedPart, TokenizeJob
from tasks.running.retrying import OURS
from tasks.running.run import Run


@task(
    name="tokenize",
    task_run_name="tokenize {part}",
    retries=2,
    retry_delay_seconds=[1, 5],
    **OURS,
)
def tokenize(run: Run, part: Part, local: Path) -> TokenizedPart:
    """Tokenize the file at `local`; the shards stay on scratch, only their counts come back.

    Raises:
        ShardmillError: whatever the worker met.
    """
    plan = run.plan
    tokenized = run.pool.run(
        TokenizeJob(
            part=part,
            local_path=str(local),
            scratch=str(plan.part_scratch(part.number)),
            tokenizer_folder=str(plan.tokenizer_folder),
            engine=plan.config.engine,
            spec=plan.spec,
        ),
        on_progress=run.follow(part),
    )
    run.follow(part)(tokenized.progress)
    return tokenized
