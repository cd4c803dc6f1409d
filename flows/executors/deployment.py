"""The deployment whose runs work on partitions, as the parent run sends them."""

from dataclasses import dataclass
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from flows.prefect_api.connection import may_pass
from streaming_ext.errors import UsageError

PARAMETERS = {"output", "run", "partition", "attempt"}  # of the flow `shard-partition`


@dataclass(frozen=True, slots=True)
class PartitionDeployment:
    """A deployment of `shard-partition`.

    Attributes:
        name: FLOW/DEPLOYMENT.
        work_pool: whose workers take its runs.
    """

    name: str
    work_pool: str

    def start_run(self, output: str, run: str, partition: int, attempt: int) -> UUID | None:
        """Have a worker take an attempt at a partition; None where the server does not answer now.

        Asked again, it is the same run.

        Raises:
            UsageError: the deployment is gone, or cannot take a partition.
        """
        try:
            created = run_deployment(
                self.name,
                parameters={
                    "output": output,
                    "run": run,
                    "partition": partition,
                    "attempt": attempt,
                },
                timeout=0,
                idempotency_key=f"{run}-{partition}-{attempt}",
            )
        except ObjectNotFound as error:
            raise UsageError(
                f"--executor prefect://{self.name}: the deployment was deleted. Make it with "
                "`prefect deploy` (docs/clusters.md) and run the same command again to go on."
            ) from error
        except httpx.HTTPStatusError as error:
            if may_pass(error.response):
                return None
            raise UsageError(
                f"--executor prefect://{self.name}: the Prefect server starts no run of it for a "
                f"partition: {_detail(error.response)}."
            ) from error
        except httpx.HTTPError:
            return None
        assert isinstance(created, FlowRun)  # noqa: S101  (outside of a coroutine it is)
        return created.id


def find_deployment(name: str) -> PartitionDeployment:
    """The deployment of this name.

    Raises:
        UsageError: there is none, or it is of a flow that takes no partitions.
    """
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(name)
        except ObjectNotFound as error:
            raise UsageError(
                f"--executor prefect://{name}: the Prefect server at {client.api_url} has no "
                "such deployment. Start a server, set PREFECT_API_URL, and make it with `prefect "
                "deploy` (docs/clusters.md)."
            ) from error
    schema = found.parameter_openapi_schema or {}
    if missing := PARAMETERS - set(schema.get("properties", {})):
        raise UsageError(
            f"--executor prefect://{name}: this deployment works on no partitions: it has no "
            f"parameter {', '.join(sorted(missing))}. Name a deployment of the flow "
            "shard-partition, such as prefect://shard-partition/hosts."
        )
    return PartitionDeployment(name, found.work_pool_name or "?")


def _detail(answer: httpx.Response) -> str:
    """What a server says of a request that it refuses, on one line."""
    try:
        said = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        said = answer.text
    return f"{answer.status_code} {' '.join(str(said).split())[:300]}"
