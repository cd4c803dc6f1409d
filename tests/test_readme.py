"""Every command that the documents show is run, in the order in which they show it."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tasks.core.synthetic import write_parquet_files
from tests.command_line import wait_for
from tests.servers.prefect.database import give_database
from tests.servers.prefect.server import free_port
from tests.warm import warm_programs

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands that set up what these tests run in: a test of their own looks at them.
SET_UP = ("make ", "python3 -m venv", "venv/bin/pip")


def blocks(document: str, language: str) -> list[str]:
    found = [b["text"] for b in BLOCK.finditer((ROOT / document).read_text())]
    languages = [b["language"] for b in BLOCK.finditer((ROOT / document).read_text())]
    return [text for text, of in zip(found, languages, strict=True) if of == language]


@pytest.fixture
def folder(tmp_path: Path, vocabulary: Path) -> Path:
    """A folder as a user has it: source files, and the YAML file that the README shows."""
    (tmp_path / "fineweb-edu").mkdir()
    write_parquet_files(tmp_path / "fineweb-edu", 3, 1000, seed=5)
    (config,) = blocks("README.md", "yaml")
    (tmp_path / "shard.yaml").write_text(here(config, vocabulary))
    return tmp_path


def here(text: str, vocabulary: Path) -> str:
    """The same, where no vocabulary can be downloaded: another tokenizer, and a free port."""
    text = text.replace("--tokenizer gpt2", f"--tokenizer {vocabulary} --pattern gpt2")
    return text.replace("tokenizer: gpt2", f"tokenizer: {vocabulary}\npattern: gpt2")


def search_path() -> str:
    """`PATH` of the user's shell: the environment's programs first."""
    programs = (warm_programs(), Path(sys.executable).parent, os.environ["PATH"])
    return os.pathsep.join(map(str, programs))


def run_script(script: str, folder: Path, environment: dict[str, str], log: Path) -> None:
    """Run a script of bash; what it has left in the background is ended then."""
    with log.open("wb") as out:  # no pipe: what is in the background would keep it open
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
    """Whether any process is in a group."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def shell_environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The user's shell, with a Prefect home of its own."""
    port = free_port()
    give_database(tmp_path / "prefect")
    return environment | {
        "PATH": search_path(),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_SERVER_API_PORT": str(port),
    }


def test_readme_commands(folder: Path, vocabulary: Path, shell_environment: dict[str, str]) -> None:
    port = shell_environment["PREFECT_SERVER_API_PORT"]
    commands = [
        here(block, vocabulary).replace("4200", port)
        for block in blocks("README.md", "bash")
        if not block.startswith(SET_UP)
        and "s3://" not in block  # that one: tests/flows/storage/test_hub.py
        and "work-pool" not in block  # that one: tests/deployments/test_commands.py
    ]
    assert len(commands) >= 6
    script = "\n".join(commands)
    # The server that the README starts in the background answers some seconds later.
    first_use = "prefect config set PREFECT_API_URL"
    script = script.replace(
        first_use,
        f"for i in $(seq 300); do curl -sf http://127.0.0.1:{port}/api/health && break; "
        f"sleep 0.2; done\n{first_use}",
    )
    run_script(script, folder, shell_environment, folder / "output.log")
    for made in ("gpt2", "2k", "from-file", "watched"):
        assert (folder / f"fineweb-edu-{made}" / "manifest.json").exists()


def test_readme_python(
    folder: Path, vocabulary: Path, shell_environment: dict[str, str], api_url: str
) -> None:
    """Training with shardmill's reader, and with the stock one."""
    environment = shell_environment | {"PREFECT_API_URL": api_url}
    make = "shardmill shard fineweb-edu --output fineweb-edu-gpt2 --tokenizer gpt2"
    subprocess.run(["bash", "-c", here(make, vocabulary)], cwd=folder, env=environment, check=True)
    scripts = blocks("README.md", "python")[:2]
    assert len(scripts) == 2
    # Where torchvision does not load, as beside a CPU-only torch, the import needs a hand.
    lines = ["import streaming_ext.training.stock"]
    for script in scripts:  # in one process, which imports torch once
        lines += [script + "    print(batch['tokens'].shape)", "print('ended')"]
    ended = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    ours, stock, _ = ended.stdout.split("ended")
    assert "torch.Size([8, 2048])" in ours
    assert "torch.Size([8, 2048])" in stock


def test_make_targets_are_those_that_the_documents_name() -> None:
    named = re.findall(r"\bmake (\w+)", "\n".join(blocks("README.md", "bash")))
    assert set(named) == {"demo", "test"}
    for target in named:
        plan = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        assert {"demo": "shardmill demo", "test": "pytest"}[target] in plan
