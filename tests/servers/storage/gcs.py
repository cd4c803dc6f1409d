"""Google Cloud Storage on loopback: gcp-storage-emulator, with our own conditions and tokens.

Google offers no server to run locally. The emulator, from PyPI in its own environment, holds
buckets and objects; `gcs_emulator.py` adds the API's rules for generations and credentials.
"""

import contextlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.servers.answering import answering
from tests.servers.environments import python_environment
from tests.servers.prefect.server import free_port

EMULATOR = "gcp-storage-emulator==2026.7.19"
OWNER = "owner@tests.example"
NOBODY = "nobody@tests.example"  # known, but without a right on any bucket
STRANGER = "stranger@tests.example"


class GcsServer:
    """The running server, and the key files of service accounts."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port = port
        self._folder = folder
        self._key = _private_key()
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer token-of-{OWNER}"},
        )

    def environment(self, account: str | None = OWNER, port: int | None = None) -> dict[str, str]:
        """Return the variables that Google's clients read; without an account, they find none."""
        env = {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port or self.port}",
            "CLOUDSDK_CONFIG": str(self._folder),
            "NO_GCE_CHECK": "true",
        }
        if account is not None:
            file = self._folder / f"{account}.json"
            file.write_text(json.dumps(self._account(account)))
            env["GOOGLE_APPLICATION_CREDENTIALS"] = str(file)
        return env

    def _account(self, name: str) -> dict[str, str]:
        return {
            "type": "service_account",
            "project_id": "tests",
            "client_email": name,
            "private_key_id": "1",
            "private_key": self._key,
            "client_id": "1",
            "token_uri": f"http://127.0.0.1:{self.port}/token",
        }

    def make_bucket(self) -> str:
        """Make a new bucket and return its name."""
        name = f"b-{uuid.uuid4().hex[:12]}"
        self._client.post("/storage/v1/b?project=tests", json={"name": name}).raise_for_status()
        return name

    def put(self, bucket: str, name: str, data: bytes) -> None:
        options = {"uploadType": "media", "name": name}
        answer = self._client.post(f"/upload/storage/v1/b/{bucket}/o", params=options, content=data)
        answer.raise_for_status()

    def close(self) -> None:
        """Close the server's own client."""
        self._client.close()


def _private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    return (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )


@contextmanager
def gcs_server(root: Path) -> Iterator[GcsServer]:
    """Run the server with its data in memory and key files in `root`."""
    python = python_environment(EMULATOR) / "python"
    root.mkdir(parents=True)
    port = free_port()
    script = Path(__file__).with_name("gcs_emulator.py")
    command = [str(python), str(script), str(port), OWNER, NOBODY]
    url = f"http://127.0.0.1:{port}/"
    with (
        answering(command, url, log=root / "server.log"),
        contextlib.closing(GcsServer(port, root)) as server,
    ):
        yield server
