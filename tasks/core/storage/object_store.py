"""A dataset below a prefix of an object store: S3 and what speaks it, Google's, Azure's.

A file is one PUT, or a multipart upload that is completed at the end: the store shows the new
object or the old one, never a part of it.
"""

import builtins
import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from streaming_ext.errors import StorageError
from tasks.core.storage.client import ObjectClient, split_url
from tasks.core.storage.lease import Lease
from tasks.core.storage.scratch import user_scratch

_PUTS_AT_ONCE = 4
# Up to twice this a file goes in one request: nothing is left behind, whatever happens.
_PIECE_BYTES = 64 * 2**20
_log = logging.getLogger(__name__)


class ObjectStorage:
    """A dataset in a bucket; see `Storage` for the words."""

    def __init__(self, url: str, client: ObjectClient | None = None) -> None:
        scheme, bucket, self._prefix = split_url(url)
        self._client = client or ObjectClient(scheme=scheme, bucket=bucket)
        self._root = f"{bucket}/{self._prefix}" if self._prefix else bucket
        self._url = f"{scheme}://{self._root}"
        self._lease: Lease | None = None

    def __str__(self) -> str:
        return self._url

    @property
    def name(self) -> str:
        """The last part of the prefix, and a hash of the whole URL."""
        digest = hashlib.sha256(self._url.encode()).hexdigest()[:12]
        return f"{self._root.rsplit('/', 1)[-1]}-{digest}"

    @property
    def scratch_parent(self) -> Path:
        """A folder of the user's own in the temporary folder."""
        return user_scratch()

    @property
    def puts_at_once(self) -> int:
        """Enough to fill a link while each request waits for its answer."""
        return _PUTS_AT_ONCE

    @property
    def remote(self) -> bool:
        """Yes."""
        return True

    def _key(self, path: str) -> str:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise StorageError(f"{path!r} leads out of {self}")
        return f"{self._root}/{pure}"

    def create(self) -> None:
        """Make sure that the bucket is there and may be listed; a prefix needs no making."""
        if not self._client.is_s3:
            self.list()
            return
        what = f"list {self}"
        try:
            self._call(what, "list_objects_v2", Prefix=self._prefix, MaxKeys=1)
        except FileNotFoundError as error:
            raise StorageError(f"Cannot {what}: there is no such bucket.") from error

    def put(self, path: str, data: bytes) -> None:
        """Put a file in place in one step, over an older one."""
        self._put(path, data, {})

    def put_file(self, path: str, file: Path) -> None:
        """Put a local file in place in one step, over an older one."""
        try:
            data = file.read_bytes()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StorageError(f"Cannot write {self}/{path} from {file}: {reason}.") from error
        self.put(path, data)

    def put_new(self, path: str, data: bytes) -> bool:
        """Put a file where there is none; False where there is one, by another."""
        try:
            self._put(path, data, {"mode": "create"})
        except FileExistsError:
            # Ours, where the answer to the first attempt was lost.
            try:
                return self.read(path) == data
            except FileNotFoundError:
                return False
        return True

    def _put(self, path: str, data: bytes, options: dict[str, Any]) -> None:
        key, what = self._key(path), f"write {self}/{path}"
        if self._client.is_s3:
            options = {**options, "chunksize": _PIECE_BYTES}
        try:
            self._client.ask(what, lambda fs: fs._pipe_file(key, data, **options), size=len(data))
        except FileNotFoundError as error:
            raise StorageError(f"Cannot {what}: it is not there.") from error

    def read(self, path: str) -> bytes:
        """The content of a file."""
        return self._client.read(self._key(path), what=f"read {self}/{path}")

    def list(self, folder: str = "") -> dict[str, int]:
        """Every file below a folder."""
        base = self._key(folder) if folder else self._root
        skip = len(self._root) + 1
        try:
            found = self._client.ask(f"list {self}", lambda fs: fs._find(base, detail=True))
        except FileNotFoundError:
            return {}
        return dict(
            sorted(
                (name[skip:], int(info["size"]))
                for name, info in found.items()
                if info["type"] == "file" and name.startswith(f"{base}/") and name[-1] != "/"
            )
        )

    def remove(self, path: str) -> None:
        """Remove a file."""
        key = self._key(path)
        try:
            self._client.ask(f"remove {self}/{path}", lambda fs: fs._rm_file(key))
        except FileNotFoundError:
            return

    def leftovers(self) -> builtins.list[str]:
        """Multipart uploads that were begun and neither finished nor given up."""
        return sorted({f"open upload {key}" for key, _ in self._open_uploads()})

    def remove_incoming(self) -> None:
        """Give up the uploads that killed runs left open: they cost money and show nowhere."""
        try:
            uploads = self._open_uploads()
        except StorageError as error:
            if error.transient:
                raise
            _log.warning("Leftover uploads of killed runs cannot be looked for: %s", error)
            return
        for key, upload in uploads:
            with suppress(FileNotFoundError):
                self._call(
                    f"give up an upload of {key}",
                    "abort_multipart_upload",
                    Key=key,
                    UploadId=upload,
                )

    def _call(self, what: str, method: str, **arguments: str | int) -> dict[str, Any]:
        """A request in S3's own words."""

        async def request(filesystem: Any) -> dict[str, Any]:
            answer: dict[str, Any] = await filesystem._call_s3(
                method, Bucket=self._client.bucket, **arguments
            )
            return answer

        return self._client.ask(what, request)

    def _open_uploads(self) -> builtins.list[tuple[str, str]]:
        if not self._client.is_s3:  # elsewhere they go away by themselves
            return []
        prefix = f"{self._prefix}/" if self._prefix else ""
        found: builtins.list[tuple[str, str]] = []
        after: dict[str, str] = {}
        while True:
            page = self._call(
                f"list open uploads of {self}", "list_multipart_uploads", Prefix=prefix, **after
            )
            found += [(upload["Key"], upload["UploadId"]) for upload in page.get("Uploads", [])]
            if not page.get("IsTruncated"):
                return found
            after = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the dataset against another run, through an object that only one can make."""
        self._lease = Lease(self)
        try:
            with self._lease.held():
                yield
        finally:
            self._lease = None

    def require_held(self) -> None:
        """Make sure that no other run took the dataset over."""
        if self._lease is not None:
            self._lease.require()

    def close(self) -> None:
        """Nothing lies around here."""
