"""README's commands, run in the order of the page."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tasks.core.synthetic import write_parquet_files
from tests.command_line import run_program, succeeded, wait_for
from tests.servers.prefect.database import give_database
from tests.servers.prefect.server import free_port
from tests.warm import warm_programs

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands that set up the environment of these tests: other tests look at them.
SET_UP = ("make ", "python3 -m venv", "venv/bin/pip")


def blocks(document: str, language: str) -> list[str]:
    found = BLOCK.finditer((ROOT / document).read_text())
    return [block["text"] for block in found if block["language"] == language]


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with source files."""
    (tmp_path / "fineweb-edu").mkdir()
    write_parquet_files(tmp_path / "fineweb-edu", 3, 300, seed=5)
    return tmp_path


def with_tokenizer(text: str, vocabulary: Path) -> str:
    """Return a text with a tokenizer that needs no download."""
    return text.replace("--tokenizer gpt2", f"--tokenizer {vocabulary} --pattern gpt2")


def search_path() -> str:
    """Return `PATH` of the user's shell: the environment's programs come first."""
    programs = (warm_programs(), Path(sys.executable).parent, os.environ["PATH"])
    return os.pathsep.join(map(str, programs))


def run_script(script: str, folder: Path, environment: dict[str, str], log: Path) -> None:
    """Run a bash script, and end what it leaves in the background."""
    with log.open("wb") as out:  # no pipe: background processes would keep it open
        shell = subprocess.Popen(
            ["bash", "-euxo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            shell.wait(timeout=540)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
            wait_for(lambda: shell.poll() is not None and not _is_group(shell.pid))
    assert shell.returncode == 0, log.read_text()


def _is_group(number: int) -> bool:
    """Return whether any process is in a process group."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def shell_environment(environment, tmp_path) -> dict[str, str]:
    """The environment of a user's shell, with its own Prefect home."""
    port = free_port()
    give_database(tmp_path / "prefect")
    return environment | {
        "PATH": search_path(),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_SERVER_API_PORT": str(port),
    }


def test_commands(folder, vocabulary, shell_environment) -> None:
    """The commands of README and of docs/how-to/watch.md, which starts a server."""
    port = shell_environment["PREFECT_SERVER_API_PORT"]
    commands = [
        with_tokenizer(block, vocabulary).replace("4200", port)
        for page in ("README.md", "docs/how-to/watch.md")
        for block in blocks(page, "bash")
        if not block.startswith(SET_UP)
        and "s3://" not in block  # tests/flows/storage/test_hub.py runs that one
    ]
    assert len(commands) == 2
    script = "\n".join(commands)
    # The server that the page starts in the background needs some seconds before it answers.
    first_use = "prefect config set PREFECT_API_URL"
    script = script.replace(
        first_use,
        f"for i in $(seq 300); do curl -sf http://127.0.0.1:{port}/api/health && break; "
        f"sleep 0.2; done\n{first_use}",
    )
    run_script(script, folder, shell_environment, folder / "output.log")
    for made in ("gpt2", "watched"):
        assert (folder / f"fineweb-edu-{made}" / "manifest.json").exists()


def test_make_targets_are_those_that_the_documents_name() -> None:
    named = re.findall(r"\bmake (\w+)", "\n".join(blocks("README.md", "bash")))
    assert set(named) == {"demo", "test"}
    for target in named:
        plan = succeeded(run_program("make", "--dry-run", target, folder=ROOT)).stdout
        assert {"demo": "shardmill demo", "test": "pytest"}[target] in plan


def test_install_is_the_same_on_its_page() -> None:
    (script,) = (block for block in blocks("README.md", "bash") if "venv" in block)
    (longer,) = blocks("docs/start/install.md", "bash")
    assert longer.startswith(script)


def test_git_ignores_what_the_documents_make(tmp_path) -> None:
    """Git ignores README's environment and the folder of the demo, but not the sources."""
    succeeded(run_program("git", "init", "--quiet", tmp_path))
    shutil.copyfile(ROOT / ".gitignore", tmp_path / ".gitignore")
    paths = ("venv/bin/pip", ".venv/bin/pip", "demo-output/dataset/manifest.json", "flows/cli.py")
    shown = run_program("git", "check-ignore", *paths, folder=tmp_path)
    assert shown.stdout.split() == [*paths[:3]]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120
