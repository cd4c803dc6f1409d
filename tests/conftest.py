"""Fixtures of all tests: sources, a vocabulary, servers, the command line."""

import gc
import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import certifi
import pytest
from hypothesis import settings

from tasks.core.synthetic import make_documents, train_vocabulary, write_parquet_files
from tests.command_line import CommandLine
from tests.servers import shared
from tests.servers.prefect.database import give_database
from tests.servers.prefect.server import start_prefect_server
from tests.servers.storage.azurite import AzuriteServer, azurite_server
from tests.servers.storage.gcs import GcsServer, gcs_server
from tests.servers.storage.swift import SwiftServer, aws_environment, make_bucket, swift_server

pytest_plugins = ["tests.distribution", "tests.tokenizers"]

# A busy machine is no defect: the suite limits the time of a test, not of each example.
settings.register_profile("shardmill", deadline=None)
settings.load_profile("shardmill")

NUM_FILES = 5
DOCUMENTS_A_FILE = 60


def pytest_configure() -> None:
    """Restore signals that are ignored because `nohup` or a script's `&` started the suite.

    Also keep numpy from starting threads for matrices: they spin for 50 ms in each process.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A fork server (Python 3.14) imports torch once for all the workers that it starts.
    multiprocessing.set_forkserver_preload(["streaming_ext.training.loader"])
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            python = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, python)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests with garbage collection off, and freeze them: all of them stay.

    What tests leave is collected as usual, and a fork of this process need not copy the pages of
    the collected tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Make `fsync` do nothing in this process: tests kill processes, not machines.

    Processes that tests start do wait for the disk; a test that looks at `fsync` sees all calls.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        yield


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """Restore signals and limits that a command set in this process."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
    resource.setrlimit(resource.RLIMIT_DATA, limits)


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory) -> Iterator[Path]:
    """A temporary folder of this session; the stock reader leaves its lock files in it."""
    folder = tmp_path_factory.mktemp("tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


def small_vocabulary() -> Path:
    """Return a small rank file with GPT-2's pattern."""

    def make(folder: Path) -> None:
        train_vocabulary(make_documents(300, seed=1), 1024, folder / "small.tiktoken")

    return shared.folder("vocabulary", make) / "small.tiktoken"


@pytest.fixture(scope="session")
def vocabulary() -> Path:
    return small_vocabulary()


@pytest.fixture(scope="session")
def sources() -> Path:
    """A folder of a few small Parquet files."""
    return shared.folder(
        "sources", lambda folder: write_parquet_files(folder, NUM_FILES, DOCUMENTS_A_FILE, seed=2)
    )


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """An environment for commands: nothing of the user's Prefect or caches, no server."""
    made = clean_environment(tmp_path_factory.mktemp("home"))
    give_database(Path(made["PREFECT_HOME"]))
    return made


def one_authority() -> Path:
    """Return a file with one certificate: for each client, Prefect reads all that it trusts."""

    def make(folder: Path) -> None:
        first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
        (folder / "one.pem").write_text(f"{first}{end}\n")

    return shared.folder("authority", make) / "one.pem"


def clean_environment(home: Path) -> dict[str, str]:
    """Return an environment with nothing of the user's Prefect and caches."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return kept | {
        "PREFECT_HOME": str(home / "prefect"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_API_SSL_CERT_FILE": str(one_authority()),
        "PYTHONFAULTHANDLER": "1",  # a process that hangs reports where
        "COLUMNS": "200",
    }


@pytest.fixture(scope="session")
def api_url() -> str:
    """The URL of a real Prefect server, one for all processes of the test run."""
    return shared.server("prefect", start_prefect_server)


@pytest.fixture(scope="session")
def swift(tmp_path_factory) -> Iterator[SwiftServer]:
    """A real S3 server."""
    with swift_server(tmp_path_factory.mktemp("swift") / "server") as server:
        yield server


@pytest.fixture
def s3(swift, monkeypatch) -> SwiftServer:
    """The S3 server, and an environment in which S3 clients find it."""
    for name, value in aws_environment(swift.url).items():
        monkeypatch.setenv(name, value)
    return swift


@pytest.fixture
def bucket(s3) -> str:
    """A bucket for one test."""
    return make_bucket(s3.url)


@pytest.fixture(scope="session")
def gcs_session(tmp_path_factory) -> Iterator[GcsServer]:
    """A server of Google Cloud Storage on loopback."""
    with gcs_server(tmp_path_factory.mktemp("gcs") / "server") as server:
        yield server


@pytest.fixture
def gcs(gcs_session, monkeypatch) -> GcsServer:
    """The GCS server, and an environment in which Google's clients find it."""
    for name, value in gcs_session.environment().items():
        monkeypatch.setenv(name, value)
    return gcs_session


@pytest.fixture(scope="session")
def azurite_session(tmp_path_factory) -> Iterator[AzuriteServer]:
    """A server of Azure's blob storage on loopback."""
    with azurite_server(tmp_path_factory.mktemp("azurite") / "server") as server:
        yield server


@pytest.fixture
def azurite(azurite_session, monkeypatch) -> AzuriteServer:
    """The Azure server, and an environment in which Azure's clients find it."""
    for name, value in azurite_session.environment().items():
        monkeypatch.setenv(name, value)
    return azurite_session


@pytest.fixture(scope="session")
def embedded(environment, vocabulary, sources) -> CommandLine:
    """`shardmill` with no server, as a new user has it."""
    return CommandLine(environment, vocabulary, sources)


@pytest.fixture(scope="session")
def served(embedded, api_url) -> CommandLine:
    """`shardmill` with a server; it starts faster than with the embedded one.

    All tests share the server, and it is busy at times: its SQLite was once locked for longer than
    the 14 s for which a command retries by default.
    """
    return embedded.where(PREFECT_API_URL=api_url, PREFECT_CLIENT_MAX_RETRIES="6")


@pytest.fixture(scope="session")
def dataset(request) -> Path:
    """A dataset that an undisturbed run made of the session's sources.

    Its process is not a fork, so other datasets are compared with one of another hash seed. Only
    the process that makes the dataset requests the server.
    """

    def make(folder: Path) -> None:
        served: CommandLine = request.getfixturevalue("served")
        ended = replace(served, warm=False).shard(folder / "small")
        assert ended.returncode == 0, ended.stderr

    return shared.folder("dataset", make) / "small"
