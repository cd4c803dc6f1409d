"""Google Cloud Storage."""

import base64
import logging
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

from streaming_ext.store.dialect import (
    NoBucketError,
    NotAStoreError,
    ObjectInfo,
)
from streaming_ext.store.digests import Digest


class Google:
    """Through gcsfs, in the words of Google's JSON API."""

    package = "gcsfs"
    extra = "gcs"
    endpoint = "STORAGE_EMULATOR_HOST"

    def open(self, scheme: str, timeout: float, options: Mapping[str, Any]) -> Any:
        """The file system; STORAGE_EMULATOR_HOST and default credentials from the environment."""
        import fsspec

        settings = {
            "use_listings_cache": False,
            "skip_instance_cache": True,
            "requests_timeout": _requests_timeout(timeout),
        }
        fs = fsspec.filesystem(scheme, **{**settings, **options})
        # Its requests are tried six times each, and every failure is logged with a traceback.
        fs._request = MethodType(type(fs)._request.__wrapped__, fs)
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        return fs

    async def look_at(self, fs: Any, bucket: str, prefix: str) -> None:
        """One entry of a listing."""
        await self._page(fs, bucket, prefix=prefix, maxResults=1)

    async def find(self, fs: Any, bucket: str, prefix: str) -> dict[str, ObjectInfo]:
        """Objects: list, page by page."""
        found: dict[str, ObjectInfo] = {}
        after: dict[str, str] = {}
        while True:
            page = await self._page(fs, bucket, prefix=prefix, **after)
            for entry in page.get("items", []):
                found[entry["name"]] = ObjectInfo(
                    size=int(entry["size"]), version=f"generation:{entry['generation']}"
                )
            if not (token := page.get("nextPageToken")):
                return found
            after = {"pageToken": token}

    async def read(
        self, fs: Any, bucket: str, key: str, span: tuple[int, int] | None, version: str | None
    ) -> bytes:
        """Objects: get, with `ifGenerationMatch`."""
        headers = {} if span is None else {"Range": f"bytes={span[0]}-{span[1] - 1}"}
        options = {}
        if version is not None:
            options["ifGenerationMatch"] = version.removeprefix("generation:")
        came, data = await fs._call("GET", fs.url(f"{bucket}/{key}"), headers=headers, **options)
        begins = came.get("Content-Range", "")
        if span is not None and begins and not begins.startswith(f"bytes {span[0]}-"):
            raise ConnectionError(f"asked for the bytes from {span[0]} on, the answer has {begins}")
        return bytes(data)

    async def digest(self, fs: Any, bucket: str, key: str) -> Digest | None:
        """Objects: get, without the content; composed objects have no MD5, but a CRC-32C."""
        entry = await fs._call("GET", "b/{}/o/{}", bucket, key, json_out=True)
        for kind, name in (("md5", "md5Hash"), ("crc32c", "crc32c")):
            if text := entry.get(name, ""):
                return Digest(kind=kind, value=base64.b64decode(text).hex())
        return None

    async def piece_sizes(
        self, fs: Any, bucket: str, key: str, numbers: Sequence[int]
    ) -> list[int]:
        """None: what it tells is of the content."""
        return []

    async def put(self, fs: Any, bucket: str, key: str, data: bytes, *, new: bool) -> None:
        """Objects: insert, where `new` with `ifGenerationMatch=0`; its MD5 is compared."""
        options = {"mode": "create"} if new else {}
        try:
            # One request whatever the size: nothing is left behind, and no piece sent twice.
            await fs._pipe_file(
                f"{bucket}/{key}", data, consistency="md5", chunksize=len(data) + 1, **options
            )
        except FileNotFoundError as error:
            raise NoBucketError(f"no bucket {bucket}") from error

    async def copy(self, fs: Any, place: str, bucket: str, key: str, size: int) -> bool:
        """Not asked for: the bytes go through here."""
        return False

    async def remove(self, fs: Any, bucket: str, key: str) -> None:
        """Objects: delete."""
        await fs._call("DELETE", "b/{}/o/{}", bucket, key)

    @staticmethod
    async def _page(fs: Any, bucket: str, **options: str | int) -> dict[str, Any]:
        try:
            page: dict[str, Any] = await fs._call("GET", "b/{}/o", bucket, json_out=True, **options)
        except FileNotFoundError as error:
            raise NoBucketError(f"no bucket {bucket}") from error
        except ValueError as error:
            raise NotAStoreError("no JSON") from error
        return page


def _requests_timeout(seconds: float) -> Any:
    import aiohttp

    return aiohttp.ClientTimeout(total=None, sock_connect=min(seconds, 10.0), sock_read=seconds)
