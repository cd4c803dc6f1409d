"""The worker process: takes jobs as JSON lines on stdin, answers on stdout, ends with its parent.

Its stdin is a socket, over which the file descriptors come first that it is to hold.

It leaves Ctrl+C to the parent, and ends at once when stdin ends, which also happens when the
parent is killed. Nothing it leaves behind is ever taken for whole: what is on scratch is recorded,
and shards are put in place, when they are complete.
"""

import gc
import os
import queue
import signal
import socket
import sys
import threading

_MOST_HELD = 8  # file descriptors


def main() -> None:
    """Serve jobs until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # what is loaded stays: looking through it again and again takes an eighth
    import pyarrow as pa

    from streaming_ext.text.memory import limit_memory
    from tasks.core.workers.do_job import answer, load_engines

    pa.set_cpu_count(1)
    parent = socket.socket(fileno=sys.stdin.fileno())
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(parent, jobs), daemon=True).start()
    if "light" not in sys.argv[1:]:
        load_engines()
    gc.freeze()
    gc.enable()
    limit_memory()
    while True:
        answer(jobs.get())


def _read_jobs(parent: socket.socket, jobs: "queue.SimpleQueue[bytes]") -> None:
    from tasks.core.workers.messages import HELD

    socket.recv_fds(parent, len(HELD), _MOST_HELD)  # they stay open until this process ends
    pending = b""
    while chunk := parent.recv(2**16):
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            jobs.put(line)
    os._exit(0)  # the parent is gone or done: nobody waits for what is in hand


if __name__ == "__main__":
    main()
