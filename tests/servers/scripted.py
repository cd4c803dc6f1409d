"""A web server in this process that answers as a test says."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Attributes:
        missing: number of bytes at the end of `body` that never come; then the connection closes.
        silent: True to keep the connection open instead.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    missing: int = 0
    silent: bool = False


PAGE = Answer(
    200, b"<!DOCTYPE html><html><body>Log in</body></html>", {"Content-Type": "text/html"}
)


class Scripted(ThreadingHTTPServer):
    """Calls `answer` with method, path and headers of a request; records these and connections."""

    daemon_threads = True

    def __init__(self, answer: Callable[[str, str, Mapping[str, str]], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []  # of the requests that have one
        self.connections = 0

    def get_request(self) -> tuple[socket.socket, Any]:
        self.connections += 1
        return super().get_request()

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def _serve(self) -> None:
        if body := self.rfile.read(int(self.headers.get("Content-Length") or 0)):
            self.server.bodies.append(body)
        self.server.asked.append((self.command, self.path))
        answer = self.server.answer(self.command, self.path, self.headers)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: len(answer.body) - answer.missing])
            if answer.silent:
                self.connection.recv(1)  # until the client leaves
            self.close_connection |= answer.missing > 0

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def scripted(answer: Callable[[str, str, Mapping[str, str]], Answer]) -> Iterator[Scripted]:
    """Run a server that answers with `answer`."""
    server = Scripted(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
