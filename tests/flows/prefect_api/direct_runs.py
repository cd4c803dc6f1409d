"""A program that runs flows whose parameters went directly to Prefect's API, as workers do.

It prints, as JSON lines, all that Prefect then holds of each run except its parameters.
"""

import json
import sys
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.flow_engine import run_flow
from prefect.flows import Flow

from flows.datasets import shard_dataset
from flows.prefect_api.connection import drain
from flows.shard_partition import shard_partition


def main(requested: list[tuple[str, dict[str, Any]]]) -> None:
    """Run each flow with its parameters, and print what Prefect holds of it."""
    flows: dict[str, Flow[Any, Any]] = {
        "shard-dataset": shard_dataset,
        "shard-partition": shard_partition,
    }
    with get_client(sync_client=True) as client:
        started = []
        for name, parameters in requested:
            run = client.create_flow_run(flows[name], parameters=parameters)
            run_flow(flows[name], flow_run=run, return_type="state")
            started.append(run.id)
        drain(20)
        for number in started:
            run = client.read_flow_run(number)
            assert run.state is not None
            logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[number])))
            artifacts = client.read_artifacts(
                artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[number]))
            )
            printed = {
                "name": run.name,
                "state": run.state.name,
                "message": run.state.message,
                "logs": [log.message for log in logs],
                "artifacts": [str(artifact) for artifact in artifacts],
            }
            print(json.dumps(printed))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
