"""The flow `import-dataset`: files of ids of another trainer in, a published dataset out."""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dashboard.updates import name_the_failure
from flows.executors.look_ahead import MAX_THREADS
from flows.flow_body import run_body, run_name
from flows.shard_dataset import make_dataset
from tasks.core.imports.config import ImportConfig


@flow(
    name="import-dataset",
    flow_run_name=lambda: run_name("import"),
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
    on_failure=[name_the_failure],
)
def import_dataset(config: ImportConfig, output: str | None = None) -> State:
    """Take over what another trainer reads into a dataset, without tokenizing.

    Run again after any stop: parts that are recorded are kept, the rest is done, and the bytes
    are those of an undisturbed run.

    Args:
        config: what to import, as what, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return run_body(config, output, lambda config: make_dataset(config.run))
