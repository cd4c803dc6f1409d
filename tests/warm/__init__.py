"""Commands of `python -P -m` without the seconds that importing Prefect takes.

`server` is a process that has imported what `shardmill` needs and forks for each command.
`start_module` returns a `subprocess.Popen` whose process is such a fork. In all other respects
(pid, session, process group, signals, pipes, folder, environment) the process is like a new one.
`warm_programs` are the programs `shardmill` and `prefect` for shells, which also run in such forks.
"""

from tests.warm.client import WARM, start_module, warm_programs

__all__ = ["WARM", "start_module", "warm_programs"]
