"""The flow `export-dataset`: a published dataset in, files of another trainer out."""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dashboard.updates import name_the_failure
from flows.executors.look_ahead import MAX_THREADS
from flows.flow_body import run_name
from flows.making.making import Making
from tasks.core.exports.config import ExportConfig
from tasks.core.exports.plan import compare_with_output, prepare
from tasks.core.exports.publish import publish
from tasks.core.exports.records import BEGUN

EXPORT = Making(
    done="exported",
    compare=compare_with_output,
    prepare=prepare,
    begun=BEGUN,
    publish=publish,
)


@flow(
    name="export-dataset",
    flow_run_name=lambda: run_name("export"),
    task_runner=ThreadPoolTaskRunner(max_workers=MAX_THREADS),  # type: ignore[arg-type]
    persist_result=False,
    on_failure=[name_the_failure],
)
def export_dataset(config: ExportConfig, output: str | None = None) -> State:
    """Write a published dataset as another trainer reads it.

    Run again after any stop: parts that are recorded are kept, the rest is done, and the bytes
    are those of an undisturbed run.

    Args:
        config: what to export, as what, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return EXPORT.run(config, output)
