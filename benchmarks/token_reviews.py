"""TLS for the benchmark of the predictor: a certificate, tokens, and an API server that knows whose they are.

Agents show tokens as the ones of a cluster do, each bound to its node; the predictor has them reviewed. The API server
here answers reviews and nothing else, so that no other work is measured.
"""

from __future__ import annotations

import contextlib
import os
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

import msgspec

from slacktide.transport.reviews import NODE_CLAIM

AUDIENCE: Final = "slacktide-predictor"
ACCOUNT: Final = "system:serviceaccount:slacktide-system:slacktide-agent"
SERVER_NAME: Final = "slacktide-predictor"

_PREFIX: Final = "agent-of-"
_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"


def token_of(node: str) -> str:
    """The token of the agent of a node."""
    return f"{_PREFIX}{node}"


def review(token: str) -> dict[str, Any]:
    """The status of a TokenReview; a token of nobody's is not authenticated."""
    node = token.removeprefix(_PREFIX)
    if node == token or not node:
        return {"authenticated": False, "error": "nobody's token"}
    user = {"username": ACCOUNT, "uid": node, "extra": {NODE_CLAIM: [node]}}
    return {"authenticated": True, "audiences": [AUDIENCE], "user": user}


def certificate(directory: str) -> tuple[str, str]:
    """A certificate for SERVER_NAME that signs itself, and its key: files in `directory`. Needs openssl."""
    made, key = f"{directory}/tls.crt", f"{directory}/tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", f"/CN={SERVER_NAME}", "-addext", f"subjectAltName=DNS:{SERVER_NAME}", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", made], check=True, capture_output=True)
    return made, key


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.partition("?")[0] != _PATH:
            self._absent()
            return
        status = review(msgspec.json.decode(asked)["spec"]["token"])
        kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}}
        self._answer(201, {**kind, "status": status})

    def do_GET(self) -> None:
        self._absent()

    def _absent(self) -> None:
        self._answer(404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        encoded = msgspec.json.encode(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def address_string(self) -> str:
        """A Unix socket has none."""
        return "predictor"

    def log_message(self, *_: Any) -> None:
        """Ten thousand reviews are no news."""


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 256


@contextlib.contextmanager
def reviewer(path: str) -> Iterator[None]:
    """The API server at a Unix socket; it and its socket are gone afterwards."""
    server = _Server(path, _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
