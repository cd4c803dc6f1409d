"""Settings of Prefect that are wrong, wherever they stand: one line that names the place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.context import root_settings_context

from flows.prefect_api.loading import settings_explained
from streaming_ext.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and Prefect's, with nothing in them."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "prefect"
    home.mkdir()
    monkeypatch.setenv("PREFECT_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _refusal(capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(UsageError) as raised, settings_explained():
        root_settings_context()
    assert capfd.readouterr() == ("", "")  # nothing else is told
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (".env", b"PREFECT_API_URL=\xff\n"),
        ("pyproject.toml", b"[tool\n"),
        ("prefect.toml", b"\xff"),
    ],
)
def test_a_file_that_is_none_is_named(
    folder: Path, capfd: pytest.CaptureFixture[str], file: str, content: bytes
) -> None:
    (folder / file).write_bytes(content)
    assert str(folder / file) in _refusal(capfd)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PREFECT_LOGGING_LEVEL", "banana", "'DEBUG'"),
        ("PREFECT_CLIENT_MAX_RETRIES", "many", "a whole number"),
    ],
)
def test_a_variable_with_a_wrong_value_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    expected: str,
) -> None:
    monkeypatch.setenv(variable, value)
    told = _refusal(capfd)
    assert told.startswith(f"{variable}: expected {expected}")
    assert told.endswith(". It is set in the environment.")


PROFILE = "active = 'a'\n[profiles.a]\n"


@pytest.mark.parametrize(
    ("file", "content", "name"),
    [
        (".env", "PREFECT_CLIENT_MAX_RETRIES=many\n", "PREFECT_CLIENT_MAX_RETRIES"),
        (".env", "prefect_logging_level=banana\n", "PREFECT_LOGGING_LEVEL"),
        ("prefect.toml", "[client]\nmax_retries = 'many'\n", "client.max_retries"),
        (
            "pyproject.toml",
            "[tool.prefect.client.metrics]\nenabled = 'x'\n",
            "tool.prefect.client.metrics.enabled",
        ),
        ("prefect/profiles.toml", f"{PROFILE}PREFECT_DEBUG_MODE = 'x'\n", "PREFECT_DEBUG_MODE"),
    ],
)
def test_a_wrong_value_is_told_with_the_one_file_that_holds_it(
    folder: Path, capfd: pytest.CaptureFixture[str], file: str, content: str, name: str
) -> None:
    right = {
        ".env": "PREFECT_SERVER_API_PORT=4201\n",
        "prefect.toml": "[server.api]\nhost = 'here'\n",
        "pyproject.toml": "[tool.prefect.server.api]\nport = 4202\n",
        "prefect/profiles.toml": f"{PROFILE}PREFECT_SERVER_API_PORT = '4203'\n",
    }
    for place, text in {**right, file: content}.items():
        (folder / place).write_text(text)
    told = _refusal(capfd)
    assert told.startswith(f"{name}: expected ")
    assert told.endswith(f". It is set in {folder / file}.")


def test_of_two_files_that_hold_a_value_the_first_one_counts(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / ".env").write_text("PREFECT_CLIENT_MAX_RETRIES=many\n")
    (folder / "prefect.toml").write_text("[client]\nmax_retries = 3\n")
    assert _refusal(capfd).endswith(f"It is set in {folder / '.env'}.")


def test_a_value_in_place_of_a_table_is_told_with_the_files_that_hold_settings(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    (folder / "prefect.toml").write_text("api = 3\n")
    told = _refusal(capfd)
    assert str(folder / "prefect.toml") in told
    assert "pyproject.toml" not in told


def test_a_home_that_cannot_be_made_is_told_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("PREFECT_HOME", str(folder / "file/below"))
    with settings_explained():
        root_settings_context()
    assert capfd.readouterr() == ("", "")  # who writes there tells it


def test_warnings_of_prefect_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFECT_PROFILE", "nosuch")
    with settings_explained():
        root_settings_context()
    assert "'nosuch'" in capfd.readouterr().err


def _load(environment: dict[str, str], *prefix: str) -> "subprocess.CompletedProcess[str]":
    """Prefect imported by a process of its own."""
    program = "from flows.prefect_api.loading import load_prefect; load_prefect(); print('loaded')"
    return subprocess.run(
        [*prefix, sys.executable, "-P", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_broken_profiles_are_told_once(folder: Path) -> None:
    (folder / "prefect/profiles.toml").write_text("active = [")
    ended = _load(dict(os.environ))
    *before, last = ended.stderr.splitlines()
    assert f"UsageError: {folder}/prefect/profiles.toml: " in last
    assert "Failed to" not in "".join(before)


def test_a_user_without_a_home() -> None:
    """As in a container that is run with a number as its user."""
    nobody = ("unshare", "--user", "--map-user=12345")
    own = {name: value for name, value in os.environ.items() if name != "HOME"}
    assert _load(own, *nobody).stdout == "loaded\n"  # with PREFECT_HOME
    del own["PREFECT_HOME"]
    ended = _load(own, *nobody)
    assert "UsageError: The user 12345 has no home folder" in ended.stderr


def test_what_it_says_is_lost_where_it_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", full)
        with settings_explained():
            sys.stderr.write("a setting is old\n")
