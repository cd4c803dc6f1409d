"""S3 and stores with its API, through botocore."""

import base64
import functools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from streaming_ext.base.errors import StorageError, TransientStorageError
from streaming_ext.store.buckets import ObjectInfo, Store, complete_headers, require_span
from streaming_ext.store.patience import connect_seconds

# A file of up to twice this size is put with one request, so a kill leaves no open upload.
CHUNK_BYTES = 64 * 2**20
_CHUNKS_AT_ONCE = 4
NO_MD5 = "SHARDMILL_ETAG_IS_NO_MD5"  # "1" for a store whose ETags only look like MD5s
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_CLIENT_OPTIONS = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "endpoint_url",
    "use_ssl": "use_ssl",
}


class S3(Store):
    """One bucket; the names of the options are those of s3fs."""

    OPTIONS = frozenset({*_CLIENT_OPTIONS, "client_kwargs", "config_kwargs", "profile", "anon"})

    def __init__(self, bucket: str, timeout: float, options: Mapping[str, Any]) -> None:
        from botocore import UNSIGNED  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]
        from botocore.session import Session  # type: ignore[import-untyped]

        further = options.get("client_kwargs", {})
        config = Config(
            connect_timeout=connect_seconds(timeout),
            read_timeout=timeout,
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=32,
        ).merge(Config(**options.get("config_kwargs", {})))
        if options.get("anon"):
            config = config.merge(Config(signature_version=UNSIGNED))
        session = Session(profile=options.get("profile"))
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
        settings = {
            name: options[ours] for ours, name in _CLIENT_OPTIONS.items() if ours in options
        }
        self._client = session.create_client("s3", config=config, **settings, **further)
        # With this header, botocore loops for ever if the connection closes in "100 Continue".
        self._client.meta.events.register("before-sign.s3", _without_expect)
        self._bucket = bucket

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        """Send ListObjectsV2."""
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
            if "IsTruncated" not in page:
                if "xml" in page["ResponseMetadata"]["HTTPHeaders"].get("content-type", ""):
                    raise TransientStorageError(f"Cannot list s3://{self._bucket}: cut answer.")
                raise StorageError(
                    f"Cannot list s3://{self._bucket}: what answers is no object store. Check "
                    "AWS_ENDPOINT_URL."
                )
            for entry in page.get("Contents", []):
                etag = entry["ETag"].strip('"')
                yield entry["Key"], ObjectInfo(size=int(entry["Size"]), version=f"etag:{etag}")

    def read(self, key: str, span: tuple[int, int] | None, version: str | None) -> bytes:
        """Send GetObject with `If-Match`."""
        options: dict[str, str] = {}
        if span is not None:
            options["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        if version is not None:
            options["IfMatch"] = f'"{version.removeprefix("etag:")}"'
        with complete_headers():
            answer = self._client.get_object(Bucket=self._bucket, Key=key, **options)
            _ = answer["ContentLength"]
        with closing(answer["Body"]) as body:
            require_span(answer.get("ContentRange"), span)
            data: bytes = body.read()
        return data

    def headers(self, key: str) -> Mapping[str, str]:
        """Send HeadObject; an ETag that is an MD5 becomes `content-md5`."""
        head = self._client.head_object(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED")
        headers: dict[str, str] = head["ResponseMetadata"]["HTTPHeaders"]
        encrypted = "SSECustomerAlgorithm" in head or str(
            head.get("ServerSideEncryption", "")
        ).startswith("aws:kms")
        md5 = _MD5.fullmatch(head.get("ETag", ""))
        if md5 and not encrypted and os.environ.get(NO_MD5) != "1":
            value = base64.b64encode(bytes.fromhex(md5[1])).decode()
            headers = {**headers, "content-md5": value}
        return headers

    def put(self, key: str, data: bytes | Path, *, new: bool) -> None:
        """Send PutObject, with `If-None-Match: *` if `new`; upload a large file in parts."""
        with complete_headers():
            if isinstance(data, Path):
                with self._transfers() as transfers:
                    transfers.upload(str(data), self._bucket, key).result()
            else:
                condition = {"IfNoneMatch": "*"} if new else {}
                answer = self._client.put_object(
                    Bucket=self._bucket, Key=key, Body=data, **condition
                )
                _ = answer["ETag"]

    def copy(self, bucket: str, key: str, to: str) -> bool:
        """Send CopyObject, or UploadPartCopy for a large object."""
        with complete_headers(), self._transfers() as transfers:
            transfers.copy({"Bucket": bucket, "Key": key}, self._bucket, to).result()
        return True

    def remove(self, key: str) -> None:
        """Send DeleteObject."""
        self._client.delete_object(Bucket=self._bucket, Key=key)

    def _transfers(self) -> Any:
        from s3transfer.manager import TransferConfig, TransferManager  # type: ignore[import-untyped]

        config = TransferConfig(
            multipart_threshold=2 * CHUNK_BYTES,
            multipart_chunksize=CHUNK_BYTES,
            max_request_concurrency=_CHUNKS_AT_ONCE,
            max_submission_concurrency=1,
        )
        return TransferManager(self._client, config)


def _without_expect(request: Any, **_: Any) -> None:
    del request.headers["Expect"]


@functools.cache
def _loader(path: str | None) -> Any:
    """Return the reader of botocore's data files, which keeps what it read."""
    from botocore.loaders import create_loader  # type: ignore[import-untyped]

    return create_loader(path)
