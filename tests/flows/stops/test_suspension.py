"""A deployed run is suspended and resumed, as with the dashboard's buttons."""

from uuid import UUID

from prefect.flow_runs import resume_flow_run, suspend_flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.command_line import assert_same_dataset, wait_for
from tests.servers.prefect.worker import cluster


def test_a_suspended_run_resumes(slow, undisturbed, api_url, tmp_path) -> None:
    output = tmp_path / "out"
    (tmp_path / "host").mkdir()
    with (
        temporary_settings({PREFECT_API_URL: api_url}),
        cluster(api_url, slow.env, tmp_path / "host") as hosts,
    ):
        run = hosts.shard(slow, output, executor="here")
        hosts.frozen()  # suspended while its worker processes get ready
        suspend_flow_run(flow_run_id=UUID(run))
        wait_for(hosts.no_work_left)
        assert hosts.flow_run(run)["state_name"] == "Suspended"
        assert not (output / "manifest.json").exists()

        resume_flow_run(UUID(run))
        assert hosts.wait(run)["type"] == "COMPLETED"
    assert_same_dataset(undisturbed, output)
