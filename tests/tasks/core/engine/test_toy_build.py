"""A new kind of output takes one small class; the engine does everything else."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from streaming_ext.base.errors import ConfigMismatchError, StorageError
from streaming_ext.format.layout import BUILD, MANIFEST
from streaming_ext.format.schema import FileRecord
from streaming_ext.store import LocalStorage, Storage
from streaming_ext.text.parts import Part
from streaming_ext.text.sources import SourceFile
from tasks.core.engine.build import DerivedBuild, OnStatus, Published, Recorded, Words
from tasks.core.engine.lifecycle import compare
from tasks.core.engine.output_files import Stretch
from tasks.core.options import Execution
from tasks.core.workers.messages import Job, MadePart, Report, WorkerCache
from tests.full_disk import full_disk
from tests.tasks.core.running import begun, do_parts, finish


class Shouted(BaseModel):
    """The texts of a build, and the files made from them."""

    texts: tuple[str, ...]

    def file(self, part: int) -> FileRecord:
        return FileRecord.of(f"parts/{part}.txt", self.texts[part].upper().encode())


class ShoutJob(Job[MadePart]):
    identity: Shouted
    part: int
    output: str

    def do(self, cache: WorkerCache, report: Report) -> MadePart:
        text = self.identity.texts[self.part].upper()
        cache.storage(self.output).put(f"parts/{self.part}.txt", text.encode())
        return MadePart(documents=1, tokens=0, size=len(text))


@dataclass(frozen=True, kw_only=True)
class Shout(DerivedBuild):
    shouted: Shouted
    kind: str = "shout"

    @property
    def words(self) -> Words:
        return Words("shouting", "shouted")

    @property
    def identity(self) -> Shouted:
        return self.shouted

    def is_published(self, output: Storage) -> bool:
        return MANIFEST in output.list()

    def recorded(self, output: Storage, *, published: bool) -> Recorded:
        files = {part.number: [Stretch.of(self.shouted.file(part.number))] for part in self.parts}
        return Recorded(storage=output, parts=files)

    def beside(self, output: Storage) -> Mapping[str, int]:
        return {}  # the manifest is not one of a dataset

    def finish(self, output: Storage, on_status: OnStatus) -> Published:
        files = (self.shouted.file(part.number) for part in self.parts)
        return Published(MANIFEST, b"loud\n", {file.path: file.size for file in files})


def shout(folder: Path, *texts: str) -> tuple[Shout, LocalStorage]:
    """Start a build in a folder, and return its plan and its output."""
    output = LocalStorage(folder / "out")
    shouted = Shouted(texts=texts)
    build = Shout(
        config=Execution(workers=1),
        parts=tuple(
            Part.whole(number, SourceFile(url=text, size=9)) for number, text in enumerate(texts)
        ),
        jobs=tuple(
            ShoutJob(identity=shouted, part=part, output=str(output)) for part in range(len(texts))
        ),
        scratch=folder / ".out.scratch",
        shouted=shouted,
    )
    return begun(compare(build, output), output), output


def test_it_is_resumed_repaired_and_published(tmp_path) -> None:
    build, output = shout(tmp_path, "one", "two", "three")
    do_parts(build, output, [0, 2])
    assert [*output.list()] == ["parts/0.txt", "parts/2.txt", BUILD]
    with pytest.raises(ConfigMismatchError, match=r"texts\[1\]: the output has 'two', this run"):
        shout(tmp_path, "one", "six", "three")
    (tmp_path / "out/parts/2.txt").write_bytes(b"THREF")  # a flipped bit
    build, output = shout(tmp_path, "one", "two", "three")
    assert build.todo == (1, 2)
    finish(build, output)
    assert {path: output.read(path) for path in output.list()} == {
        "manifest.json": b"loud\n",
        "parts/0.txt": b"ONE",
        "parts/1.txt": b"TWO",
        "parts/2.txt": b"THREE",
    }
    build, output = shout(tmp_path, "one", "two", "three")
    assert build.published
    output.remove("parts/1.txt")
    assert shout(tmp_path, "one", "two", "three")[0].todo == (1,)


def test_one_that_cannot_begin_leaves_no_scratch_but_what_a_run_can_resume(tmp_path) -> None:
    scratch = tmp_path / ".out.scratch"
    with full_disk(), pytest.raises(StorageError, match=f"Cannot write .* to {tmp_path}/out"):
        shout(tmp_path, "one", "two")
    assert not scratch.exists()
    build, output = shout(tmp_path, "one", "two")
    build.kept.mkdir()
    (build.kept / "shared").write_bytes(b"half of a file")
    output.close()
    with full_disk(), pytest.raises(StorageError):
        shout(tmp_path, "one", "two")
    assert (build.kept / "shared").exists()
