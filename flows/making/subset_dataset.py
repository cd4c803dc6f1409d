"""The flow `subset-dataset`: some documents of a published dataset, as one of their own."""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dashboard.updates import name_the_failure
from flows.executors.look_ahead import MAX_THREADS
from flows.flow_body import run_name
from flows.making.making import Making
from tasks.core.moving.begun import BEGUN
from tasks.core.subsets.config import SubsetConfig
from tasks.core.subsets.plan import plan_subset, prepare
from tasks.core.subsets.publish import publish

SUBSET = Making(
    done="taken",
    compare=plan_subset,
    prepare=prepare,
    begun=BEGUN,
    publish=publish,
)


@flow(
    name="subset-dataset",
    flow_run_name=lambda: run_name("subset to"),
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
    on_failure=[name_the_failure],
)
def subset_dataset(config: SubsetConfig, output: str | None = None) -> State:
    """Take some documents of a published dataset, with their ids and origins.

    Args:
        config: which documents of which dataset, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return SUBSET.run(config, output)
