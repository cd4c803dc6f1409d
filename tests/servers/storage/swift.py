"""A real S3 server on loopback: OpenStack Swift with its S3 API, in its own environment.

Every daemon is a process that a test may kill, stop and start again.
"""

import contextlib
import json
import os
import pwd
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from tests.servers.answering import wait_for_answer
from tests.servers.environments import python_environment
from tests.servers.prefect.server import free_port

SWIFT = "swift==2.38.3"
HOST = "127.0.0.1"
OWNER = ("test:owner", "owner-secret-6f1d")
NOBODY = ("test:nobody", "nobody-secret-93ab")  # known, but without a right on any bucket
DAEMONS = ("account", "container", "object", "proxy")

_DEFAULTS = """[DEFAULT]
bind_ip = {host}
bind_port = {port}
user = {user}
swift_dir = {etc}
devices = {devices}
mount_check = false
workers = 0
log_level = WARNING
"""
_PROXY = """[pipeline:main]
pipeline = catch_errors healthcheck cache listing_formats s3api tempauth bulk slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
conn_timeout = 1
node_timeout = 5
recoverable_node_timeout = 5
error_suppression_limit = 1000000
[filter:cache]
paste.filter_factory = remembered:filter_factory
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:slo]
use = egg:swift#slo
allow_async_delete = false
[filter:tempauth]
use = egg:swift#tempauth
"""

# Replaces memcached, in which a proxy remembers accounts and buckets; that saves half of its
# requests to daemons. Values are JSON, as there, and stay for ever: this proxy makes all changes.
_REMEMBERED = """
import json
class Remembered:
    def __init__(self):
        self.kept = {}
    def get(self, key, raise_on_error=False):
        return json.loads(self.kept.get(key, "null"))
    def set(self, key, value, serialize=True, time=0, min_compress_len=0, raise_on_error=False):
        self.kept[key] = json.dumps(value)
    def delete(self, key, server_key=None):
        self.kept.pop(key, None)
def filter_factory(_, **__):
    cache = Remembered()
    def wrap(app):
        def remembering(env, start):
            env["swift.cache"] = cache
            return app(env, start)
        return remembering
    return wrap
"""

# Builds the rings, which say where the daemons are, like `swift-ring-builder` but in one process.
_BUILD_RINGS = """
import json, sys
from swift.common.ring.builder import RingBuilder
etc, host, ports = sys.argv[1:]
for kind, port in json.loads(ports).items():
    ring = RingBuilder(4, 1, 0)
    ring.add_dev({"region": 1, "zone": 1, "ip": host, "port": port, "device": "d1", "weight": 1.0})
    ring.rebalance()
    ring.get_ring().save(f"{etc}/{kind}.ring.gz")
"""


