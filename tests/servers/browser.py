"""A real browser without a screen, told what to do over the Chrome DevTools Protocol."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.servers.environments import locked, run

START_SECONDS = 180.0  # some seconds on an idle machine
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """The browser that `SHARDMILL_BROWSER` names, one of the path, or one of Playwright's.

    Where there is none, Debian's is installed if that is this user's to do; else see `why_none`.
    """
    named = [os.environ.get("SHARDMILL_BROWSER"), *map(shutil.which, _NAMES)]
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "~/.cache/ms-playwright")).expanduser()
    playwright = sorted(cache.glob("chromium*/chrome-linux*/*chrome*"))
    found = next((str(path) for path in [*named, *playwright] if path), None)
    return found or ("chromium" if why_none() is None else None)


@cache
def why_none() -> str | None:
    """Install Debian's Chromium; returns why that is not possible, None where it is."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "no Chromium on the path, and no right to install one; SHARDMILL_BROWSER names one"
    quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    try:
        with locked("apt-get"):
            if shutil.which("chromium") is None:  # another process of these tests may have
                run(["apt-get", "update", "--quiet"], **quiet)
                run(
                    [
                        "apt-get",
                        "install",
                        "--quiet",
                        "--yes",
                        "--no-install-recommends",
                        "chromium",
                    ],
                    **quiet,
                )
    except AssertionError as error:
        return f"no Chromium, and none can be installed: {error}"
    return None


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the tab for something and wait for its answer."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        self._connection.send(json.dumps(asked))
        while True:
            answer = json.loads(self._connection.recv(timeout=240))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        told = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def open(self, url: str, *expected: str) -> None:
        """Go to a page and wait until all that is expected can be read there."""
        self.send("Page.navigate", url=url)
        deadline = time.monotonic() + START_SECONDS
        while True:
            text = str(self.evaluate("document.body ? document.body.innerText : ''"))
            if all(part in text for part in expected):
                return
            missing = [part for part in expected if part not in text]
            assert time.monotonic() < deadline, f"{missing} not on the page:\n{text}"
            time.sleep(0.05)


@contextmanager
def browser_page(program: str, home: Path) -> Iterator[Page]:
    """Start a browser with nothing of the user's; yields a tab."""
    command = [
        program,
        "--headless=new",
        "--no-sandbox",  # which needs what a container does not have
        "--disable-gpu",
        "--disable-software-rasterizer",  # in place of a GPU: pages are painted without
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
        "--remote-debugging-port=0",
        f"--user-data-dir={home}",
        "--window-size=1400,1000",
        "about:blank",
    ]
    (home / "DevToolsActivePort").unlink(missing_ok=True)  # of a browser that was here before
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        port = _wait_for_port(home / "DevToolsActivePort", process)
        (tab,) = (
            target
            for target in httpx.get(f"http://127.0.0.1:{port}/json", timeout=30).json()
            if target["type"] == "page"
        )
        with connect(tab["webSocketDebuggerUrl"], max_size=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(file: Path, process: "subprocess.Popen[bytes]") -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the browser ended with {process.returncode}"
        if file.exists() and (lines := file.read_text().split()):
            return int(lines[0])
        time.sleep(0.1)
    raise AssertionError(f"the browser did not start within {START_SECONDS} s")
