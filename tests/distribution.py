"""The distribution of tests over the processes of pytest-xdist: each file goes to one process.

The groups of files below stay together, because they share something or must not run at the same
time. Slow files start first. As many processes as there are cores use the one Prefect server;
more would overload its database. The others meanwhile run tests that need no server.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.servers import shared

# By the name of a group, in the order in which the groups start.
GROUPS: dict[str, tuple[str, ...]] = {
    # Only these use the work pools and deployments of the one Prefect server.
    "hosts": (
        "tests/deployments/test_commands.py",  # first: the others find what it made
        "tests/flows/hosts/test_cold.py",
        "tests/flows/hosts/test_hosts.py",
        "tests/flows/stops/test_suspension.py",
        "tests/deployments/test_ansible.py",
        "tests/deployments/test_pod.py",
    ),
    # These make vocabularies, and try all of Unicode on each.
    "tokenizer": (
        "tests/streaming_ext/text/tokenizer/test_engine.py",
        "tests/streaming_ext/text/tokenizer/test_tokenizer.py",
        "tests/streaming_ext/text/tokenizer/test_code_points.py",
    ),
    # These need sources that take long enough to be stopped, and the datasets made from them.
    "slow sources": (
        "tests/flows/stops/test_stopping.py",
        "tests/flows/stops/test_resume.py",
    ),
}
FIRST = (
    "tests/flows/hosts/test_restarts.py",
    "tests/test_readme.py",
    "tests/streaming_ext/training/trainers/test_recipes.py",
    "tests/flows/storage/test_object_store.py",
    "tests/flows/storage/test_faults.py",
    "tests/flows/test_bad_input.py",
    "tests/flows/storage/test_hub.py",
    "tests/benchmarks/test_scripts.py",
    "tests/flows/dashboard/test_dashboard.py",
    "tests/flows/phases/test_shuffle.py",
    "tests/flows/test_shard.py",
    "tests/flows/test_spans.py",
    "tests/test_documents.py",
    "tests/flows/hosts/test_dask.py",
    "tests/test_examples.py",
    # These mostly wait: at the end, no other tests would be left to run meanwhile.
    "tests/streaming_ext/store/test_contract.py",
    "tests/streaming_ext/test_s3.py",
    "tests/streaming_ext/store/test_remote_stores.py",
    "tests/streaming_ext/training/test_token_dataset.py",
    "tests/tasks/core/imports/test_remote.py",
    "tests/streaming_ext/transforms/test_file_faults.py",
    "tests/tasks/core/estimate/test_estimate.py",
    "tests/tasks/core/shuffle/test_shuffle.py",
    "tests/streaming_ext/store/test_object_faults.py",
    "tests/streaming_ext/text/sources/test_remote.py",
    "tests/streaming_ext/training/test_own_process.py",
    "tests/test_layering.py",
)
# Files, folders and groups whose tests use the Prefect server.
SERVED = (
    "hosts",
    "slow sources",
    "tests/flows/",
    "tests/deployments/",
    "tests/test_examples.py",
    "tests/test_coming_from.py",
    "tests/test_documents.py",
)
# Files in these folders that do not use it; some start a server of their own.
NOT_SERVED = (
    "tests/flows/hosts/test_restarts.py",
    "tests/flows/commands/test_config_file.py",
    "tests/flows/commands/test_explain.py",
    "tests/flows/prefect_api/test_connection.py",
    "tests/flows/prefect_api/test_departure.py",
    "tests/flows/prefect_api/test_own_server.py",
    "tests/flows/prefect_api/test_server_url.py",
    "tests/flows/stops/test_stops.py",
    "tests/flows/test_plan.py",
    "tests/flows/test_running.py",
)
_GROUP_OF = {file: name for name, files in GROUPS.items() for file in files}
_ORDER = [*_GROUP_OF, *FIRST]


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Schedule files, or groups of them, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        number = self.nodes.index(node)
        group = next_group(self.workqueue, served=number < (os.cpu_count() or 1))
        if group is None:
            node.shutdown()  # after it has finished the tests it has
            return
        self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)


def group_of(nodeid: str) -> str:
    """Return the group of a test, or its file if it is in none."""
    file = nodeid.split("::", maxsplit=1)[0]
    return _GROUP_OF.get(file, file)


def is_served(group: str) -> bool:
    """Return whether tests of a group use the one Prefect server."""
    return group.startswith(SERVED) and group not in NOT_SERVED


def next_group(waiting: Iterable[str], *, served: bool) -> str | None:
    """Return the first group for a process that uses the Prefect server, or for one that does not.

    A process that uses the server takes groups that need it as long as there are any: otherwise the
    others would have to wait for it at the end.
    """
    groups = list(waiting)
    mine = [group for group in groups if is_served(group) is served]
    return next(iter(mine or (groups if served else ())), None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    """Return the scheduler; pytest-xdist calls this hook."""
    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow files first, so that no process is left alone with one at the end.

    Raises:
        pytest.UsageError: a test uses the Prefect server, and `SERVED` does not say so.
    """
    for item in items:
        uses = "api_url" in getattr(item, "fixturenames", ())
        if uses and not is_served(group_of(item.nodeid)):
            raise pytest.UsageError(f"{item.nodeid}: name it in SERVED of tests/distribution.py")
    place = {file: number for number, file in enumerate(_ORDER)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::")[0], len(place)))


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder that the processes share, once per run."""
    if not hasattr(config, "workerinput"):
        root = shared.begin()
        config.add_cleanup(lambda: shared.end(root))