class SwiftServer:
    """One node of Swift: four daemons with their data in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._programs = python_environment(SWIFT)
        self._etc = root / "etc"
        self._ports = {kind: free_port() for kind in DAEMONS}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._configure()

    @property
    def port(self) -> int:
        """The port of the S3 API."""
        return self._ports["proxy"]

    @property
    def url(self) -> str:
        """The endpoint of the S3 API."""
        return f"http://{HOST}:{self.port}"

    def _configure(self) -> None:
        devices = self.root / "node"
        (devices / "d1").mkdir(parents=True)
        self._etc.mkdir()
        (self._etc / "swift.conf").write_text(
            "[swift-hash]\nswift_hash_path_prefix = p\nswift_hash_path_suffix = s\n"
            "[storage-policy:0]\nname = one\ndefault = yes\n"
        )
        (self._etc / "remembered.py").write_text(_REMEMBERED)
        for kind in DAEMONS:
            text = _DEFAULTS.format(
                host=HOST, port=self._ports[kind], user=_user(), etc=self._etc, devices=devices
            )
            if kind == "proxy":
                text += _PROXY
                for (key, secret), rights in ((OWNER, " .admin"), (NOBODY, "")):
                    account, user = key.split(":")
                    text += f"user_{account}_{user} = {secret}{rights}\n"
                for name in ("catch_errors", "healthcheck", "listing_formats", "bulk", "dlo"):
                    text += f"[filter:{name}]\nuse = egg:swift#{name}\n"
            else:
                text += (
                    f"[pipeline:main]\npipeline = {kind}-server\n"
                    f"[app:{kind}-server]\nuse = egg:swift#{kind}\n"
                )
            (self._etc / f"{kind}.conf").write_text(text)
        rings = {kind: port for kind, port in self._ports.items() if kind != "proxy"}
        command = [self._programs / "python", "-c", _BUILD_RINGS, self._etc, HOST]
        subprocess.run([*command, json.dumps(rings)], check=True, capture_output=True)

    def start(self, kind: str) -> None:
        """Start a daemon and wait until it answers."""
        with (self.root / "swift.log").open("ab") as log:
            program = str(self._programs / f"swift-{kind}-server")
            process = subprocess.Popen(
                [program, str(self._etc / f"{kind}.conf")],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(self._etc)},
            )
        self._processes[kind] = process
        url = f"http://{HOST}:{self._ports[kind]}/healthcheck"
        wait_for_answer(process, url, self.root / "swift.log")

    def kill(self, kind: str) -> None:
        """Kill a daemon with kill -9."""
        process = self._processes.pop(kind)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all daemons."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()


@contextmanager
def swift_server(root: Path) -> Iterator[SwiftServer]:
    """Run Swift with its data in `root`."""
    with contextlib.ExitStack() as stack:
        if not _takes_attributes(root.parent):
            base = user_cache_path("shardmill-tests", ensure_exists=True)
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=base)), "server")
        for attempt in range(3):  # another process may take a port just before us
            server = SwiftServer(root / str(attempt))
            try:
                for kind in DAEMONS:
                    server.start(kind)
                break
            except AssertionError:
                server.stop()
                if attempt == 2:
                    raise
        stack.callback(server.stop)
        yield server


def _takes_attributes(folder: Path) -> bool:
    """Return whether files below a folder can have the extended attributes that Swift stores."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.setxattr(file.name, "user.shardmill", b"1")
        except OSError:
            return False
    return True


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container that knows no such user
        return str(os.getuid())


def aws_environment(endpoint: str, credentials: tuple[str, str] = OWNER) -> dict[str, str]:
    """Return the environment variables that S3 clients read, with nothing of the user's own."""
    nothing = os.devnull
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": credentials[0],
        "AWS_SECRET_ACCESS_KEY": credentials[1],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": nothing,
        "AWS_SHARED_CREDENTIALS_FILE": nothing,
    }


def is_held(url: str, bucket: str, folder: str = "out") -> bool:
    """Return whether a run has begun on a dataset in a bucket; its workers start before that."""
    client = s3_client(url)
    found = client.list_objects_v2(Bucket=bucket, Prefix=f"{folder}/runs/.lock")
    client.close()
    return bool(found["KeyCount"])


def s3_client(endpoint: str, credentials: tuple[str, str] = OWNER) -> Any:
    """Return boto3's own client, which knows nothing of this project."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=credentials[0],
        aws_secret_access_key=credentials[1],
        region_name="us-east-1",
    )


def make_bucket(endpoint: str) -> str:
    """Make a new bucket and return its name."""
    name = f"b-{uuid.uuid4().hex[:12]}"
    client = s3_client(endpoint)
    client.create_bucket(Bucket=name)
    client.close()
    return name


def upload(server: SwiftServer, bucket: str, prefix: str, folder: Path) -> None:
    """Put the files of a folder into a bucket."""
    client = s3_client(server.url)
    for file in folder.rglob("*.*"):
        if file.is_file():
            key = f"{prefix}/{file.relative_to(folder).as_posix()}"
            client.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())
    client.close()


def download_all(endpoint: str, bucket: str, prefix: str, folder: Path) -> Path:
    """Copy all objects below a prefix into a folder, with a separate client."""
    client = s3_client(endpoint)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", []):
            target = folder / entry["Key"].removeprefix(f"{prefix}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            body = client.get_object(Bucket=bucket, Key=entry["Key"])["Body"]
            with body:
                target.write_bytes(body.read())
    client.close()
    return folder
