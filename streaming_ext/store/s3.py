"""S3, and what speaks it."""

import asyncio
import base64
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from streaming_ext.base.errors import UsageError
from streaming_ext.store.dialect import ObjectInfo, require_no_page
from streaming_ext.store.digests import KINDS, Digest
from streaming_ext.store.faults import client_errors
from streaming_ext.store.s3_threads import (
    BOTO_NAMES,
    MORE,
    InThreads,
    in_a_thread,
    require_span,
    with_shared_data,
)

# Up to twice this an object goes in one request: nothing is left behind, whatever happens.
PIECE_BYTES = 64 * 2**20
_MOST_PIECES = 10_000  # of an upload, says S3
_PIECES_AT_ONCE = 4
_MOST_COPIED = 5 * 10**9  # bytes of an object, says S3
_LARGE = 2**20  # from here on a byte costs more than a request
NO_MD5 = "SHARDMILL_ETAG_IS_NO_MD5"  # "1" for a store whose ETags look like one
# Of an object that was put in pieces it has their number, and is the MD5 of their MD5s.
_MD5 = re.compile(r"(?P<value>[0-9a-f]{32})(-(?P<count>[1-9]\d{0,4}))?")
_CHECKSUM = re.compile(r"(?P<value>[A-Za-z0-9+/]+=*)(-(?P<count>[1-9]\d{0,4}))?")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_LISTING = "list_objects_v2"


async def _put_pieces(fs: Any, bucket: str, key: str, data: bytes, piece: int) -> None:
    """A multipart upload, given up where a piece fails or nobody waits for it any more."""
    begun = await _call(fs, "create_multipart_upload", Bucket=bucket, Key=key)
    upload = {"Bucket": bucket, "Key": key, "UploadId": begun["UploadId"]}
    room = asyncio.Semaphore(_PIECES_AT_ONCE)

    under_way: list[asyncio.Future[bytes]] = []

    async def put(number: int, start: int) -> dict[str, Any]:
        async with room:
            sent = asyncio.ensure_future(
                in_a_thread(
                    # of a file that is mapped, a slice is a copy: made when its turn comes
                    lambda: fs.in_threads.put_piece(
                        data[start : start + piece], PartNumber=number, **upload
                    )
                )
            )
            under_way.append(sent)
            etag = await asyncio.shield(sent)  # nothing ends a request but its own time-out
        return {"PartNumber": number, "ETag": etag.decode()}

    async def give_up() -> None:
        with suppress(*client_errors()):
            await _call(fs, "abort_multipart_upload", **upload)

    starts = enumerate(range(0, len(data), piece), start=1)
    pieces = [asyncio.ensure_future(put(number, start)) for number, start in starts]
    try:
        parts = await asyncio.gather(*pieces)
        await _call(fs, "complete_multipart_upload", MultipartUpload={"Parts": parts}, **upload)
    except BaseException as error:
        for each in pieces:
            each.cancel()
        try:
            if isinstance(error, Exception):  # else the time is over
                await asyncio.gather(*under_way, return_exceptions=True)
        finally:
            await asyncio.shield(give_up())
        raise
    finally:
        for sent in under_way:  # whose errors nobody asks for otherwise
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _call(fs: Any, method: str, **options: Any) -> Any:
    async with fs.connecting:  # requests that begin together would make a connection pool each
        if fs.session is None:
            from aiobotocore.session import AioSession  # type: ignore[import-untyped]

            fs.session = with_shared_data(AioSession(**fs.kwargs))
        await fs.set_session()
    answer = await fs._call_s3(method, **options)
    require_no_page(answer["ResponseMetadata"]["HTTPHeaders"] if method == _LISTING else {})
    return answer


def _require_endpoint(options: Mapping[str, Any]) -> None:
    """Look at the address of another server, for which botocore has no word of its own."""
    given = options.get("endpoint_url") or options.get(MORE, {}).get("endpoint_url")
    name = "endpoint_url of storage_options"
    if given is None:
        name = next((name for name in _ENDPOINTS if os.environ.get(name)), "")
        given = os.environ.get(name)
    if not given:
        return
    url = urlsplit(str(given))
    if url.scheme not in {"http", "https"} or not url.hostname:
        shown = f"{url.scheme}://{url.hostname}" if url.password else str(given)
        raise UsageError(
            f"{name} is {shown!r}; expected http://HOST:PORT or https://HOST, with its scheme."
        )


