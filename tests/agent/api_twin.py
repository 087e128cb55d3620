"""The least of an API server that an informer needs: one list of pods, and a watch in which nothing happens."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any


class ApiTwin:
    """Serves `pods` (JSON objects) at a Unix socket."""

    def __init__(self, path: str, pods: list[dict[str, Any]]) -> None:
        self.pods = pods
        self.stopping = threading.Event()
        twin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if "watch=" in self.path:
                    self._watch()
                    return
                body = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": twin.pods}
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _watch(self):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
                twin.stopping.wait(30)
                self.close_connection = True

            def log_message(self, *_args):
                return

            def address_string(self):
                return "unix"

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

            def handle_error(self, *_args):
                return

        self._server = Server(path, Handler)
        self._path = path
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> ApiTwin:
        self._thread.start()
        return self

    def __exit__(self, *_args: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()
        os.unlink(self._path)


def pod_json(uid: str, tier: str, node: str = "n1") -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"{tier}-{uid[:4]}",
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "1",
            "labels": {"slacktide.io/tier": tier},
        },
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "qosClass": "BestEffort" if tier == "be" else "Burstable"},
    }
