"""A guard against redirects: a server on the Internet must not send us into a private network.

The user chooses a source's URL, but its server chooses the target of a redirect. A redirect from a
public host to a loopback, link-local or private address is refused, and so is one from https to
http.
"""

import ipaddress
import os
import socket
import threading
from urllib.request import getproxies

import httpx

from streaming_ext.base.errors import SourceError

VARIABLE = "SHARDMILL_ALLOW_PRIVATE_REDIRECTS"


class RedirectGuard:
    """A check of every answer; `seen` is an httpx event hook."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._led_to: set[str] = set()  # hosts to which public hosts redirected

    def seen(self, response: httpx.Response) -> None:
        """Refuse an answer that redirects, or came by a redirect, to a forbidden address.

        Raises:
            SourceError: the message names the forbidden redirect.
        """
        if os.environ.get(VARIABLE) == "1":
            return
        url = response.url
        with self._lock:
            was_led_to = url.host in self._led_to
        if was_led_to and (peer := _peer(response)) is not None and not peer.is_global:
            # The name had a public address when it was checked, and another one a moment later.
            raise SourceError(
                f"{_short(url)}: a redirect led to this host, and it is at {peer}, an address of "
                f"this machine or network. Set {VARIABLE}=1 to allow it."
            )
        if not response.has_redirect_location:
            return
        target = url.join(response.headers["Location"])
        if url.scheme == "https" and target.scheme != "https":
            raise SourceError(
                f"{_short(url)}: redirects to {_short(target)}, from https to {target.scheme}. "
                f"Name that URL as source, or set {VARIABLE}=1."
            )
        if target.host == url.host or any(not a.is_global for a in addresses_of(url.host)):
            return
        inside = [address for address in addresses_of(target.host) if not address.is_global]
        if inside:
            raise SourceError(
                f"{_short(url)}: redirects to {_short(target)}, which is at {inside[0]}, an "
                f"address of this machine or network. Set {VARIABLE}=1 to allow it."
            )
        with self._lock:
            self._led_to.add(target.host)


def addresses_of(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of a host; none if it cannot be resolved here, as behind a proxy."""
    try:
        return [_address(host)]
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [_address(str(entry[4][0])) for entry in found]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _peer(response: httpx.Response) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that answered; None if a proxy is used."""
    stream = response.extensions.get("network_stream")
    if stream is None or getproxies():
        return None
    server = stream.get_extra_info("server_addr")
    return _address(server[0]) if server else None


def _short(url: httpx.URL) -> str:
    """Return a URL without its query, which holds keys in signed links."""
    text = f"{url.scheme}://{url.host}{f':{url.port}' if url.port else ''}{url.path}"
    return text.encode("unicode_escape").decode() if not text.isprintable() else text
