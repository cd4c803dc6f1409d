"""Listing and fetching from a Hub: pinned, resumed and checked, with an error per refusal."""

import random
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from streaming_ext.base.errors import (
    ShardmillError,
    SourceError,
    StorageError,
    TransientStorageError,
    UsageError,
)
from streaming_ext.format.record import NOT_CHECKED
from streaming_ext.format.spec import ReadOptions
from streaming_ext.store.patience import Retry
from streaming_ext.text import fetch as fetch_module
from streaming_ext.text.fetch import fetch, identify
from streaming_ext.text.formats import format_of
from streaming_ext.text.listing import list_sources
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from streaming_ext.writing.part_documents import fetch_part
from tests.servers.hub import Dataset, Hub, hub_server

FILES = {
    "README.md": b"# text",
    "data/CC-MAIN-2024/000_00000.parquet": b"a" * 1000,
    "data/CC-MAIN-2024/000_00001.parquet": b"b" * 300_000,
    "data/CC-MAIN-2025/000_00000.parquet": b"c" * 3000,
    "sample/10BT/000_00000.parquet": b"d" * 500,
    "sample/10BT/001_00000.parquet": b"e" * 600,
    "sample/100BT/000_00000.parquet": b"f" * 700,
    "plain/small.parquet": b"not in LFS",
}


TEN = ["sample/10BT/000_00000.parquet", "sample/10BT/001_00000.parquet"]
DATA = [path for path in FILES if path.startswith("data/")]
CARD = {
    "configs": [
        {
            "config_name": "two",
            "data_files": [
                {"split": "train", "path": ["sample/100BT/*", "plain/*.parquet"]},
                {"split": "test", "path": "data/**"},
            ],
        },
        {"config_name": "one", "data_files": "sample/10BT/000*"},
    ]
}


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with hub_server() as running:
        yield running


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """The server as the Hub, with one public dataset."""
    server.reset()
    server.datasets = {"org/text": Dataset()}
    server.datasets["org/text"].commit(FILES)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Retry, "usual", lambda: Retry(attempts=3, first_pause=0.05))
    return server


def commit(hub: Hub) -> str:
    return list(hub.datasets["org/text"].commits)[-1]


def paths(sources: list[SourceFile], hub: Hub) -> list[str]:
    """Return paths in the repository; all must be pinned."""
    prefix = f"hf://datasets/org/text@{commit(hub)}/"
    assert all(source.url.startswith(prefix) for source in sources)
    return [source.url.removeprefix(prefix) for source in sources]


