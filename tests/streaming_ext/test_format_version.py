"""Files and states of a newer shardmill are refused as newer, not as damaged."""

import json
import shutil
from pathlib import Path

import pytest

from streaming_ext import StreamingTokenLoader
from streaming_ext.base.errors import CorruptDatasetError, NewerVersionError
from streaming_ext.format.manifest import Manifest
from streaming_ext.format.mds_index import read_table
from streaming_ext.format.record import PartRecord
from streaming_ext.format.schema import from_json
from streaming_ext.text.tokenizer.load import open_saved
from tests.streaming_ext.build import build_some

FIXTURES = Path(__file__).parents[1] / "fixtures"
NEWER = [2, 10]


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return build_some(tmp_path / "new", 60).root


def changed(file: Path, **fields: object) -> bytes:
    """Change fields of a JSON file, write it back and return its bytes."""
    value = json.loads(file.read_bytes()) | fields
    data = json.dumps(value).encode()
    file.write_bytes(data)
    return data


class TestNewer:
    @pytest.mark.parametrize("version", NEWER)
    @pytest.mark.parametrize(
        ("model", "name"), [(Manifest, "manifest.json"), (PartRecord, "parts/00000.json")]
    )
    def test_a_record_or_manifest(self, new, open_raw, model, name, version) -> None:
        data = changed(new / name, format=version, added=[1])
        with pytest.raises(NewerVersionError) as caught:
            from_json(model, data, where=f"out/{name}")
        assert str(caught.value) == (
            f"out/{name} was made by a newer shardmill (format {version}), this one reads up to "
            "format 1. Update shardmill here."
        )
        assert not isinstance(caught.value, CorruptDatasetError)
        if model is Manifest:
            with pytest.raises(NewerVersionError, match=r"manifest.json was made by a newer"):
                open_raw(local=new)

    @pytest.mark.parametrize("version", NEWER)
    def test_a_state(self, open_raw, version) -> None:
        loader = StreamingTokenLoader(open_raw())
        state = loader.state_dict()
        state = state | {"version": version, "tokens": 7}
        state["streams"] = [state["streams"][0] | {"domain": "en"}]
        with pytest.raises(NewerVersionError, match="The state was made by a newer shardmill"):
            loader.load_state_dict(state)

    def test_an_index(self) -> None:
        with pytest.raises(NewerVersionError, match="x.json"):
            read_table(b'{"version": 3, "blocks": []}', where="x.json")

    def test_a_tokenizer(self, tmp_path) -> None:
        folder = Path(shutil.copytree(FIXTURES / "dataset-0.1/tokenizer", tmp_path / "tokenizer"))
        changed(folder / "tokenizer_spec.json", version=2, normalizer="x")
        with pytest.raises(NewerVersionError, match="tokenizer_spec"):
            open_saved(folder)


@pytest.mark.parametrize("version", [0, -1, 1.5, "1", "2.0", None, [1]])
def test_what_is_no_version_is_damage(new, version) -> None:
    data = changed(new / "manifest.json", format=version)
    with pytest.raises(CorruptDatasetError, match="format"):
        from_json(Manifest, data, where="x")
