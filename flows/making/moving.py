"""The flows `copy-dataset` and `merge-datasets`: what is published, elsewhere or as one."""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dashboard.updates import name_the_failure
from flows.executors.look_ahead import MAX_THREADS
from flows.flow_body import run_name
from flows.making.making import MOVED_AT_ONCE, Making
from tasks.core.moving.begun import BEGUN
from tasks.core.moving.config import CopyConfig, MergeConfig
from tasks.core.moving.plan import plan_copy, plan_merge, prepare, publish

COPY = Making(
    done="copied",
    compare=plan_copy,
    prepare=prepare,
    begun=BEGUN,
    publish=publish,
    at_least=MOVED_AT_ONCE,
)
MERGE = Making(
    done="merged",
    compare=plan_merge,
    prepare=prepare,
    begun=BEGUN,
    publish=publish,
    at_least=MOVED_AT_ONCE,
)


@flow(
    name="copy-dataset",
    flow_run_name=lambda: run_name("copy to"),
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
    on_failure=[name_the_failure],
)
def copy_dataset(config: CopyConfig, output: str | None = None) -> State:
    """Copy a published dataset or export, every byte compared with its hash on the way.

    Run again after any stop: what is there is kept, the rest is copied.

    Args:
        config: what to copy, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return COPY.run(config, output)


@flow(
    name="merge-datasets",
    flow_run_name=lambda: run_name("merge to"),
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
    on_failure=[name_the_failure],
)
def merge_datasets(config: MergeConfig, output: str | None = None) -> State:
    """Make one dataset of several, without tokenizing or compressing anything again.

    Args:
        config: which datasets, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return MERGE.run(config, output)
