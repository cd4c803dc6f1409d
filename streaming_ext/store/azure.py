"""Azure Blob Storage through Azure's own client; a bucket is a container."""

import base64
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from streaming_ext.store.buckets import ObjectInfo, Store, complete_headers
from streaming_ext.store.patience import connect_seconds

_CHUNK_BYTES = 2**23  # of a block, if a blob is put in blocks


class Azure(Store):
    """One container; the names of the options are those of adlfs."""

    OPTIONS = frozenset({"account_name", "account_key", "sas_token", "connection_string", "anon"})

    def __init__(self, bucket: str, timeout: float, options: Mapping[str, Any]) -> None:
        from azure.storage.blob import BlobServiceClient

        # The client logs at length about each kind of credentials that it does not find.
        logging.getLogger("azure").setLevel(logging.CRITICAL)
        settings: dict[str, Any] = {
            "retry_total": 0,
            "connection_timeout": connect_seconds(timeout),
            "read_timeout": timeout,
            "max_block_size": _CHUNK_BYTES,
            "max_single_get_size": 2**30,
        }

        def setting(name: str) -> Any:
            return options.get(name) or os.environ.get(f"AZURE_STORAGE_{name.upper()}")

        if text := setting("connection_string"):
            service = BlobServiceClient.from_connection_string(text, **settings)
        elif account := setting("account_name"):
            credential = setting("account_key") or setting("sas_token")
            if credential is None and not options.get("anon"):
                from azure.identity import DefaultAzureCredential

                credential = DefaultAzureCredential()
            url = f"https://{account}.blob.core.windows.net"
            service = BlobServiceClient(url, credential=credential, **settings)
        else:
            raise ValueError(
                "neither AZURE_STORAGE_CONNECTION_STRING nor AZURE_STORAGE_ACCOUNT_NAME is set"
            )
        self._container = service.get_container_client(bucket)

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        """Send `List Blobs`."""
        for blob in self._container.list_blobs(name_starts_with=prefix):
            etag = blob.etag.strip('"')
            yield blob.name, ObjectInfo(size=int(blob.size), version=f"etag:{etag}")

    def read(self, key: str, span: tuple[int, int] | None, version: str | None) -> bytes:
        """Send `Get Blob` with `If-Match`."""
        from azure.core import MatchConditions

        options: dict[str, Any] = {}
        if span is not None:
            options |= {"offset": span[0], "length": span[1] - span[0]}
        if version is not None:
            options["etag"] = f'"{version.removeprefix("etag:")}"'
            options["match_condition"] = MatchConditions.IfNotModified
        with complete_headers():
            return bytes(self._container.download_blob(key, **options).readall())

    def headers(self, key: str) -> Mapping[str, str]:
        """Send `Get Blob Properties`.

        A blob has an MD5 if it was put with one request, or if its writer set it.
        """
        md5 = (
            self._container.get_blob_client(key).get_blob_properties().content_settings.content_md5
        )
        return {"content-md5": base64.b64encode(md5).decode()} if md5 else {}

    def put(self, key: str, data: bytes | Path, *, new: bool) -> None:
        """Send `Put Blob`, or blocks and their list, with `If-None-Match: *` if `new`."""
        with ExitStack() as files:
            body = files.enter_context(data.open("rb")) if isinstance(data, Path) else data
            blob = self._container.get_blob_client(key)
            with complete_headers():
                if not blob.upload_blob(body, overwrite=not new)["etag"]:
                    raise KeyError("etag")

    def remove(self, key: str) -> None:
        """Send `Delete Blob`."""
        self._container.delete_blob(key)
