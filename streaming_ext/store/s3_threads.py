"""S3 through botocore's own client, in threads."""

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any


def with_shared_data(session: Any) -> Any:
    """The same session of botocore or aiobotocore, which reads what no other one has read."""
    path = session.get_config_variable("data_path")
    session.register_component("data_loader", _loader(path))
    return session


@functools.cache
def _loader(path: str | None) -> Any:
    from botocore.loaders import create_loader  # type: ignore[import-untyped]

    return create_loader(path)


BOTO_NAMES = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "endpoint_url",
    "use_ssl": "use_ssl",
}
MORE = "client_kwargs"


class InThreads:
    """botocore's own client: half the CPU time of the event loop's for many bytes."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._made: Any = None

    def read(self, bucket: str, key: str, options: dict[str, str], span: tuple[int, int]) -> bytes:
        """GetObject."""
        try:
            answer = self._client().get_object(Bucket=bucket, Key=key, **options)
        except ValueError as error:  # half a date, say
            raise ConnectionError(f"the answer was cut in its head: {error}") from error
        if "ContentLength" not in answer:  # http.client takes such a one for whole and empty
            raise ConnectionError("the answer was cut in its head")
        # As a context manager it would give urllib3's stream, whose errors are not botocore's.
        with closing(answer["Body"]) as body:
            require_span(answer, span)
            data: bytes = body.read()
        return data

    def put(self, bucket: str, key: str, data: bytes) -> bytes:
        """PutObject; nothing comes back."""
        answer = self._client().put_object(Bucket=bucket, Key=key, Body=data)
        _etag_of(answer)
        return b""

    def put_piece(self, data: bytes, **upload: Any) -> bytes:
        """UploadPart; returns its ETag."""
        answer = self._client().upload_part(Body=data, **upload)
        return _etag_of(answer).encode()

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make()
        return self._made

    def _make(self) -> Any:
        from botocore import UNSIGNED  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]
        from botocore.session import Session  # type: ignore[import-untyped]

        options = dict(self._options)
        config = Config(**options.pop("config_kwargs"))
        if options.pop("anon", False):
            config = config.merge(Config(signature_version=UNSIGNED))
        session = with_shared_data(Session(profile=options.pop("profile", None)))
        settings = {BOTO_NAMES[name]: value for name, value in options.items() if name != MORE}
        return session.create_client("s3", config=config, **settings, **options.get(MORE, {}))


async def in_a_thread(work: Callable[[], bytes]) -> bytes:
    """Run blocking work in a thread that nobody waits for at exit, as an executor's would be."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def tell(result: bytes | None, error: BaseException | None) -> None:
        if not done.done():  # given up meanwhile
            done.set_exception(error) if result is None and error else done.set_result(
                result or b""
            )

    def run() -> None:
        try:
            outcome: tuple[bytes | None, BaseException | None] = work(), None
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            outcome = None, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, daemon=True, name="shardmill-s3").start()
    return await done


def require_span(answer: Mapping[str, Any], span: tuple[int, int] | None) -> None:
    """Make sure that the range that came is the one that was asked for.

    Raises:
        ConnectionError: it is another one.
    """
    came = answer.get("ContentRange")
    if span is not None and came is not None and not came.startswith(f"bytes {span[0]}-"):
        raise ConnectionError(f"asked for the bytes from {span[0]} on, the answer holds {came}")


def _etag_of(answer: Mapping[str, Any]) -> str:
    """What a store says of what was put.

    Raises:
        ConnectionError: nothing: http.client takes an answer that is cut in its head for whole.
    """
    if not answer.get("ETag"):
        raise ConnectionError("the answer was cut in its head")
    return str(answer["ETag"])
