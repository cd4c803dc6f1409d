"""As much of S3 as reading objects takes, failing in the ways that a test asks for."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ERRORS = {
    "refused": (403, "InvalidAccessKeyId"),
    "forbidden": (403, "AccessDenied"),
    "busy": (503, "SlowDown"),
    "broken": (500, "InternalError"),
    "odd": (400, "BadRequest"),
    "no bucket": (404, "NoSuchBucket"),
}


class Server(ThreadingHTTPServer):
    """Serves a folder as one bucket; `mode` is `fine`, a key of ERRORS, `cut`, or `stuck`."""

    daemon_threads = True
    root: Path
    mode = "fine"
    fail_times = 10**9  # requests that fail before all is fine
    bytes_per_second: float | None = None
    link_free_at = 0.0
    sent = 0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.asked: list[str] = []  # the path of every request

    @property
    def requests(self) -> int:
        """How many there were."""
        return len(self.asked)

    @property
    def options(self) -> dict[str, Any]:
        """What s3fs needs to talk to this server."""
        url = f"http://127.0.0.1:{self.server_address[1]}"
        return {"endpoint_url": url, "key": "key", "secret": "secret"}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    """GET with a range, and what goes wrong with it."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        mode = self.server.mode if self.server.requests <= self.server.fail_times else "fine"
        if mode == "stuck":
            time.sleep(20)
        if mode in ERRORS:
            self._error(*ERRORS[mode])
            return
        path = self.server.root / self.path.split("?")[0].removeprefix("/bucket/")
        if not path.is_file():
            self._error(404, "NoSuchKey")
            return
        data, status = path.read_bytes(), 200
        size = len(data)
        headers = {}
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            data, status = data[int(first) : int(last) + 1], 206
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{size}"
        self._head(status, len(data), **headers)
        if mode == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        for begin in range(0, len(data), 1 << 20):
            piece = data[begin : begin + (1 << 20)]
            if self.server.bytes_per_second is not None:
                with LINK:  # one link for all connections
                    # A piece that is late by no more than a link's queue holds loses no time.
                    start = max(time.monotonic() - LINK_QUEUE, self.server.link_free_at)
                    sent = start + len(piece) / self.server.bytes_per_second
                    self.server.link_free_at = sent
                time.sleep(max(0.0, sent - time.monotonic()))
            self.wfile.write(piece)
            self.server.sent += len(piece)

    def _error(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self._head(status, len(body), **{"Content-Type": "application/xml"})
        self.wfile.write(body)

    def _head(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


LINK = threading.Lock()
LINK_QUEUE = 0.05  # seconds


@contextmanager
def s3_server(root: Path) -> Iterator[Server]:
    """Serve a folder at s3://bucket for a while."""
    server = Server(("127.0.0.1", 0), Handler)
    server.root = root
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
