"""The process that forks for each command. It has a single thread, so forks are safe.

A child goes on as `python -P -m MODULE` does, with its own environment, folder, session and
signals. It imports again the modules of Shardmill that use Prefect. The other modules, whose import
has no effects, and the packages that Shardmill uses are already imported. Prefect keeps settings
from its environment: they are read again when a command first imports Prefect.
"""

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from flows.running import set_environment
from streaming_ext.store.s3 import S3
from tests.warm.flow_runs import fork_flow_runs
from tests.warm.nursery import MESSAGE_BYTES, serve, set_streams
from tests.warm.worker import fork_children

COMMANDS = "flows.cli"
_SET_PARENT_DEATH_SIGNAL = 1  # of `prctl`
KEPT = ("streaming_ext", "tasks.core")
NOT_IMPORTED = "flows.executors.dask"  # its library starts threads, and few commands need it
IMPORTED = (  # by Prefect, workers and others, when a flow runs and reports
    "awkward",
    "fastapi.encoders",
    "gigatoken",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "prefect.client.orchestration",
    "prefect.events.worker",
    "prefect.flow_engine",
    "prefect.logging.handlers",
    "prefect.server.api.server",  # its environment now sets only how often it cleans up
    "prefect.task_engine",
    "prefect.task_runners",
    "s3transfer.manager",
    "tasks.core.workers.worker",
    "tasks.core.workers.tokenize_part",
    "uvicorn",
)


class PrefectAgain(MetaPathFinder, Loader):
    """Makes Prefect, which is already imported, read its environment when it is imported again."""

    def __init__(self) -> None:
        self._modules = {name: sys.modules.pop(name) for name in _loaded("prefect")}
        self._spec = self._modules["prefect"].__spec__
        self._logging = _logging_settings()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return this loader for `prefect` itself; its submodules come with it."""
        return ModuleSpec(name, self, is_package=True) if name == "prefect" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that is already loaded."""
        return self._modules["prefect"]

    def exec_module(self, module: ModuleType) -> None:
        """Repeat what Prefect does with its environment."""
        sys.modules.update(self._modules)
        module.__spec__ = self._spec
        from prefect import context
        from prefect.logging import configuration

        context.refresh_global_settings_context()
        if _logging_settings() != self._logging:  # takes a quarter of a second
            configuration.PROCESS_LOGGING_CONFIG.clear()
            configuration.setup_logging()


def _logging_settings() -> dict[str, str]:
    names = ("PREFECT_LOGGING", "PREFECT_SERVER_LOGGING", "PREFECT_DEBUG", "PREFECT_TEST_MODE")
    return {name: value for name, value in os.environ.items() if name.startswith(names)}


def main() -> None:
    """Serve on the socket whose descriptor is the first argument, until the other end is closed.

    The second argument is the descriptor of a listener, to which each program makes a connection.
    """
    control, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    set_environment()
    for module in (*_modules_of("flows"), *IMPORTED):
        importlib.import_module(module)
    # botocore's data on S3 is read once here, instead of by each command.
    S3("bucket", 30.0, {"client_kwargs": {"region_name": "us-east-1"}})
    sys.meta_path.insert(0, PrefectAgain())
    for name in (*_loaded("flows"), *_loaded("tasks")):
        if not f"{name}.".startswith(tuple(f"{kept}." for kept in KEPT)):
            del sys.modules[name]
    gc.collect()
    gc.freeze()  # so that the first collection in a child copies no page
    if not os.fork():
        control.close()
        _serve_programs(listener)
    listener.close()
    serve(control, _be_command)


def _modules_of(package: str) -> list[str]:
    folders = importlib.import_module(package).__path__
    found = [module.name for module in pkgutil.walk_packages(folders, f"{package}.")]
    return [name for name in found if name != NOT_IMPORTED]


def _loaded(package: str) -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == package]


def _serve_programs(listener: socket.socket) -> NoReturn:
    """Fork for each program that asks, and report how it ended; end with the parent process."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody collects those that wait
    while True:
        asking, _ = listener.accept()
        if not os.fork():
            break
        asking.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    message, streams, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, 3)
    child = os.fork()
    if not child:
        asking.close()
        set_streams(streams)
        _be_command(json.loads(message))
    asking.send(str(child).encode())
    _, status = os.waitpid(child, 0)
    asking.send(str(status).encode())
    os._exit(0)


def _be_command(request: dict[str, Any]) -> NoReturn:
    """Run the module; processes that it starts are forks too."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    del sys.path[0]  # as `python -P` does
    _, _, _, module, *arguments = request["words"]
    sys.argv = [module, *arguments]
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if [module, *arguments[:2]] == ["prefect", "worker", "start"]:
        fork_flow_runs()
    elif module == COMMANDS:
        fork_children()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main()
