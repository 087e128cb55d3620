"""An HTTP server on loopback that answers queries as a test says, and one that stands in front of a real Prometheus."""

from __future__ import annotations

import http.server
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

VECTOR = b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"1"]}]}}'


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    form: dict[str, str]
    headers: dict[str, str]

    @property
    def greeting(self) -> bool:
        return self.form.get("query") == "vector(1)"


@dataclass
class Said:
    """The answer to it. `pause` is called between headers and body."""

    status: int = 200
    body: bytes = VECTOR
    headers: dict[str, str] = field(default_factory=dict)
    pause: Callable[[], None] | None = None


class Fake:
    """Runs until `stop`; `asked` has every request."""

    def __init__(self, answer: Callable[[Asked], Said]) -> None:
        self.asked: list[Asked] = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                self._answer("GET", parts.path, parts.query)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                self._answer("POST", self.path, body)

            def _answer(self, method: str, path: str, text: str) -> None:
                form = {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}
                asked = Asked(method, path, form, dict(self.headers))
                fake.asked.append(asked)
                said = answer(asked)
                self.send_response_only(said.status)
                for name, value in {"Content-Length": str(len(said.body)), **said.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if said.pause is not None:
                    self.wfile.flush()
                    said.pause()
                self.wfile.write(said.body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            # A request whose client has gone must not hold up the end of a test.
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def forwarded(asked: Asked, url: str) -> Said:
    """What the server at `url` says to the same request."""
    text = urllib.parse.urlencode(asked.form).encode()
    request = urllib.request.Request(url + asked.path, data=text, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return Said(response.status, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Said(error.code, error.read())
