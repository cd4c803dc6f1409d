"""Commands of `python -P -m` without the seconds that importing Prefect takes.

`server` is a process that has imported what `shardmill` needs and forks for each command;
`start_module` gives a `subprocess.Popen` that has its process made there. Everything else is as for
a process of its own: pid, session, process group, signals, pipes, working folder, environment.
`warm_programs` are `shardmill` and `prefect` for shells: what they do is done in such a fork.
"""

from tests.warm.client import WARM, start_module, warm_programs

__all__ = ["WARM", "start_module", "warm_programs"]
