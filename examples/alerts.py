"""Have Prefect call a webhook when a run of `shard-dataset` fails or its process dies.

PREFECT_API_URL=http://127.0.0.1:4200/api python examples/alerts.py https://hooks.example/...

The text of the alert is the run's name, which says what failed and why. Run it again to change the
address. A cancelled run is not a failure and sends no alert.
"""

import sys

from prefect.automations import Automation, EventTrigger, Posture
from prefect.blocks.webhook import Webhook
from prefect.events.actions import CallWebhook
from pydantic import SecretStr

NAME = "shardmill-alerts"


def main() -> None:
    """Keep the address in a block, and make or change the automation that calls it."""
    (url,) = sys.argv[1:]
    block = Webhook(method="POST", url=SecretStr(url)).save(NAME, overwrite=True)
    automation = Automation(
        name=NAME,
        trigger=EventTrigger(
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
            match_related={
                "prefect.resource.role": "flow",
                "prefect.resource.name": "shard-dataset",
            },
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[
            CallWebhook(
                block_document_id=block,
                payload='{"text": "{{ flow_run.name }}: {{ flow_run.state.name }}"}',
            )
        ],
    )
    try:
        known = Automation.read(name=NAME)
    except ValueError:
        automation.create()
    else:
        assert known is not None
        automation.id = known.id
        automation.update()
    print(f"The automation {NAME} now calls the webhook.")


if __name__ == "__main__":
    main()
