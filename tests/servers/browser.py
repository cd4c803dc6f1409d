"""A real browser without a screen, controlled over the Chrome DevTools Protocol."""

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

START_SECONDS = 180.0  # it takes some seconds on an idle machine
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """Return the browser that `SHARDMILL_BROWSER` names, one on the path, or one of Playwright's.

    If there is none, install Debian's if this user may; otherwise `why_none` gives the reason.
    """
    named = [os.environ.get("SHARDMILL_BROWSER"), *map(shutil.which, _NAMES)]
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", "~/.cache/ms-playwright")).expanduser()
    playwright = sorted(cache.glob("chromium*/chrome-linux*/*chrome*"))
    found = next((str(path) for path in [*named, *playwright] if path), None)
    return found or ("chromium" if why_none() is None else None)


@cache
def why_none() -> str | None:
    """Install Debian's Chromium; return why that is not possible, or None if it is."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "no Chromium on the path, and no right to install one; SHARDMILL_BROWSER names one"
    quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    try:
        with locked("apt-get"):
            if shutil.which("chromium") is None:  # another test process may have
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
    """One tab of a browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send the tab a command and wait for its answer."""
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
        """Return the value of an expression in the page."""
        told = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def open(self, url: str, *expected: str) -> None:
        """Go to a page and wait until all expected texts can be read there."""
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
    """Start a browser with nothing of the user's; yield a tab."""
    command = [
        program,
        "--headless=new",
        "--no-sandbox",  # the sandbox needs what a container does not have
        "--disable-gpu",
        "--disable-software-rasterizer",  # it replaces a GPU; pages are painted without it
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
    (home / "DevToolsActivePort").unlink(missing_ok=True)  # left by an earlier browser
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
