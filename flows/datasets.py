"""The flows; each makes an output of sources or of published datasets, and resumes if run again."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.task_runners import ThreadPoolTaskRunner

from flows.build_flow import build_output, run_name
from flows.dashboard.updates import name_the_failure
from flows.executors.here import MAX_THREADS
from tasks.core.config import ExtendConfig, ImportConfig, ShardConfig
from tasks.core.derive.annotate import plan_annotate
from tasks.core.derive.config import (
    AnnotateConfig,
    CopyConfig,
    ExportConfig,
    MergeConfig,
    SubsetConfig,
)
from tasks.core.derive.export import plan_export
from tasks.core.derive.move import plan_copy, plan_merge
from tasks.core.derive.subset import plan_subset
from tasks.core.shard.plan import plan_extend, plan_import, plan_shard


def _settings(words: str) -> dict[str, Any]:
    """Return the settings with which Prefect runs these flows.

    Args:
        words: the beginning of the name of a run, before its output.
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
        config: sources, output and options.
        output: an output that overrides the configured one, for deployments with several.
    """
    return build_output(plan_shard, config, output)


@flow(name="extend-dataset", **_settings("extend"))
def extend_dataset(config: ExtendConfig, output: str | None = None) -> State:
    """Add source files to a published dataset as further parts, and publish its next generation.

    Until the end of the run, readers see the dataset as before.

    Args:
        config: dataset, sources and options.
        output: a dataset that overrides the configured one, for deployments with several.
    """
    return build_output(plan_extend, config, output, field="dataset")


@flow(name="import-dataset", **_settings("import"))
def import_dataset(config: ImportConfig, output: str | None = None) -> State:
    """Make a dataset of the token files of another trainer, without tokenizing.

    Args:
        config: sources, output and options.
        output: an output that overrides the configured one, for deployments with several.
    """
    return build_output(plan_import, config, output)


@flow(name="export-dataset", **_settings("export"))
def export_dataset(config: ExportConfig, output: str | None = None) -> State:
    """Write a published dataset in the format of another trainer.

    Args:
        config: dataset, format, output and options.
        output: an output that overrides the configured one, for deployments with several.
    """
    return build_output(plan_export, config, output)


@flow(name="copy-dataset", **_settings("copy to"))
def copy_dataset(config: CopyConfig, output: str | None = None) -> State:
    """Copy a published dataset or export, and compare every byte with its hash.

    Args:
        config: dataset, output and options.
        output: an output that overrides the configured one, for deployments with several.
    """
    return build_output(plan_copy, config, output)


@flow(name="merge-datasets", **_settings("merge to"))
def merge_datasets(config: MergeConfig, output: str | None = None) -> State:
    """Make one dataset of several, without tokenizing or compressing again.

    Args:
        config: datasets, output and options.
        output: an output that overrides the configured one, for deployments with several.
    """
    return build_output(plan_merge, config, output)


@flow(name="subset-dataset", **_settings("subset to"))
def subset_dataset(config: SubsetConfig, output: str | None = None) -> State:
    """Make a dataset of some documents of a published one, with their ids and origins.

    Args:
        config: dataset, documents, output and options.
        output: an output that overrides the configured one, for deployments with several.
    """
    return build_output(plan_subset, config, output)


@flow(name="annotate-dataset", **_settings("annotate"))
def annotate_dataset(config: AnnotateConfig, output: str | None = None) -> State:
    """Add the columns of a table to the documents of a published dataset.

    Until the end of the run, readers see the dataset as before.

    Args:
        config: dataset, table and options.
        output: a dataset that overrides the configured one, for deployments with several.
    """
    return build_output(plan_annotate, config, output, field="dataset")