class TestListing:
    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("sample/10BT/", TEN),
            ("sample/{10,100}BT/000*", ["sample/100BT/000_00000.parquet", TEN[0]]),
            ("data/**/000_0000[01].parquet", DATA),
            ("plain/small.parquet", ["plain/small.parquet"]),
            ("", sorted(path for path in FILES if path.endswith(".parquet"))),
        ],
    )
    def test_patterns(self, hub: Hub, pattern: str, expected: list[str]) -> None:
        found = list_sources([f"hf://datasets/org/text/{pattern}"])
        assert paths(found, hub) == expected
        assert [source.size for source in found] == [len(FILES[path]) for path in expected]
        assert hub.requests["revision"] == 1

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("README.md", ["README.md"]),
            ("{README,notes}.md", ["README.md", "notes.md"]),
            ("*", ["LICENSE", "notes.md"]),
            ("*.md", ["notes.md"]),
            ("docs/*", ["docs/.gitattributes", "docs/COPYING", "docs/README.md", "docs/a.md"]),
            ("docs/a.md", ["docs/a.md"]),
            ("LICENSE", ["LICENSE"]),
            ("docs/COPYING", ["docs/COPYING"]),
        ],
    )
    def test_files_of_any_name(self, hub: Hub, pattern: str, expected: list[str]) -> None:
        """Files about the dataset are no sources, unless they are named."""
        names = (
            "README.md",
            ".gitattributes",
            "notes.md",
            "LICENSE",
            "docs/README.md",
            "docs/.gitattributes",
            "docs/a.md",
            "docs/COPYING",
        )
        hub.datasets["org/text"].commit(dict.fromkeys(names, b"text"))
        named = list_sources([f"hf://datasets/org/text/{pattern}"], any_name=True)
        assert paths(named, hub) == expected
        docs = ["docs/COPYING", "docs/README.md", "docs/a.md"]
        for folder, within in (("docs", docs), ("", ["LICENSE", *docs, "notes.md"])):
            of_any_name = list_sources([f"hf://datasets/org/text/{folder}"], any_name=True)
            assert paths(of_any_name, hub) == within

    def test_a_revision_is_pinned_once(self, hub: Hub) -> None:
        first = commit(hub)
        hub.datasets["org/text"].commit({"sample/10BT/new.parquet": b"n"})
        now = list_sources(["hf://datasets/org/text/sample/10BT"])
        before = list_sources([f"hf://datasets/org/text@{first}/sample/10BT"])
        assert [source.url.rpartition("/")[2] for source in now] == ["new.parquet"]
        assert len(before) == 2
        assert all(f"@{first}/" in source.url for source in before)

    @pytest.mark.parametrize(
        ("card", "config", "expected"),
        [
            # Like FineWeb: a folder has the name of the configuration.
            (None, "sample-10BT", TEN),
            (None, None, DATA),
            (None, "default", DATA),
            (CARD, "two", ["plain/small.parquet", "sample/100BT/000_00000.parquet"]),
            (CARD, "one", TEN[:1]),
        ],
    )
    def test_configurations(
        self, hub: Hub, card: dict[str, Any] | None, config: str | None, expected: list[str]
    ) -> None:
        hub.datasets["org/text"].card = card
        assert paths(list_sources(["org/text"], hub_config=config), hub) == expected

    @pytest.mark.parametrize("config", ["sample-10BTT", "sample-", "sample-../data", "sampl-10BT"])
    def test_a_typo_is_refused_with_the_existing_configurations(
        self, hub: Hub, config: str
    ) -> None:
        """The name may lead to a missing folder, or to nothing."""
        hub.datasets["org/text"].card = CARD
        names = "its README names two, one. Pass --hub-config, or name the files: hf://datasets"
        with pytest.raises(UsageError, match=f"no files of configuration '{config}'; {names}"):
            list_sources(["org/text"], hub_config=config)
        hub.datasets["org/text"].card = None
        hub.datasets["org/text"].commit({"train-00000.parquet": b"x"})
        for given in (None, "default"):
            with pytest.raises(UsageError, match="'default'; its README names none. Pass --hub-c"):
                list_sources(["org/text"], hub_config=given)

    def test_a_folder_of_that_name_goes_first(
        self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "org/text").mkdir(parents=True)
        (tmp_path / "org/text/x.parquet").write_bytes(b"x")
        monkeypatch.chdir(tmp_path)
        (found,) = list_sources(["org/text"])
        assert found.url == str(tmp_path / "org/text/x.parquet")
        assert not hub.requests

    def test_hub_config_without_a_dataset_of_the_hub(self, hub: Hub) -> None:
        with pytest.raises(UsageError, match="--hub-config x goes with a dataset of the Hub"):
            list_sources(["hf://datasets/org/text/sample/10BT"], hub_config="x")


