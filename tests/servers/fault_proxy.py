"""A TCP proxy on loopback that treats connections as bad networks and servers do."""

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

_PIECE = 2**16


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The faults of connections; by default none.

    Attributes:
        answer: status and S3 error code to answer with instead of the server.
        hang: True to take the request and never answer.
        missing: number of bytes at the end of `answer` that never come: the answer is cut, or with
            `hang` falls silent.
        cut_up, cut_down: number of bytes to or from the server after which to reset.
        flip: True to change the last byte of the first answer.
        bytes_per_second: the rate of each direction, for all connections together.
        times: number of connections to strike, the first ones; None for all.
    """

    answer: tuple[int, str] | None = None
    hang: bool = False
    missing: int = 0
    cut_up: int | None = None
    cut_down: int | None = None
    flip: bool = False
    bytes_per_second: float | None = None
    times: int | None = None


@dataclass
class _Link:
    """One direction of the wire, shared by all connections."""

    free_at: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    total: int = 0

    def carry(self, size: int, rate: float | None) -> None:
        with self.lock:
            self.total += size
            if rate is None:
                return
            self.free_at = max(self.free_at, time.monotonic()) + size / rate
            pause = self.free_at - time.monotonic()
        if pause > 0.001:
            time.sleep(pause)


class FaultProxy:
    """Passes connections on to a server; `inflict` sets the faults of new ones at any time."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._faults = Faults()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._up, self._down = _Link(), _Link()
        self.struck = 0  # the number of connections struck by a fault
        self.asked: list[str] = []  # the path of every GET
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """The port on which the proxy listens."""
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """The endpoint to give to clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def bytes_up(self) -> int:
        """The number of bytes sent to the server so far."""
        return self._up.total

    def inflict(self, faults: Faults) -> None:
        """Apply faults from now on, and reset open connections, so that all meet them."""
        with self._lock:
            self._faults, self.struck = faults, 0
            ends, self._open = self._open, set()
        for end in ends:
            _reset(end)

    def close(self) -> None:
        """Reset all connections and stop listening."""
        with contextlib.suppress(OSError):  # already closed
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()
        self.inflict(Faults())

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _take(self, client: socket.socket) -> Faults:
        with self._lock:
            faults = self._faults
            self._open.add(client)
            if faults.times is not None and self.struck >= faults.times:
                return replace(
                    faults, answer=None, hang=False, cut_up=None, cut_down=None, flip=False
                )
            if faults != Faults():
                self.struck += 1
            return faults

    def _serve(self, client: socket.socket) -> None:
        faults = self._take(client)
        if faults.answer is not None:
            self._answer(client, faults)
            return
        if faults.hang:
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._upstream))
        except OSError:
            _reset(client)
            return
        try:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # new faults have reset the client meanwhile
            _reset(client)
            _reset(server)
            return
        with self._lock:
            self._open.add(server)
        rate = faults.bytes_per_second
        up = threading.Thread(
            target=self._pump, args=(client, server, faults.cut_up, self._up, rate), daemon=True
        )
        up.start()
        self._pump(server, client, faults.cut_down, self._down, rate, flip=faults.flip)
        up.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _answer(self, client: socket.socket, faults: Faults) -> None:
        assert faults.answer is not None
        status, code = faults.answer
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Error><Code>{code}</Code><Message>injected</Message></Error>"
        ).encode()
        head = [
            f"HTTP/1.1 {status} Injected",
            "Content-Type: application/xml",
            "Connection: close",
            f"Content-Length: {len(body)}",
            "",
            "",
        ]
        with contextlib.suppress(OSError), client:
            client.settimeout(1)
            self._note(client.recv(_PIECE))
            client.sendall("\r\n".join(head).encode() + body[: len(body) - faults.missing])
            if faults.hang:
                client.settimeout(60)  # the client waits in vain meanwhile
            else:
                client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(TimeoutError):
                while client.recv(_PIECE):  # to close with unread bytes would reset the answer
                    pass
        with self._lock:
            self._open.discard(client)

    def _note(self, sent: bytes) -> None:
        """Record the requested paths; a request without a body arrives in one `recv`."""
        self.asked += [path.decode() for path in re.findall(rb"GET (\S+) HTTP/", sent)]

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        cut: int | None,
        link: _Link,
        rate: float | None,
        *,
        flip: bool = False,
    ) -> None:
        passed = 0
        try:
            while data := source.recv(_PIECE):
                link.carry(len(data), rate)
                if link is self._up:
                    self._note(data)
                if flip and not data.endswith(b"\r\n"):  # the end of the body, not of the head
                    data, flip = data[:-1] + bytes([data[-1] ^ 1]), False
                if cut is not None and passed + len(data) > cut:
                    sink.sendall(data[: cut - passed])
                    _reset(source)
                    _reset(sink)
                    return
                passed += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            _reset(source)
            _reset(sink)


def _reset(end: socket.socket) -> None:
    """Close with a reset, as a cut does, and wake the threads that wait on the socket."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        end.close()


@contextmanager
def fault_proxy(upstream: int) -> Iterator[FaultProxy]:
    """Run a proxy in front of a server on a port of loopback."""
    proxy = FaultProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
