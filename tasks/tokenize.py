"""Turn a part's pieces into packed shards on scratch, in a worker process."""

from prefect import task

from streaming_ext.text.parts.part import Part
from tasks.core.deduplicate.known_texts import finds_copies
from tasks.core.planning.run_plan import RunPlan
from tasks.core.storage import Storage
from tasks.core.workers.jobs import TokenizedPart
from tasks.core.workers.tokenize_part import TokenizeJob
from tasks.running.retrying import OURS
from tasks.running.run import Run


def tokenize_job(
    plan: RunPlan, storage: Storage, part: Part, paths: tuple[str, ...] = ()
) -> TokenizeJob:
    """What a worker is to do for a part.

    Args:
        plan: of the run.
        storage: of its output.
        part: to tokenize.
        paths: where its pieces lie that were fetched.
    """
    return TokenizeJob(
        part=part,
        paths=paths,
        scratch=str(plan.part_scratch(part.number)),
        tokenizer_folder=str(plan.tokenizer_folder),
        engine=plan.config.engine,
        spec=plan.spec,
        first_source=plan.first_sources[part.number] if plan.first_sources else 0,
        first=plan.first_part,
        one_run=storage.remote,  # each part of the second stage asks for a range of each
        known_on=str(storage) if finds_copies(plan.spec, storage) else None,
    )


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
    listen = run.follow(part)
    job = tokenize_job(run.plan, run.storage, part, run.paths_of(part))
    tokenized = run.pool.run(job, on_progress=listen)
    listen(tokenized.progress)
    return tokenized
