"""A program of `warm_programs`: it asks the warm process for a fork that does its work.

This text is copied into the program, which sets `MODULE` and `ADDRESS`; it starts fast.
"""

import contextlib
import json
import os
import signal
import socket
import sys

MODULE, ADDRESS = "", ""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Run the module with this process's streams, and end as it does."""
    request = {
        "words": [sys.executable, "-P", "-m", MODULE, *sys.argv[1:]],
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109 - pathlib takes long to import
        "new_session": False,
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.connect(ADDRESS)
    socket.send_fds(asked, [json.dumps(request).encode()], [0, 1, 2])
    pid = int(asked.recv(64))

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    code = os.waitstatus_to_exitcode(int(asked.recv(64)))
    sys.exit(code if code >= 0 else 128 - code)
