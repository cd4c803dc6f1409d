"""Nothing that a run starts listens on anything but loopback."""

import psutil
import pytest

from flows.prefect_api.connection import PrefectApi
from tasks.core.reporting.progress import RunProgress


def test_the_embedded_api_listens_on_loopback_only() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        # What a user may have set for a server of his own must not open this one up.
        patch.setenv("PREFECT_SERVER_API_HOST", "0.0.0.0")  # noqa: S104
        with PrefectApi() as api, api.connected(RunProgress()):
            url = api.url
            assert url.startswith("http://127.0.0.1:")
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            listening = [
                connection.laddr
                for process in family
                for connection in process.net_connections(kind="inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            assert int(url.split(":")[2].partition("/")[0]) in {place.port for place in listening}
            assert {place.ip for place in listening} <= {"127.0.0.1", "::1"}
