"""Azure Blob Storage; a bucket is a container there."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from streaming_ext.store.dialect import ObjectInfo
from streaming_ext.store.digests import Digest


class Azure:
    """Through adlfs, which finds the account, and Azure's own client behind it."""

    package = "adlfs"
    extra = "azure"
    endpoint = "AZURE_STORAGE_CONNECTION_STRING"

    def open(self, scheme: str, timeout: float, options: Mapping[str, Any]) -> Any:
        """The file system; account and key, or a connection string, from the environment."""
        import fsspec

        # Each way to credentials that is not there is told at length, each time.
        logging.getLogger("azure").setLevel(logging.CRITICAL)
        settings = {"use_listings_cache": False, "skip_instance_cache": True}
        fs = fsspec.filesystem(scheme, **{**settings, **options})
        fs.of_each_request = {
            "retry_total": 0,
            "connection_timeout": min(timeout, 10.0),
            "read_timeout": timeout,
        }
        return fs

    async def look_at(self, fs: Any, bucket: str, prefix: str) -> None:
        """One entry of a listing."""
        async with fs.service_client.get_container_client(bucket) as container:
            names = container.list_blob_names(
                name_starts_with=prefix, results_per_page=1, **fs.of_each_request
            )
            async for _ in names:
                return

    async def find(self, fs: Any, bucket: str, prefix: str) -> dict[str, ObjectInfo]:
        """List Blobs, page by page."""
        async with fs.service_client.get_container_client(bucket) as container:
            return {
                blob.name: ObjectInfo(size=int(blob.size), version=f"etag:{_bare(blob.etag)}")
                async for blob in container.list_blobs(
                    name_starts_with=prefix, **fs.of_each_request
                )
            }

    async def read(
        self, fs: Any, bucket: str, key: str, span: tuple[int, int] | None, version: str | None
    ) -> bytes:
        """Get Blob with `If-Match`."""
        from azure.core import MatchConditions

        options = dict(fs.of_each_request)
        if span is not None:
            options |= {"offset": span[0], "length": span[1] - span[0]}
        if version is not None:
            options["etag"] = f'"{version.removeprefix("etag:")}"'
            options["match_condition"] = MatchConditions.IfNotModified
        async with fs.service_client.get_blob_client(bucket, key) as blob:
            return bytes(await (await blob.download_blob(**options)).readall())

    async def digest(self, fs: Any, bucket: str, key: str) -> Digest | None:
        """Get Blob Properties: the MD5, where the blob was put in one piece or its writer told."""
        async with fs.service_client.get_blob_client(bucket, key) as blob:
            properties = await blob.get_blob_properties(**fs.of_each_request)
        digest = properties.content_settings.content_md5
        return Digest(kind="md5", value=bytes(digest).hex()) if digest else None

    async def piece_sizes(
        self, fs: Any, bucket: str, key: str, numbers: Sequence[int]
    ) -> list[int]:
        """None: what it tells is of the content."""
        return []

    async def put(self, fs: Any, bucket: str, key: str, data: bytes, *, new: bool) -> None:
        """Put Blob, or blocks and a list of them; where `new` with `If-None-Match: *`."""
        async with fs.service_client.get_blob_client(bucket, key) as blob:
            await blob.upload_blob(data, overwrite=not new, **fs.of_each_request)

    async def copy(self, fs: Any, place: str, bucket: str, key: str, size: int) -> bool:
        """Not asked for: the bytes go through here."""
        return False

    async def remove(self, fs: Any, bucket: str, key: str) -> None:
        """Delete Blob."""
        async with fs.service_client.get_blob_client(bucket, key) as blob:
            await blob.delete_blob(**fs.of_each_request)


def _bare(etag: str) -> str:
    return etag.strip('"')
