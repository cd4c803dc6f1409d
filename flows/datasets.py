"""The flows: each makes an output of sources or of published datasets; run again, it resumes."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.dashboard.updates import name_the_failure
from flows.executors.look_ahead import MAX_THREADS
from flows.making import make_output, run_name
from streaming_ext.store.locations import require_no_secret
from tasks.core.config import ShardConfig
from tasks.core.derive.config import CopyConfig, ExportConfig, MergeConfig, SubsetConfig
from tasks.core.derive.export_plan import plan_export
from tasks.core.derive.move_plan import plan_copy, plan_merge
from tasks.core.derive.subset_plan import plan_subset
from tasks.core.shard.extend_config import ExtendConfig
from tasks.core.shard.import_config import ImportConfig
from tasks.core.shard.plan import plan_shard


def _settings(words: str) -> dict[str, Any]:
    """How Prefect runs these flows.

    Args:
        words: what a run does, before the output in its name.
    """
    return {
        "flow_run_name": lambda: run_name(words),
        "task_runner": ThreadPoolTaskRunner(max_workers=MAX_THREADS),
        "persist_result": False,
        "on_failure": [name_the_failure],
    }


@flow(name="shard-dataset", **_settings("shard"))
def shard_dataset(config: ShardConfig, output: str | None = None) -> State:
    """Shard source files into a tokenized MDS dataset with a holdout split.

    Args:
        config: what to shard, into what, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return make_output(config, output, plan_shard)


@flow(name="extend-dataset", **_settings("extend"))
def extend_dataset(config: ExtendConfig, output: str | None = None) -> State:
    """Add source files to a published dataset as further parts, and publish its next generation.

    Until the very end the dataset is what it was.

    Args:
        config: which dataset, by what, and with which means.
        output: the dataset, in place of the one in `config`, for a deployment that is run on
            several.
    """
    if output is not None:
        require_no_secret(output, "output")
        config = config.model_copy(update={"dataset": output})
    return make_output(config.run, None, plan_shard)


@flow(name="import-dataset", **_settings("import"))
def import_dataset(config: ImportConfig, output: str | None = None) -> State:
    """Make a dataset of files of ids that another trainer reads, without tokenizing.

    Args:
        config: what to import, as what, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return make_output(config.run, output, plan_shard)


@flow(name="export-dataset", **_settings("export"))
def export_dataset(config: ExportConfig, output: str | None = None) -> State:
    """Write a published dataset as another trainer reads it.

    Args:
        config: what to export, as what, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return make_output(config, output, plan_export)


@flow(name="copy-dataset", **_settings("copy to"))
def copy_dataset(config: CopyConfig, output: str | None = None) -> State:
    """Copy a published dataset or export, every byte compared with its hash on the way.

    Args:
        config: what to copy, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return make_output(config, output, plan_copy)


@flow(name="merge-datasets", **_settings("merge to"))
def merge_datasets(config: MergeConfig, output: str | None = None) -> State:
    """Make one dataset of several, without tokenizing or compressing anything again.

    Args:
        config: which datasets, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return make_output(config, output, plan_merge)


@flow(name="subset-dataset", **_settings("subset to"))
def subset_dataset(config: SubsetConfig, output: str | None = None) -> State:
    """Take some documents of a published dataset, with their ids and origins.

    Args:
        config: which documents of which dataset, where to, and with which means.
        output: in place of the one in `config`, for a deployment that is run on several.
    """
    return make_output(config, output, plan_subset)
