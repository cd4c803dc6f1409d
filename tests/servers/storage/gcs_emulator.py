"""gcp-storage-emulator with more of Google's API; runs in the emulator's environment.

It adds, as Google documents them: `ifGenerationMatch` on writes and reads (412), bearer tokens that
a service account gets at /token for its signed assertion (401, 403), parallel requests, and uploads
of no bytes.

    python gcs_emulator.py PORT OWNER NOBODY
"""

import base64
import json
import re
import sys
import threading
import urllib.parse
from functools import partial
from http import server as http_server

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.storage import Storage

OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/(.+)")


_read_data = server._read_data


def read_data(handler: server.RequestHandler, query: dict) -> object:
    """Return the body of a request; for an upload, its content byte for byte."""
    if "uploadType=media" not in handler.path:
        return _read_data(handler, query)
    size = int(handler.headers["Content-Length"])
    if len(data := handler.rfile.read(size)) < size:
        raise ConnectionError("the upload was cut")
    return data


server._read_data = read_data


class PreconditionFailedError(Exception):
    """The object has another generation than the request names."""


class ConditionalStorage(Storage):
    """Files that are written only over the generation that the request names."""

    wanted = threading.local()

    def require(self, bucket: str, name: str) -> None:
        """Compare the generation of an object, 0 if it does not exist, with the requested one."""
        if (wanted := self.wanted.generation) is None:
            return
        try:
            found = str(self.get_file_obj(bucket, name)["generation"])
        except NotFound:
            found = "0"
        if found != wanted:
            raise PreconditionFailedError

    def create_file(self, bucket: str, name: str, content: bytes, info: dict) -> None:
        self.require(bucket, name)
        super().create_file(bucket, name, content, info)


class Handler(server.RequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    owner = ""
    nobody = ""

    def answer(self, method: str) -> None:
        """Check the caller and the condition of a request, and let the emulator answer it."""
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query))
        if split.path == "/token":
            self.token()
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if split.path != "/" and token != f"token-of-{self.owner}":
            if token == f"token-of-{self.nobody}":
                self.refuse(403, f"{token} does not have storage.objects access.")
            else:
                self.refuse(401, "Invalid Credentials" if token else "Anonymous caller.")
            return
        with self.lock:
            self.storage.wanted.generation = query.get("ifGenerationMatch")
            try:
                if method in {"GET", "DELETE"} and (match := OBJECT.fullmatch(split.path)):
                    self.storage.require(match[1], urllib.parse.unquote(match[2]))
                server.Router(self).handle(method)
            except PreconditionFailedError:
                self.send(412, {"error": {"code": 412, "message": "Precondition Failed"}})

    def token(self) -> None:
        """Answer as OAuth 2.0 for service accounts, by the assertion's name, not its signature."""
        form = dict(urllib.parse.parse_qsl(self.body().decode()))
        claims = form["assertion"].split(".")[1]
        name = json.loads(base64.urlsafe_b64decode(claims + "=="))["iss"]
        if name in {self.owner, self.nobody}:
            token = {"access_token": f"token-of-{name}", "expires_in": 3600}
            self.send(200, {**token, "token_type": "Bearer"})
        else:
            self.send(400, {"error": "invalid_grant", "error_description": "account not found"})

    def body(self) -> bytes:
        """Return the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def refuse(self, status: int, message: str) -> None:
        """Refuse a request, after reading it to its end."""
        self.body()
        self.send(status, {"error": {"code": status, "message": message}})

    def send(self, status: int, value: dict) -> None:
        """Answer with JSON."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


for verb in ("GET", "POST", "PUT", "DELETE", "PATCH"):
    setattr(Handler, f"do_{verb}", lambda self, verb=verb: self.answer(verb))


def main() -> None:
    port, Handler.owner, Handler.nobody = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    storage = ConditionalStorage(use_memory_fs=True)
    http_server.ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, storage)).serve_forever()


if __name__ == "__main__":
    main()