class TestRefusals:
    @pytest.mark.parametrize(
        ("pattern", "kind", "words"),
        [
            (
                "hf://datasets/org/none/x",
                StorageError,
                "org/none at main .*Repository Not Found.*credentials",
            ),
            ("hf://datasets/org/text@v9/x", UsageError, "org/text at v9 .*Revision Not Found"),
            ("hf://datasets/org/text/none/*.parquet", UsageError, "Entry Not Found"),
            ("hf://datasets/org/text/sample/10BT/9*.parquet", UsageError, "no file matches"),
            ("hf://models/org/text", UsageError, "expected hf://datasets/"),
        ],
    )
    def test_what_does_not_exist(
        self, hub: Hub, pattern: str, kind: type[ShardmillError], words: str
    ) -> None:
        with pytest.raises(kind, match=words):
            list_sources([pattern])

    @pytest.mark.parametrize(
        ("private", "gated", "token", "words"),
        [
            (
                True,
                False,
                None,
                "Repository Not Found.*authenticated.*docs/reference/configuration.md",
            ),
            (True, False, "good", None),
            (False, False, "wrong", "Invalid credentials.*docs/reference/configuration.md"),
            (False, True, None, "Cannot access gated repo.*docs/reference/configuration.md"),
            (False, True, "good", "Cannot access gated repo.*docs/reference/configuration.md"),
        ],
    )
    def test_access(
        self,
        hub: Hub,
        monkeypatch: pytest.MonkeyPatch,
        private: bool,
        gated: bool,
        token: str | None,
        words: str | None,
    ) -> None:
        hub.datasets["org/text"].private = private
        hub.datasets["org/text"].gated = gated
        secret = {"good": hub.token, "wrong": "hf_planted_wrong_token"}.get(token or "")
        if secret:
            monkeypatch.setenv("HF_TOKEN", secret)
        if words is None:
            assert list_sources(["hf://datasets/org/text/sample/10BT"])
            return
        with pytest.raises(StorageError, match=words) as caught:
            list_sources(["hf://datasets/org/text/sample/10BT"])
        assert not caught.value.transient
        assert "hf_" not in str(caught.value)


def test_a_hub_that_is_busy_for_ever(hub: Hub) -> None:
    hub.busy, hub.retry_after = 100, "0"
    with pytest.raises(TransientStorageError, match="429.*tried 3 times"):
        list_sources(["hf://datasets/org/text/sample/10BT"])
    assert sum(hub.requests.values()) == 3


