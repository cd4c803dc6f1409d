"""How tests are spread over the processes of pytest-xdist: a file goes to one of them, as a whole.

The groups of files below stay together, for what they share or must not do at the same time. What
takes long begins early.
"""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.servers import shared

# By the name of a group, in the order in which they begin.
GROUPS: dict[str, tuple[str, ...]] = {
    # The work pools and deployments of the one Prefect server are theirs.
    "hosts": (
        "tests/flows/hosts/test_hosts.py",
        "tests/flows/stops/test_suspension.py",
        "tests/flows/hosts/test_network.py",
        "tests/flows/hosts/test_unfit.py",
        "tests/deployments/test_commands.py",
        "tests/deployments/test_ansible.py",
    ),
    # Vocabularies, and all of Unicode tried on each.
    "tokenizer": (
        "tests/streaming_ext/text/tokenizer/test_engine.py",
        "tests/streaming_ext/text/tokenizer/test_tokenizer.py",
        "tests/streaming_ext/text/tokenizer/test_code_points.py",
    ),
    # Sources that take long enough to be stopped, and what they become.
    "slow sources": (
        "tests/flows/stops/test_stopping.py",
        "tests/flows/stops/test_resume.py",
    ),
}
FIRST = (
    "tests/flows/hosts/test_restarts.py",
    "tests/test_readme.py",
    "tests/streaming_ext/trainers/test_recipes.py",
    "tests/flows/storage/test_object_store.py",
    "tests/flows/storage/test_faults.py",
    "tests/flows/test_bad_input.py",
    "tests/flows/storage/test_hub.py",
    "tests/benchmarks/test_scripts.py",
    "tests/flows/dashboard/test_dashboard.py",
)
_GROUP_OF = {file: name for name, files in GROUPS.items() for file in files}
_ORDER = [*_GROUP_OF, *FIRST]


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Files, or groups of them, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", maxsplit=1)[0]
        return _GROUP_OF.get(file, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    """See pytest-xdist."""
    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes long, so that no process is left alone with it in the end."""
    place = {file: number for number, file in enumerate(_ORDER)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::")[0], len(place)))


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of what is shared, once a run."""
    if not hasattr(config, "workerinput"):
        root = shared.begin()
        config.add_cleanup(lambda: shared.end(root))