def _of_etag(head: Mapping[str, Any]) -> Digest | None:
    """What an ETag tells of the content: nothing where a key of KMS or of the customer is used."""
    if str(head.get("ServerSideEncryption", "")).startswith("aws:kms"):
        return None
    if head.get("SSECustomerAlgorithm") or os.environ.get(NO_MD5) == "1":
        return None
    match = _MD5.fullmatch(head.get("ETag", "").strip('"'))
    return match and Digest(kind="md5", value=match["value"], count=int(match["count"] or 0))


class S3:
    """Through s3fs; its own wrappers ask for the size first, where errors have no codes."""

    package = "s3fs"
    extra = "s3"
    endpoint = "AWS_ENDPOINT_URL"

    def open(self, scheme: str, timeout: float, options: Mapping[str, Any]) -> Any:
        """The file system; endpoint and credentials come from the environment."""
        import fsspec

        _require_endpoint(options)
        config = {
            "connect_timeout": min(timeout, 10.0),
            "read_timeout": timeout,
            "retries": {"mode": "standard", "total_max_attempts": 1},
            "max_pool_connections": 32,
        }
        options = {**options, "config_kwargs": {**config, **options.get("config_kwargs", {})}}
        settings = {"use_listings_cache": False, "skip_instance_cache": True}
        fs = fsspec.filesystem(scheme, **{**settings, **options})
        fs.retries = 1
        # Other options say what s3fs alone knows how to do.
        known = {*BOTO_NAMES, MORE, "config_kwargs", "profile", "anon"}
        fs.in_threads = InThreads(options) if options.keys() <= known else None
        fs.connecting = asyncio.Lock()
        return fs

    async def look_at(self, fs: Any, bucket: str, prefix: str) -> None:
        """One entry of a listing."""
        await _call(fs, "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)

    async def find(self, fs: Any, bucket: str, prefix: str) -> dict[str, ObjectInfo]:
        """ListObjectsV2, page by page."""
        found: dict[str, ObjectInfo] = {}
        after: dict[str, str] = {}
        while True:
            page = await _call(fs, "list_objects_v2", Bucket=bucket, Prefix=prefix, **after)
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
        if span is not None and span[1] - span[0] >= _LARGE and fs.in_threads is not None:
            return await in_a_thread(lambda: fs.in_threads.read(bucket, key, options, span))
        answer = await _call(fs, "get_object", Bucket=bucket, Key=key, **options)
        async with answer["Body"] as body:
            require_span(answer, span)
            return bytes(await body.read())

    async def digest(self, fs: Any, bucket: str, key: str) -> Digest | None:
        """HeadObject in checksum mode; what is of the content before what is of its pieces."""
        head = await _call(fs, "head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        found = [of_etag] if (of_etag := _of_etag(head)) else []
        for kind in KINDS:
            match = _CHECKSUM.fullmatch(head.get(f"Checksum{kind.upper()}", ""))
            if match is None or (head.get("ChecksumType") == "COMPOSITE" and not match["count"]):
                continue
            value = base64.b64decode(match["value"]).hex()
            found.append(Digest(kind=kind, value=value, count=int(match["count"] or 0)))
        return min(found, key=lambda digest: digest.count > 0, default=None)

    async def piece_sizes(
        self, fs: Any, bucket: str, key: str, numbers: Sequence[int]
    ) -> list[int]:
        """HeadObject of each."""
        heads = await asyncio.gather(
            *(_call(fs, "head_object", Bucket=bucket, Key=key, PartNumber=n) for n in numbers)
        )
        return [int(head["ContentLength"]) for head in heads]

    async def put(self, fs: Any, bucket: str, key: str, data: bytes, *, new: bool) -> None:
        """PutObject, or a multipart upload of pieces; with `If-None-Match: *`."""
        options = {"mode": "create"} if new else {}
        piece = max(PIECE_BYTES, -(-len(data) // _MOST_PIECES))
        if new or len(data) < _LARGE or fs.in_threads is None:
            await fs._pipe_file(f"{bucket}/{key}", data, chunksize=piece, **options)
        elif len(data) < 2 * piece:
            await in_a_thread(lambda: fs.in_threads.put(bucket, key, data))
        else:
            await _put_pieces(fs, bucket, key, data, piece)

    async def copy(self, fs: Any, place: str, bucket: str, key: str, size: int) -> bool:
        """CopyObject, which takes what one PutObject does."""
        if size > _MOST_COPIED:
            return False
        source, _, name = place.partition("/")
        answer = await _call(
            fs, "copy_object", Bucket=bucket, Key=key, CopySource={"Bucket": source, "Key": name}
        )
        if "CopyObjectResult" not in answer:
            raise ConnectionError("the answer was cut in its head")
        return True

    async def remove(self, fs: Any, bucket: str, key: str) -> None:
        """DeleteObject."""
        await _call(fs, "delete_object", Bucket=bucket, Key=key)
