"""Google Cloud Storage through its JSON API, with credentials from google-auth."""

import base64
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from streaming_ext.store.buckets import ObjectInfo, Store, require_span
from streaming_ext.store.patience import connect_seconds

_ENDPOINT = "STORAGE_EMULATOR_HOST"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_CONNECTIONS = 32
_md5 = functools.partial(hashlib.md5, usedforsecurity=False)


class Google(Store):
    """One bucket."""

    OPTIONS: frozenset[str] = frozenset()

    def __init__(self, bucket: str, timeout: float, options: Mapping[str, Any]) -> None:
        import google.auth
        import requests
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError
        from requests.adapters import HTTPAdapter

        try:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
        except DefaultCredentialsError:
            if _KEY_FILE in os.environ:
                raise
            credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
        self._credentials: Any = credentials
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
        host = os.environ.get(_ENDPOINT) or "https://storage.googleapis.com"
        self._host = host if "://" in host else f"http://{host}"
        self._path = f"storage/v1/b/{quote(bucket, safe='')}/o"
        self._timeouts = (connect_seconds(timeout), timeout)

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        """Send `Objects: list`."""
        options = {"prefix": prefix}
        while True:
            page = _json(self._ask("GET", self._path, options))
            for entry in page.get("items", []):
                yield (
                    entry["name"],
                    ObjectInfo(
                        size=int(entry["size"]), version=f"generation:{entry['generation']}"
                    ),
                )
            if not (token := page.get("nextPageToken")):
                return
            options["pageToken"] = token

    def read(self, key: str, span: tuple[int, int] | None, version: str | None) -> bytes:
        """Send `Objects: get` with `ifGenerationMatch`."""
        options = {"alt": "media"}
        if version is not None:
            options["ifGenerationMatch"] = version.removeprefix("generation:")
        headers = {} if span is None else {"Range": f"bytes={span[0]}-{span[1] - 1}"}
        answer = self._ask("GET", f"download/{self._of(key)}", options, headers=headers)
        require_span(answer.headers.get("Content-Range"), span)
        data: bytes = answer.content
        return data

    def headers(self, key: str) -> Mapping[str, str]:
        """Send `Objects: get` without the content; a composed object has no MD5."""
        md5 = _json(self._ask("GET", self._of(key))).get("md5Hash")
        return {"content-md5": md5} if md5 else {}

    def put(self, key: str, data: bytes | Path, *, new: bool) -> None:
        """Send `Objects: insert` as one request, with `ifGenerationMatch=0` if `new`."""
        options = {"uploadType": "media", "name": key}
        if new:
            options["ifGenerationMatch"] = "0"
        path = f"upload/{self._path}"
        if isinstance(data, Path):
            with data.open("rb") as file:
                digest = hashlib.file_digest(file, _md5).digest()
                file.seek(0)
                answer = self._ask("POST", path, options, data=file)
        else:
            digest = _md5(data).digest()
            answer = self._ask("POST", path, options, data=data)
        if _json(answer)["md5Hash"] != base64.b64encode(digest).decode():
            raise ConnectionError("the content changed on the way")

    def remove(self, key: str) -> None:
        """Send `Objects: delete`."""
        self._ask("DELETE", self._of(key))

    def _of(self, key: str) -> str:
        return f"{self._path}/{quote(key, safe='')}"

    def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
    ) -> Any:
        """Make a request; raise `requests.HTTPError` with Google's words if it is refused."""
        from google.auth.transport.requests import Request
        from requests import HTTPError

        if not self._credentials.valid:
            self._credentials.refresh(Request())
        signed = dict(headers or {})
        self._credentials.apply(signed)
        answer = self._session.request(
            method,
            f"{self._host.rstrip('/')}/{path}",
            params=params,
            headers=signed,
            data=data,
            timeout=self._timeouts,
        )
        if not answer.ok:
            raise HTTPError(f"{answer.status_code} {answer.reason}: {answer.text}", response=answer)
        # http.client reads an answer that is cut in its headers as complete and empty.
        if not {"content-length", "transfer-encoding"} & {name.lower() for name in answer.headers}:
            raise ConnectionError("the answer was cut in its headers")
        return answer


def _json(answer: Any) -> dict[str, Any]:
    try:
        value: dict[str, Any] = answer.json()
    except ValueError as error:
        raise ConnectionError(f"the answer is no JSON: {answer.text[:100]!r}") from error
    return value
