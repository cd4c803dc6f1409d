"""Turn a part's pieces into packed shards on scratch, in a worker process."""

from prefect import task

from streaming_ext.text.parts.part import Part
from tasks.core.deduplicate.known_texts import finds_copies
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
def tokenize(run: Run, part: Part, fetched: int = 0) -> TokenizedPart:
    """Tokenize what was fetched, or lies here; the shards stay on scratch, their counts come back.

    Raises:
        ShardmillError: whatever the worker met.
    """
    plan = run.plan
    tokenized = run.pool.run(
        TokenizeJob(
            part=part,
            paths=run.paths_of(part),
            scratch=str(plan.part_scratch(part.number)),
            tokenizer_folder=str(plan.tokenizer_folder),
            engine=plan.config.engine,
            spec=plan.spec,
            first_source=plan.first_sources[part.number] if plan.first_sources else 0,
            first=plan.first_part,
            one_run=run.storage.remote,  # each part of the second stage asks for a range of each
            known_on=str(run.storage) if finds_copies(plan.spec, run.storage) else None,
        ),
        on_progress=run.follow(part),
    )
    run.follow(part)(tokenized.progress)
    return tokenized
