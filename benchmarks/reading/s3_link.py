"""As much of S3 as reading objects takes, at the speed of a link: cheaper than a real server, so
that two cores carry server and reader."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

QUEUE_SECONDS = 0.05
PIECE = 1 << 20


class Server(ThreadingHTTPServer):
    """Serves a folder as the bucket `bucket`."""

    daemon_threads = True
    root: Path
    bytes_per_second: float
    free_at = 0.0
    sent = 0

    @property
    def options(self) -> dict[str, Any]:
        """What s3fs needs to talk to this server."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return {"endpoint_url": url, "key": "key", "secret": "secret"}


class Handler(BaseHTTPRequestHandler):
    """GET with a range."""

    protocol_version = "HTTP/1.1"
    server: Server
    link = threading.Lock()  # one for all connections

    def do_GET(self) -> None:
        path = self.server.root / self.path.split("?")[0].removeprefix("/bucket/")
        if not path.is_file():
            body = b"<Error><Code>NoSuchKey</Code><Message>NoSuchKey</Message></Error>"
            self._head(404, len(body), {"Content-Type": "application/xml"})
            self.wfile.write(body)
            return
        data, status, headers = path.read_bytes(), 200, {}
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            size, data, status = len(data), data[int(first) : int(last) + 1], 206
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{size}"
        self._head(status, len(data), headers)
        for begin in range(0, len(data), PIECE):
            piece = data[begin : begin + PIECE]
            with self.link:
                # A piece that is late by no more than a link's queue holds loses no time.
                start = max(time.monotonic() - QUEUE_SECONDS, self.server.free_at)
                sent = start + len(piece) / self.server.bytes_per_second
                self.server.free_at = sent
            time.sleep(max(0.0, sent - time.monotonic()))
            self.wfile.write(piece)
            self.server.sent += len(piece)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def s3_link(root: Path, bytes_per_second: float) -> Iterator[Server]:
    """Serve a folder at s3://bucket for a while."""
    server = Server(("127.0.0.1", 0), Handler)
    server.root, server.bytes_per_second = root, bytes_per_second
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
