"""Put a tokenized part in place on the output and record it, in a worker process."""

import platform
import shutil

from prefect import task

from streaming_ext.text.parts.part import Part
from tasks.core.reporting.report import MOST_BAD_SHOWN, PartTimes
from tasks.core.workers.jobs import TokenizedPart
from tasks.core.workers.write_part import WriteJob
from tasks.running.retrying import OURS, retry_pauses
from tasks.running.run import Run


@task(
    name="write",
    task_run_name="write {part}",
    retries=3,
    retry_delay_seconds=retry_pauses,
    **OURS,
)
def write(run: Run, part: Part, tokenized: TokenizedPart) -> PartTimes:
    """Put the part's files and its record in place, then free its scratch space.

    Raises:
        ShardmillError: whatever the worker met.
    """
    plan = run.plan
    scratch = plan.part_scratch(part.number)
    job = WriteJob(
        part=part,
        scratch=str(scratch),
        output=str(run.storage),
        spec=plan.spec,
    )
    run.require_going()
    written = (run.movers if run.storage.remote else run.pool).run(job)
    shutil.rmtree(scratch)
    fetched = run.fetched_of(part)
    run.forget(part)
    return PartTimes(
        part=part.number,
        source=part.source,
        host=platform.node(),
        tokenized_at=tokenized.ended,
        text_bytes=tokenized.text_bytes,
        tokens=tokenized.tokens,
        documents=tokenized.documents,
        null_documents=tokenized.null_documents,
        empty_documents=tokenized.empty_documents,
        bad_documents=tokenized.bad_documents,
        bad_listed=tokenized.bad_listed[:MOST_BAD_SHOWN],
        dropped_documents=dict(tokenized.dropped_documents),
        shard_bytes=written.shard_bytes,
        fetched_bytes=fetched.fetched_bytes if fetched else 0,
        fetch_seconds=fetched.seconds if fetched else 0.0,
        tokenize_seconds=tokenized.seconds,
        write_seconds=written.seconds,
    )
