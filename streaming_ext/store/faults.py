"""Translation of the errors of clients into errors of ours, with the words of the client."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from streaming_ext.base.errors import (
    ShardmillError,
    StorageError,
    TransientStorageError,
    one_line,
)
from streaming_ext.store.patience import Attempts, Retry, retry_after

Result = TypeVar("Result")

# Answers below 500 after which another attempt may succeed.
_TRANSIENT = {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestTimeout",
    "Throttling",
    "ThrottlingException",
    "XAmzContentSHA256Mismatch",
    "408",
    "409",
    "429",
}
# Errors without an answer after which another attempt may succeed, with their subclasses.
_NETWORK = {
    "ClientConnectionError",  # aiohttp's
    "ClientPayloadError",
    "ConnectionError",  # botocore's
    "EOFError",
    "FlexibleChecksumError",
    "HTTPClientError",
    "HTTPException",  # http.client's
    "IncompleteReadError",
    "OSError",
    "PoolError",  # urllib3's
    "ProtocolError",
    "SSLError",
    "ServiceRequestError",
    "ServiceResponseError",
    "TimeoutError",
    "TransportError",  # httpx's, google-auth's
}
_REFUSED = {"401", "403", "AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId"}
_CREDENTIALS = {
    "ClientAuthenticationError",
    "GoogleAuthError",
    "NoCredentialsError",
    "PartialCredentialsError",
}
_EXISTS = {"PreconditionFailed", "412", "BlobAlreadyExists", "ConditionNotMet"}
_MISSING = {"NoSuchKey", "404", "410", "BlobNotFound"}
_MOST = 400  # characters of a library's words
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Passwords in URLs, and queries, since some are signatures.
_SECRET = re.compile(r"(?<=//)[^/\s@]+@|\?\S+=\S*")
# Text that clients of web servers add: numbers, the URL again, and links to documentation.
_ADDED = re.compile(
    r" ?\(Request ID: [^)]*\)| for url:? (?:'[^']*'|\S+?(?=[.']*(?: |$)))| Please make sure [^.]*\."
    r"| For more information check: \S+| For more .*"
)


def ask(what: str, request: Callable[[], Result], attempts: Attempts | None = None) -> Result:
    """Make a request, and repeat it after a fault that may pass.

    Args:
        what: name of the request in messages, such as "read s3://bucket/x".
        request: a function that makes one attempt.
        attempts: the attempts so far and their policy; new ones of `Retry.usual` by default.

    Raises:
        FileNotFoundError: there is no such file.
        FileExistsError: a condition failed.
        StorageError: the server refuses, or keeps failing (`TransientStorageError`).
    """
    attempts = attempts or Attempts(Retry.usual())
    while True:
        try:
            try:
                return request()
            except Exception as error:
                if not _is_of_a_client(error):
                    raise
                raise translated(error, what) from error
        except TransientStorageError as fault:
            attempts.failed(fault)


def _is_of_a_client(error: Exception) -> bool:
    """Return whether the system or a library raised an error; others are ours, or our defects."""
    of_a_library = type(error).__module__ != "builtins" and not isinstance(error, ShardmillError)
    return of_a_library or isinstance(error, OSError | EOFError)


def words_of(error: BaseException) -> str:
    """Return a library's own words on one line, without passwords and queries of URLs."""
    if "Max retries exceeded" in str(error):  # show only the error that made urllib3 give up
        while (below := error.__cause__ or error.__context__) is not None:
            error = below
    words = _SECRET.sub("", _ADDED.sub("", one_line(error, limit=2000)))
    return words[:_MOST].rstrip(".") or type(error).__name__


def translated(error: BaseException, what: str) -> Exception:
    """Return the error to raise instead of a client's.

    Args:
        error: the client's error.
        what: name of the request, such as "read s3://bucket/x".

    Returns:
        `FileNotFoundError`, `FileExistsError` for a condition that failed, `StorageError` or
        `TransientStorageError`.
    """
    links = _chain(error)
    code, status, headers = _answer(links)
    kinds = {kind.__name__ for link in links for kind in type(link).__mro__}
    if code in _MISSING or isinstance(error, _NO_FILE):
        return FileNotFoundError(what)
    if code in _EXISTS or isinstance(error, FileExistsError):
        return FileExistsError(what)
    message = f"Cannot {what}: {words_of(error)}."
    if (
        code in _TRANSIENT
        or status == 429
        or (status >= 500 and status != 501)
        or (status < 400 and bool(kinds & _NETWORK) and not isinstance(error, PermissionError))
        or any(getattr(link, "retryable", False) for link in links)
    ):
        transient = TransientStorageError(message)
        transient.silent = any("Timeout" in kind for kind in kinds)
        transient.asks_to_wait = retry_after(headers)
        return transient
    if code in _REFUSED or status in {401, 403} or kinds & _CREDENTIALS:
        message += " Check the credentials in the environment (docs/reference/configuration.md)."
    return StorageError(message)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the answer; 0 if there was no answer."""
    return _answer(_chain(error))[1]


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found


def _answer(links: list[BaseException]) -> tuple[str, int, Mapping[str, str]]:
    """Return the error code, the HTTP status and the headers of the server's answer."""
    for link in links:
        response: Any = getattr(link, "response", None)
        if isinstance(response, dict):  # botocore
            meta = response.get("ResponseMetadata", {})
            status, headers = int(meta.get("HTTPStatusCode", 0)), meta.get("HTTPHeaders", {})
            code = str(response.get("Error", {}).get("Code") or status)
            is_head = getattr(link, "operation_name", "").startswith("Head")
            if code == str(status) and "xml" in headers.get("content-type", "") and not is_head:
                code = "IncompleteBody"  # newer botocore does not notice that the body is cut
            return code, status, headers
        if response is not None:
            code = getattr(link, "error_code", None) or response.status_code
            headers = {str(name): str(value) for name, value in response.headers.items()}
            return str(getattr(code, "value", code)), int(response.status_code), headers
        if isinstance(number := getattr(link, "status", None), int):  # aiohttp
            return str(number), number, getattr(link, "headers", None) or {}
    return "", 0, {}
