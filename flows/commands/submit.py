"""`shardmill submit`: a deployment, run on a cluster's workers and followed."""

from functools import partial

from flows.commands.options import DEFAULT_OUTPUT, OutputOptions
from flows.running import load_prefect
from flows.stops import EXIT_FAILED, EXIT_TERMINATED, EXIT_USAGE
from flows.terminal.consoles import err, out
from flows.terminal.visible import say


def submit(deployment: str, *settings: str, printing: OutputOptions = DEFAULT_OUTPUT) -> int:
    """Run a deployment on a cluster's workers and follow it; Ctrl+C stops all of it, everywhere.

    Parameters
    ----------
    deployment
        Name of a deployment of the flow shard-dataset, such as shard-fineweb.
    settings
        Options that are to differ from the deployment's, as NAME=VALUE: output=s3://bucket/text.
    """
    load_prefect()
    from flows.dashboard.followed import FollowedRun
    from flows.submit import (
        LostSightError,
        cancel,
        ended_for_wrong_usage,
        follow,
        open_client,
        start,
    )
    from flows.terminal.run_progress import shown

    with printing.applied() as listen, open_client() as client:
        listen()
        submitted = start(client, deployment, settings)
        of = f"of the work pool {submitted.pool}"
        say(err, f"{submitted.deployment}: flow run {submitted.run}, {of}")
        followed = FollowedRun(submitted.run)
        try:
            with shown(followed, err):
                ended = follow(client, submitted, followed)
        except LostSightError:
            raise  # nobody there to ask for its end
        except BaseException:
            err.print("Stopping all of it ...")
            cancel(client, submitted.run, partial(say, err))
            raise
        printing.result(
            {
                "flow_run": str(submitted.run),
                "deployment": submitted.deployment,
                "state": ended.name,
                "message": ended.message,
            }
        )
        where = out if ended.is_completed() else err
        say(where, f"{ended.name}: {ended.message or 'it says no more'}")
    if ended.is_completed():
        return 0
    if ended.is_cancelled():
        return EXIT_TERMINATED
    return EXIT_USAGE if ended_for_wrong_usage(ended) else EXIT_FAILED
