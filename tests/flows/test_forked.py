"""Children that are forks of a command."""

import os
from pathlib import Path

from flows.forked import fork


def test_a_file_of_the_parent_never_writes_into_one_of_the_child(tmp_path: Path) -> None:
    """As a log file would, whose number a database of the child has got."""
    own = tmp_path / "own"
    with (tmp_path / "log").open("w") as log:

        def work() -> None:
            with own.open("wb") as file:
                file.write(b"database")
                file.flush()
                log.write("a line")
                log.flush()

        pid = fork(work, keep=())
        assert os.waitpid(pid, 0)[1] == 0
    assert own.read_bytes() == b"database"
    assert (tmp_path / "log").read_text() == ""
