"""URLs that hold secrets are refused and never printed."""

import pytest
import yaml

from streaming_ext.base.errors import UsageError
from streaming_ext.store.buckets import split_url
from streaming_ext.store.locations import require_no_secret
from tasks.core.config import ShardConfig
from tasks.core.estimate.config import EstimateConfig

HOLDS = [
    "s3://KEY:pl4nted@bucket/x",
    "s3://KEY:pl4/nted@bucket/x",
    "s3://KEY:pl4nted",
    "https://user:pl4nted@host/vocab.tiktoken",
    "https://pl4nted@host/x",
    "https:/user:pl4nted@host/x",
    "az://container/x?sv=2024&sig=pl4nted",
    "https://host/x.parquet?X-Amz-Signature=pl4nted",
    "https://host/x.parquet#token=pl4nted",
    "{s3://KEY:pl4nted@src/t,s3://other/t}",
    "{/data/t,s3://KEY:pl4nted@src/t}",
    "{s3,gs}://KEY:pl4nted@src/t",
    "{https://host/x?sig=pl4nted,https://host/y}",
]
HOLDS_NOTHING = [
    "s3://bucket/a/part-0?.parquet",
    "s3://bucket/{a,b}/**/*.parquet",
    "/data/a@b:c/x?y=1",
    "hf://datasets/org/name@refs/convert/parquet/data/*.parquet",
    "org/name@main",
    "gpt2",
    "dask://host:8786",
    "https://host:8443/x",
    "http://[::1]:80/x",
    "prefect://shard/hosts",
    "{s3://bucket/a,https://host:8443}",
    "{/data/a@b:c,/data/x?y=1}",
]


@pytest.mark.parametrize("url", HOLDS)
def test_they_are_refused(url) -> None:
    with pytest.raises(UsageError) as caught:
        require_no_secret(url, "output")
    assert "pl4" not in str(caught.value)
    assert "nted" not in str(caught.value)


@pytest.mark.parametrize("model", [ShardConfig, EstimateConfig])
@pytest.mark.parametrize("option", ["output", "sources", "tokenizer", "scratch", "executor"])
def test_no_configuration_holds_one(model, option) -> None:
    given = {"sources": ["/x"], "output": "/y", "tokenizer": "gpt2"}
    url = HOLDS[0]
    for wrong in ({}, {"sequence_length": "wrong as well"}):
        with pytest.raises(UsageError, match=option) as caught:
            model.model_validate(given | wrong | {option: [url] if option == "sources" else url})
        assert "pl4" not in str(caught.value)
        assert "nted" not in str(caught.value)


@pytest.mark.parametrize("url", HOLDS_NOTHING)
def test_what_holds_none_passes(url) -> None:
    require_no_secret(url, "output")


def test_a_location_is_named_without_its_query() -> None:
    with pytest.raises(UsageError) as caught:
        split_url("az://container/x?sv=1&sig=pl4nted")
    assert "pl4nted" not in str(caught.value)


def test_settings_of_a_deployment_are_looked_at_before_it_runs() -> None:
    from flows.submit import changed
    from tasks.core.config import ShardConfig

    given = yaml.safe_load("{sources: [/x], output: /y, tokenizer: gpt2}")
    with pytest.raises(UsageError, match="output") as caught:
        changed(ShardConfig, given, ["output=s3://KEY:pl4nted@bucket/x"])
    assert "pl4nted" not in str(caught.value)
