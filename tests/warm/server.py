"""The process that forks for each command. It has a single thread, so that forks are safe.

A child goes on as `python -P -m MODULE` does, with environment, folder, session and signals of its
own. It imports anew what of Shardmill stands on Prefect; the rest, which does nothing when it is
imported, and the packages that Shardmill uses are imported already. Prefect keeps settings of its
environment: they are read again when a command first imports it.
"""

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from flows.running import set_environment
from streaming_ext.store.s3 import S3
from tests.warm.flow_runs import fork_flow_runs
from tests.warm.worker import fork_children

COMMANDS = "flows.cli"
KEPT = ("streaming_ext", "tasks.core")
NOT_IMPORTED = "flows.executors.dask"  # its library starts threads, and few commands need it
IMPORTED = (  # by Prefect, workers and others, when a flow runs and is reported on
    "awkward",
    "fastapi.encoders",
    "gigatoken",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "prefect.client.orchestration",
    "prefect.events.worker",
    "prefect.flow_engine",
    "prefect.logging.handlers",
    "prefect.server.api.server",  # what it takes from its environment now is how often it cleans up
    "prefect.task_engine",
    "prefect.task_runners",
    "s3transfer.manager",
    "tasks.core.workers.worker",
    "tasks.core.workers.tokenize_part",
    "uvicorn",
)
MESSAGE_BYTES = 2**18


class PrefectAgain(MetaPathFinder, Loader):
    """Makes Prefect, imported already, look at its environment when it is imported again."""

    def __init__(self) -> None:
        self._modules = {name: sys.modules.pop(name) for name in _loaded("prefect")}
        self._spec = self._modules["prefect"].__spec__
        self._logging = _logging_settings()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """This loader for `prefect` itself; all below it comes with it."""
        return ModuleSpec(name, self, is_package=True) if name == "prefect" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module as it is."""
        return self._modules["prefect"]

    def exec_module(self, module: ModuleType) -> None:
        """Do again what Prefect does with its environment."""
        sys.modules.update(self._modules)
        module.__spec__ = self._spec
        from prefect import context
        from prefect.logging import configuration

        context.refresh_global_settings_context()
        if _logging_settings() != self._logging:  # a quarter of a second
            configuration.PROCESS_LOGGING_CONFIG.clear()
            configuration.setup_logging()


def _logging_settings() -> dict[str, str]:
    names = ("PREFECT_LOGGING", "PREFECT_SERVER_LOGGING", "PREFECT_DEBUG", "PREFECT_TEST_MODE")
    return {name: value for name, value in os.environ.items() if name.startswith(names)}


def main() -> None:
    """Serve on the socket whose descriptor is the first argument, until the other end is closed.

    The second is the descriptor of one at which programs ask, each on a connection of its own.
    """
    control, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    set_environment()
    for module in (*_modules_of("flows"), *IMPORTED):
        importlib.import_module(module)
    # What botocore knows of S3 is read now, and not by each command.
    S3("bucket", 30.0, {"client_kwargs": {"region_name": "us-east-1"}})
    sys.meta_path.insert(0, PrefectAgain())
    for name in (*_loaded("flows"), *_loaded("tasks")):
        if not f"{name}.".startswith(tuple(f"{kept}." for kept in KEPT)):
            del sys.modules[name]
    gc.collect()
    gc.freeze()  # so that the first collection in a child copies no page
    begin = _serve(control, listener)
    if begin is not None:
        begin()


def _modules_of(package: str) -> list[str]:
    folders = importlib.import_module(package).__path__
    found = [module.name for module in pkgutil.walk_packages(folders, f"{package}.")]
    return [name for name in found if name != NOT_IMPORTED]


def _loaded(package: str) -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == package]


def _serve(control: socket.socket, listener: socket.socket) -> Callable[[], object] | None:
    """Fork for each request. Returns in a child with what it is to do, in the end with None."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    statuses: dict[int, int] = {}  # by pid, the pipe in which its end is told
    with selectors.DefaultSelector() as selector:
        for opened in (control, listener, woken):
            selector.register(opened, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                woken.recv(4096)
                _tell_ends(statuses)
            if control in ready:
                asking = control
            elif listener in ready:
                asking, _ = listener.accept()
            else:
                continue
            message, descriptors, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, 4)
            if not message and asking is control:
                return None
            *streams, status = descriptors
            pid = os.fork()
            if not pid:
                break
            statuses[pid] = status
            for descriptor in streams:
                os.close(descriptor)
            if asking is not control:
                asking.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)
    for descriptor in (status, *statuses.values()):
        os.close(descriptor)
    for opened in (woken, waker, listener):
        opened.close()
    request = json.loads(message)
    _take_over(request, streams)
    asking.send(str(os.getpid()).encode())
    asking.close()
    control.close()
    return lambda: _run(**request)


def _run(module: str, arguments: list[str], **_: object) -> None:
    """Run the module, what it starts being forks too."""
    if [module, *arguments[:2]] == ["prefect", "worker", "start"]:
        fork_flow_runs()
    elif module == COMMANDS:
        fork_children()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _tell_ends(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with contextlib.suppress(BrokenPipeError):  # whoever started it is not interested
            os.write(statuses[pid], str(status).encode())
        os.close(statuses.pop(pid))


def _take_over(request: dict[str, Any], streams: list[int]) -> None:
    """Set what a process gets from whoever starts it."""
    if request["new_session"]:
        os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    del sys.path[0]  # as `python -P`
    sys.argv = [request["module"], *request["arguments"]]
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()


if __name__ == "__main__":
    main()
