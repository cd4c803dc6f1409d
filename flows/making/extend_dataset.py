"""The flow `extend-dataset`: further source files in, the next generation of a dataset out."""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dashboard.updates import name_the_failure
from flows.executors.look_ahead import MAX_THREADS
from flows.flow_body import run_body, run_name
from flows.shard_dataset import make_dataset
from streaming_ext.storage.secrets import require_no_secret
from tasks.core.extending.config import ExtendConfig


@flow(
    name="extend-dataset",
    flow_run_name=lambda: run_name("extend"),
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
    on_failure=[name_the_failure],
)
def extend_dataset(config: ExtendConfig, output: str | None = None) -> State:
    """Add source files to a published dataset as further parts, and publish its next generation.

    Run again after any stop: parts that are recorded are kept, the rest is done. Until the very end
    the dataset is what it was.

    Args:
        config: which dataset, by what, and with which means.
        output: the dataset, in place of the one in `config`, for a deployment that is run on
            several.
    """
    if output is not None:
        require_no_secret(output, "output")
        config = config.model_copy(update={"dataset": output})
    return run_body(config, None, lambda config: make_dataset(config.run))