def test_errors_are_one_line_with_the_host(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of the Hub, and a Hub that is down, give no request numbers, URLs or advice."""
    with pytest.raises(StorageError) as refused:
        list_sources(["hf://datasets/org/none/x"])
    said = f"Cannot look at the dataset org/none at main on the Hub, {hub.url}: 401 Client Error."
    assert str(refused.value).startswith(f"{said} Repository Not Found. If you are")
    for noise in ("Request ID", "for url", "`repo_id`", "For more", "\n", ".."):
        assert noise not in str(refused.value)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(TransientStorageError) as away:
        list_sources(["hf://datasets/org/none/x"])
    assert re.fullmatch(
        r"Cannot look at the dataset org/none at main on the Hub, http://127\.0\.0\.1:1: "
        r"\[Errno 111\] Connection refused\. \(tried \d+ times\)",
        str(away.value),
    )


class TestFetch:
    @pytest.fixture
    def source(self, hub: Hub) -> SourceFile:
        (found,) = list_sources(["hf://datasets/org/text/data/CC-MAIN-2024/000_00001.parquet"])
        return found

    def test_cuts_are_resumed(self, hub: Hub, source: SourceFile, tmp_path: Path) -> None:
        hub.cuts = [1, 100_000, 50_000]
        path, fetched = fetch(source, tmp_path)
        assert path.read_bytes() == b"b" * 300_000
        assert not hub.cuts
        assert fetched == 300_000  # nothing came twice

    def test_what_a_killed_run_brought_is_kept(
        self, hub: Hub, source: SourceFile, tmp_path: Path
    ) -> None:
        path, _ = fetch(source, tmp_path)
        path.rename(path.with_suffix(".partial"))
        with path.with_suffix(".partial").open("r+b") as file:
            file.truncate(200_000)
        hub.sent.clear()
        assert fetch(source, tmp_path) == (path, 100_000)
        assert path.read_bytes() == b"b" * 300_000
        assert hub.sent.total() == 100_000

    def test_another_content_is_refused(self, hub: Hub, source: SourceFile, tmp_path: Path) -> None:
        hub.flip = True
        with pytest.raises(SourceError, match="has the sha256"):
            fetch(source, tmp_path)
        assert not list(tmp_path.glob("*.parquet*"))
        hub.flip = False
        fetch(source, tmp_path)  # no byte of the damaged file is reused

    @pytest.mark.parametrize("checksums", [True, False])
    def test_only_a_column(
        self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, checksums: bool
    ) -> None:
        """The Hub's hash covers the whole file; hashes of pages are compared when they are read."""
        monkeypatch.setattr(fetch_module, "SMALLEST_FILE", 1000)
        monkeypatch.setattr(fetch_module, "_MERGE_BYTES", 100)
        rng, file = random.Random(1), tmp_path / "x"
        rows = {
            name: [rng.randbytes(size).hex() for _ in range(40)]
            for name, size in (("a", 4000), ("text", 1000), ("b", 4000))
        }
        pq.write_table(pa.table(rows), file, compression="none", write_page_checksum=checksums)
        hub.datasets["org/text"].commit({"data/x.parquet": file.read_bytes()})
        (source,) = list_sources(["org/text"])
        part, options, checked = Part.whole(0, source), ReadOptions(), tmp_path / "checked"
        for folder, hub.flip in (("s", False), ("flipped", True)):  # flips a byte of the text
            path, fetched = fetch(source, tmp_path / folder, options=options)
            assert fetched < source.size / 3
            assert identify(source, path).content == NOT_CHECKED
        with pytest.raises(SourceError, match=r"x\.parquet.*CRC") if checksums else nullcontext():
            list(format_of(source.url).read(path, options, name=source.url))
        with pytest.raises(SourceError, match="has the sha256"):  # as `verify --deep` fetches it
            fetch(source, tmp_path / "whole")
        with pytest.raises(SourceError, match="has the sha256"):
            fetch_part(part, checked, options=options, check=True)
        hub.flip = False
        ((path,), fetched) = fetch_part(part, checked, options=options, check=True)
        assert (fetched, path.read_bytes()) == (source.size, file.read_bytes())
        assert identify(source, path).content is None

    def test_small_files_outside_of_lfs_too(self, hub: Hub, tmp_path: Path) -> None:
        (source,) = list_sources(["hf://datasets/org/text/plain/small.parquet"])
        assert source.version is not None
        assert source.version.startswith("git:")
        assert fetch(source, tmp_path)[0].read_bytes() == b"not in LFS"
        hub.flip = True
        (tmp_path / "again").mkdir()
        with pytest.raises(SourceError, match="has the git"):
            fetch(source, tmp_path / "again")

    def test_a_busy_server_and_a_removed_file(
        self, hub: Hub, source: SourceFile, tmp_path: Path
    ) -> None:
        hub.busy, hub.retry_after = 2, "0"
        fetch(source, tmp_path / "a")
        gone = SourceFile(url=f"{source.url}x", size=source.size, version=source.version)
        with pytest.raises(SourceError, match="there is no such file .404"):
            fetch(gone, tmp_path / "b")

    def test_offline_from_the_cache(
        self, hub: Hub, source: SourceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pattern = "hf://datasets/org/text/data/CC-MAIN-2024/000_00001.parquet"
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(StorageError, match="holds no dataset org/text at main"):
            list_sources([pattern])
        root = tmp_path / "cache/datasets--org--text"
        sha = (source.version or "").removeprefix("sha256:")
        for folder in ("refs", "blobs", f"snapshots/{commit(hub)}/data/CC-MAIN-2024"):
            (root / folder).mkdir(parents=True)
        (root / "refs/main").write_text(commit(hub))
        (root / "blobs" / sha).write_bytes(b"b" * 300_000)
        link = root / f"snapshots/{commit(hub)}/data/CC-MAIN-2024/000_00001.parquet"
        link.symlink_to(root / "blobs" / sha)
        hub.reset()
        assert list_sources([pattern]) == [source]  # the same identity as online
        path, fetched = fetch(source, tmp_path / "s")
        assert (path, fetched) == (link, 0)
        assert not hub.requests
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert fetch(source, tmp_path / "s") == (link, 0)  # it is not fetched again
        link.unlink()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(StorageError, match="not in the Hub's local cache"):
            fetch(source, tmp_path / "s")
