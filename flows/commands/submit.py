"""The command `shardmill submit`, which runs a deployment on a cluster."""

from flows.commands.options import DEFAULT_OUTPUT, OutputOptions
from flows.running import load_prefect, set_environment
from flows.stops import EXIT_FAILED, EXIT_TERMINATED, EXIT_USAGE
from flows.terminal.printing import err, out, say
from flows.terminal.run_progress import shown
from streaming_ext.base.errors import LostSightError
from tasks.core.reporting.progress import Snapshot


def submit(deployment: str, *settings: str, printing: OutputOptions = DEFAULT_OUTPUT) -> int:
    """Run a deployment on a cluster and follow it; return the exit code.

    Parameters
    ----------
    deployment
        Name of a deployment, such as shard-fineweb, or FLOW/DEPLOYMENT.
    settings
        Options that override the deployment's, as NAME=VALUE: output=s3://bucket/text.
    """
    with printing.applied(), shown(lambda: Snapshot(phase="starting"), err):
        set_environment()
        load_prefect()
        from flows.submit import ended_for_wrong_usage, open_client, start

        client = open_client()
    with printing.applied(), client:
        follower = start(client, deployment, settings)
        say(err, f"{deployment}: flow run {follower.run}, of the work pool {follower.pool}")
        say(err, f"Prefect shows this run at {follower.address}")
        try:
            with shown(follower.snapshot, err):
                ended = follower.follow()
        except LostSightError:
            raise  # without the server, the run cannot be cancelled
        except BaseException:
            err.print("Stopping all of it ...")
            say(err, follower.cancel())
            raise
        printing.result(
            {
                "flow_run": str(follower.run),
                "deployment": deployment,
                "state": ended.name,
                "message": ended.message,
            }
        )
        console = out if ended.is_completed() else err
        say(console, f"{ended.name}: {ended.message or 'no message'}")
    if ended.is_completed():
        return 0
    if ended.is_cancelled():
        return EXIT_TERMINATED
    return EXIT_USAGE if ended_for_wrong_usage(ended) else EXIT_FAILED
