"""Redirects into private networks, by real servers at public addresses of an isolated network."""

import ipaddress
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx
import pytest

from streaming_ext.base.errors import SourceError
from streaming_ext.store.redirects import RedirectGuard, addresses_of

PUBLIC, OTHER = "93.184.216.34", "8.8.4.4"  # on the loopback device of a namespace
SERVERS = """
import os, socket, sys, threading, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.seen.append(self.path)
        if self.path.startswith("/to/"):
            target = urllib.parse.unquote(self.path).removeprefix("/to/")
            self.send_response(302)
            self.send_header("Location", "http://" + target)
            self.send_header("Content-Length", "0")
        else:
            self.send_response(206)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Range", "bytes 0-0/7")
            self.send_header("Content-Length", "1")
        self.end_headers()
        if not self.path.startswith("/to/"):
            self.wfile.write(b"x")
    def log_message(self, *_): pass

def serve(address):
    server = ThreadingHTTPServer((address, 8000), Handler)
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server

public, other, inside = serve("93.184.216.34"), serve("8.8.4.4"), serve("127.0.0.1")
from streaming_ext.text.sources.web import list_url
from streaming_ext.base.errors import SourceError
def outcome(url):
    try:
        (file,) = list_url(url)
        return f"size {file.size}"
    except SourceError as error:
        return f"refused: {error}"
"""


def in_a_network(code: str, **environment: str) -> list[str]:
    """Run a script with two public servers and one on loopback; return the lines it prints."""
    script = f"ip link set lo up && ip addr add {PUBLIC}/32 dev lo && ip addr add {OTHER}/32 dev lo"
    ended = subprocess.run(
        [
            "unshare",
            "--net",
            "--map-root-user",
            "sh",
            "-c",
            f'{script} && exec "$@"',
            "sh",
            sys.executable,
            "-c",
            SERVERS + textwrap.dedent(code),
        ],
        cwd=Path(__file__).parents[4],
        text=True,
        capture_output=True,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_a_public_server_cannot_send_us_inside() -> None:
    lines = in_a_network(f"""
        for target in ("127.0.0.1:8000/a", "10.0.0.1:8000/a", "169.254.169.254/latest",
                       "%5B::1%5D:8000/a", "%5B::ffff:127.0.0.1%5D:8000/a",
                       "localhost:8000/a", "0:8000/a"):
            print(outcome("http://{PUBLIC}:8000/to/" + target))
        print(outcome("http://{PUBLIC}:8000/to/{OTHER}:8000/to/127.0.0.1:8000/a"))
        print(inside.seen)
    """)
    assert len(lines) == 9
    for line in lines[:7]:
        assert line.startswith(f"refused: http://{PUBLIC}:8000/to/")
        assert "SHARDMILL_ALLOW_PRIVATE_REDIRECTS=1" in line
    assert lines[7].startswith(f"refused: http://{OTHER}:8000/to/")
    assert lines[8] == "[]"  # no request arrived there


def test_other_redirects_go_on_working() -> None:
    lines = in_a_network(f"""
        print(outcome("http://{PUBLIC}:8000/to/{OTHER}:8000/a"))
        print(outcome("http://127.0.0.1:8000/to/127.0.0.1:8000/a"))
        print(outcome("http://127.0.0.1:8000/to/{PUBLIC}:8000/a"))
        os.environ["SHARDMILL_ALLOW_PRIVATE_REDIRECTS"] = "1"
        print(outcome("http://{PUBLIC}:8000/to/127.0.0.1:8000/a"))
    """)
    assert lines == ["size 7"] * 4


def test_a_name_that_changes_its_address_in_between() -> None:
    lines = in_a_network(f"""
        asked = []
        real = socket.getaddrinfo
        def getaddrinfo(host, port, *rest, **named):
            if host != "two-faced.example":
                return real(host, port, *rest, **named)
            asked.append(host)
            return real("{OTHER}" if len(asked) == 1 else "127.0.0.1", port, *rest, **named)
        socket.getaddrinfo = getaddrinfo
        print(outcome("http://{PUBLIC}:8000/to/two-faced.example:8000/a"))
        print(len(asked))
    """)
    assert "it is at 127.0.0.1" in lines[0]
    assert lines[1] == "2"


def test_from_https_to_http_is_refused() -> None:
    request = httpx.Request("GET", "https://example.org/a?secret=1")
    response = httpx.Response(302, headers={"Location": "http://example.org/a"}, request=request)
    with pytest.raises(SourceError, match="from https to http") as caught:
        RedirectGuard().seen(response)
    assert "secret" not in str(caught.value)


def test_addresses() -> None:
    assert addresses_of("::ffff:10.0.0.1") == [ipaddress.ip_address("10.0.0.1")]
    assert addresses_of("fe80::1%eth0")[0].is_link_local
    assert all(address.is_loopback for address in addresses_of("localhost"))
    assert addresses_of("no-such-name.invalid") == []
    assert not any(
        a.is_global for text in ("100.64.0.1", "192.168.0.1", "fd00::1") for a in addresses_of(text)
    )
