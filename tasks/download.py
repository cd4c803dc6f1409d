"""Bring a source file within reach of the workers."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from streaming_ext.errors import SourceError
from tasks.run import Part, Run, is_transient


@task(
    name="download",
    task_run_name="download {part}",
    retries=4,
    retry_delay_seconds=[1, 5, 20, 60],
    retry_condition_fn=is_transient,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def download(run: Run, part: Part) -> Path:
    """The path of the file's bytes on this machine; a local file stays where it is.

    Raises:
        SourceError: the file is gone.
    """
    path = Path(part.source.url)
    if not path.is_file():
        raise SourceError(f"{path}: the file is gone since the run began.")
    return path
