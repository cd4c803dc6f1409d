"""`shardmill submit`: a deployment, run on a cluster's workers and followed."""

from flows.commands.consoles import out
from flows.commands.exit_codes import EXIT_FAILED
from flows.commands.quiet import quiet_prefect


def submit(deployment: str, *settings: str) -> int:
    """Run a deployment on a cluster's workers and follow it; Ctrl+C stops all of it, everywhere.

    Parameters
    ----------
    deployment
        Name of a deployment of the flow shard-dataset, such as shard-fineweb.
    settings
        Options that are to differ from the deployment's, as NAME=VALUE: output=s3://bucket/text.
    """
    quiet_prefect()
    from flows.submit import submit as run

    return 0 if run(deployment, settings, out) else EXIT_FAILED
