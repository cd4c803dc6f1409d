"""Workers that do not outlive the process that made them."""

import multiprocessing
import os
import threading
import time


def end_with_parent(_: int = 0) -> None:
    """End this forked process when its parent is gone.

    Torch looks too, but where the parent dies before a worker first looks, it takes whoever
    inherited the worker for its parent, and the worker stays for ever. A pool of processes does
    not look: each of its workers holds an end of the pipe that it waits at.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch(pid: int | None) -> None:
        while os.getppid() == pid:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, args=(parent.pid,), daemon=True).start()
