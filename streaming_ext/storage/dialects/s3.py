"""S3, and what speaks it."""

import asyncio
import threading
from contextlib import closing
from typing import Any

from streaming_ext.storage.dialects.base import ObjectInfo, OpenUpload

# Up to twice this an object goes in one request: nothing is left behind, whatever happens.
PIECE_BYTES = 64 * 2**20
_LARGE = 2**20  # from here on a byte costs more than a request


class _InThreads:
    """botocore's own client, for large reads: half the CPU time of the event loop's."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._made: Any = None

    def read(self, bucket: str, key: str, options: dict[str, str]) -> bytes:
        """GetObject."""
        with self._lock:
            if self._made is None:
                from botocore.config import Config  # type: ignore[import-untyped]
                from botocore.session import get_session  # type: ignore[import-untyped]

                self._made = get_session().create_client("s3", config=Config(**self._settings))
        try:
            answer = self._made.get_object(Bucket=bucket, Key=key, **options)
        except ValueError as error:  # half a date, say
            raise ConnectionError(f"the answer was cut in its head: {error}") from error
        # As a context manager it would give urllib3's stream, whose errors are not botocore's.
        with closing(answer["Body"]) as body:
            data: bytes = body.read()
        return data


class S3:
    """Through s3fs; its own wrappers ask for the size first, where errors have no codes."""

    package = "s3fs"
    extra = "s3"

    def open(self, scheme: str, timeout: float) -> Any:
        """The file system; endpoint and credentials come from the environment."""
        import fsspec

        settings = {
            "connect_timeout": min(timeout, 10.0),
            "read_timeout": timeout,
            "retries": {"mode": "standard", "total_max_attempts": 1},
            "max_pool_connections": 32,
        }
        fs = fsspec.filesystem(
            scheme, use_listings_cache=False, skip_instance_cache=True, config_kwargs=settings
        )
        fs.retries = 1
        fs.in_threads = _InThreads(settings)
        return fs

    async def look_at(self, fs: Any, bucket: str, prefix: str) -> None:
        """One entry of a listing."""
        await fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)

    async def find(self, fs: Any, bucket: str, prefix: str) -> dict[str, ObjectInfo]:
        """ListObjectsV2, page by page."""
        found: dict[str, ObjectInfo] = {}
        after: dict[str, str] = {}
        while True:
            page = await fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **after)
            for entry in page.get("Contents", []):
                etag = entry["ETag"].strip('"')
                found[entry["Key"]] = ObjectInfo(size=int(entry["Size"]), version=f"etag:{etag}")
            if not page.get("IsTruncated"):
                return found
            after = {"ContinuationToken": page["NextContinuationToken"]}

    async def read(
        self, fs: Any, bucket: str, key: str, span: tuple[int, int] | None, version: str | None
    ) -> bytes:
        """GetObject with `If-Match`."""
        options: dict[str, str] = {}
        if span is not None:
            options["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        if version is not None:
            options["IfMatch"] = f'"{version.removeprefix("etag:")}"'
        if span is not None and span[1] - span[0] >= _LARGE:
            return await asyncio.to_thread(fs.in_threads.read, bucket, key, options)
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key, **options)
        async with answer["Body"] as body:
            return bytes(await body.read())

    async def put(self, fs: Any, bucket: str, key: str, data: bytes, *, new: bool) -> None:
        """PutObject, or a multipart upload of pieces; with `If-None-Match: *`."""
        options = {"mode": "create"} if new else {}
        await fs._pipe_file(f"{bucket}/{key}", data, chunksize=PIECE_BYTES, **options)

    async def remove(self, fs: Any, bucket: str, key: str) -> None:
        """DeleteObject."""
        await fs._call_s3("delete_object", Bucket=bucket, Key=key)

    async def open_uploads(self, fs: Any, bucket: str, prefix: str) -> list[OpenUpload]:
        """ListMultipartUploads, page by page."""
        found: list[OpenUpload] = []
        after: dict[str, str] = {}
        while True:
            page = await fs._call_s3(
                "list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after
            )
            found += [
                OpenUpload(key=entry["Key"], identity=entry["UploadId"])
                for entry in page.get("Uploads", [])
            ]
            if not page.get("IsTruncated"):
                return found
            after = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    async def give_up(self, fs: Any, bucket: str, upload: OpenUpload) -> None:
        """AbortMultipartUpload."""
        await fs._call_s3(
            "abort_multipart_upload", Bucket=bucket, Key=upload.key, UploadId=upload.identity
        )
