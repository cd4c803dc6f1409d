"""What clients of object stores raise, as errors that name the place, the cause and a way out."""

import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from streaming_ext.base.errors import StorageError, TransientStorageError
from streaming_ext.store.patience import retry_after

_ADVICE = {
    "NoSuchBucket": "there is no bucket {bucket!r} at this endpoint. Create it, or check its name "
    "and the endpoint.",
    "InvalidBucketName": "{bucket!r} is no name for a bucket.",
    "SignatureDoesNotMatch": "the secret is wrong for this key id. Check AWS_SECRET_ACCESS_KEY or "
    "the profile.",
    "InvalidAccessKeyId": "the key id is not known there. Check AWS_ACCESS_KEY_ID and "
    "AWS_ENDPOINT_URL.",
    "AccessDenied": "these credentials have no right to do that in bucket {bucket!r}. Ask its "
    "owner for it, or use others.",
    "ExpiredToken": "the credentials have expired. Get new ones and run the same command again.",
    "InvalidToken": "the session token is not valid. Check AWS_SESSION_TOKEN.",
    "RequestTimeTooSkewed": "the clock of this machine is wrong by more than the server accepts. "
    "Set it right.",
    "401": "the store does not accept these credentials, or got none. Check what your provider's "
    "clients look for: a key, a key file, a login.",
    "AuthenticationFailed": "the key or token of this account is wrong. Check "
    "AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT_KEY.",
    "NotAStore": "a web page answers, no object store. Is AWS_ENDPOINT_URL (STORAGE_EMULATOR_HOST, "
    "AZURE_STORAGE_CONNECTION_STRING) that of a web server, or does the network ask for a login "
    "(captive portal)?",
    "QuotaExceeded": "the quota of bucket {bucket!r} is used up.",
}
_ALIASES = {
    "403": "AccessDenied",
    "Forbidden": "AccessDenied",
    "AllAccessDisabled": "AccessDenied",
    "AuthorizationFailure": "AccessDenied",
    "AuthorizationPermissionMismatch": "AccessDenied",
    "ContainerNotFound": "NoSuchBucket",
    "NoAuthenticationInformation": "401",
}
_PASSING = {
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "RequestLimitExceeded",
    "BadDigest",
    "OperationAborted",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "XAmzContentSHA256Mismatch",
    "409",
    "429",
    "500",
    "502",
    "503",
    "504",
}
_WRONG_SETTINGS = {
    "ParamValidationError",
    "InvalidRegionError",
    "ProfileNotFound",
    "UnknownServiceError",
    "InvalidConfigError",
    "ConfigParseError",
}
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "CredentialUnavailableError",
}
_NO_CREDENTIALS_ADVICE = (
    "no credentials were found for bucket {bucket!r}. Set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, a profile or a role, or what your provider asks for."
)
_PROXY_ADVICE = (
    " Requests go through the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names: is it "
    "running? A host that NO_PROXY names is asked without it."
)
_EXISTS = {"PreconditionFailed", "412", "BlobAlreadyExists", "ConditionNotMet"}


def proxy_advice(url: str) -> str:
    """What to say beside the fault of a request to a URL, where it goes through a proxy."""
    place, proxies = urllib.parse.urlsplit(url), urllib.request.getproxies()
    if not {place.scheme, "all"} & proxies.keys():
        return ""
    return "" if urllib.request.proxy_bypass(place.hostname or "") else _PROXY_ADVICE


def client_errors() -> tuple[type[Exception], ...]:
    """What the clients in use raise; those that are not loaded cannot raise anything."""
    errors: list[type[Exception]] = [OSError, TimeoutError, EOFError]
    for module, names in (
        ("botocore.exceptions", ("BotoCoreError", "ClientError", "HTTPClientError")),
        ("aiohttp", ("ClientError",)),
        ("google.auth.exceptions", ("GoogleAuthError",)),
        ("gcsfs.retry", ("HttpError", "ChecksumError")),
        ("azure.core.exceptions", ("AzureError",)),
    ):
        if module in sys.modules:
            errors += [getattr(sys.modules[module], name) for name in names]
    return tuple(errors)


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found


def _answer(error: BaseException) -> tuple[str, int]:
    """The code and the HTTP status that the server answered with, where it did."""
    for link in _chain(error):
        response: Any = getattr(link, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return str(response.get("Error", {}).get("Code", "")), int(status or 0)
        code: Any = getattr(link, "error_code", None) or getattr(link, "code", None)
        status = getattr(link, "status_code", None) or getattr(link, "status", None) or 0
        if code or status:
            code = getattr(code, "value", code)  # Azure's are members of an enumeration
            return str(code or status), int(status) if str(status).isdigit() else 0
    return "", 0


def _retry_after(error: BaseException) -> float:
    """Seconds that the server asks for before the next request; 0 where it names none."""
    for link in _chain(error):
        response: Any = getattr(link, "response", None)
        headers: Any = getattr(response, "headers", None)
        if isinstance(response, dict):
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
        if isinstance(headers, Mapping):
            return retry_after({str(name): str(headers[name]) for name in headers}) or 0.0
    return 0.0


def is_missing(error: BaseException) -> bool:
    """Whether the store answered that there is no such object, in a bucket that it has."""
    code, _ = _answer(error)
    return code in {"NoSuchKey", "404", "BlobNotFound"} or (
        isinstance(error, FileNotFoundError) and _ALIASES.get(code, code) != "NoSuchBucket"
    )


def is_beyond_end(error: BaseException) -> bool:
    """Whether the store answered that an object ends before the range that was asked for."""
    code, status = _answer(error)
    return code in {"InvalidRange", "416"} or status == 416


def explained(
    error: BaseException, *, what: str, bucket: str, seconds: float
) -> StorageError | FileExistsError:
    """The error to raise instead; `what` is what was being done, `seconds` how long it took."""
    code, status = _answer(error)
    code = _ALIASES.get(code, code)
    kinds = _kinds(error)
    if code in _EXISTS or isinstance(error, FileExistsError):
        return FileExistsError(what)
    passing, told = _told(error, code, status, kinds)
    if passing and is_timeout(error):
        told = f"no answer within {seconds:.0f} s. Is the endpoint right and reachable?"
    said = f"Cannot {what}: {told.format(bucket=bucket)}"
    if not passing:
        return StorageError(said)
    passes = TransientStorageError(said)
    passes.silent, passes.asks_to_wait = is_timeout(error), _retry_after(error)
    return passes


def _told(error: BaseException, code: str, status: int, kinds: set[str]) -> tuple[bool, str]:
    """Whether a fault may pass, and its cause in words; `{bucket}` stands for the bucket."""
    said = _one_line(error).replace("{", "{{").replace("}", "}}")
    passing = False
    page = "<html" in str(error).lower() or "<!doctype html" in str(error).lower()
    # Of a store every refusal has a code; a busy proxy before it may well answer a page.
    if status < 500 and status != 429 and (page or (status in {400, 404, 405} and not code)):
        code = "NotAStore"
    if code in _ADVICE:
        told = f"{_ADVICE[code]} ({code})"
    elif kinds & _NO_CREDENTIALS or ("ClientAuthenticationError" in kinds and not status):
        told = _NO_CREDENTIALS_ADVICE
    elif code in _PASSING or (status >= 500 and status != 501) or status == 429:
        passing, told = True, f"the server answers {code or status}: {said}."
    elif isinstance(error, PermissionError) or said.startswith("Forbidden: "):  # as gcsfs says it
        told = f"{_ADVICE['AccessDenied']} ({said})"
    elif status >= 400:
        told = f"the server refuses ({code or status}: {said})."
    else:  # no answer at all: mostly the network
        passing, told = not kinds & _WRONG_SETTINGS, f"{said}."
        if any("Proxy" in kind for kind in kinds):
            told = f"{told}{_PROXY_ADVICE}"
    return passing, told


def is_timeout(error: BaseException) -> bool:
    """Whether the server said nothing at all."""
    return isinstance(error, TimeoutError) or any("Timeout" in kind for kind in _kinds(error))


def _kinds(error: BaseException) -> set[str]:
    return {type(link).__name__ for link in _chain(error)}


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if text.startswith("<RawResponseMessage"):  # aiohttp's answer that was cut in its head
        text = "the connection was closed in the middle of the answer"
    return text[:300].rstrip(".")
