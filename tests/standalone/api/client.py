"""A small HTTP client for tests: JSON over the server's Unix socket, and a server that is stopped for sure."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlencode

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Answer:
    def __init__(self, code, headers, text):
        self.code = code
        self.headers = headers
        self.text = text

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def reason(self):
        return self.json.get("reason")

    @property
    def fields(self):
        return [cause.get("field", "") for cause in self.json.get("details", {}).get("causes", [])]

    def __repr__(self):
        return f"{self.code} {self.text[:500]!r}"


class Client:
    def __init__(self, path="", tcp=None, headers=None, timeout=10.0):
        self.path, self.tcp, self.headers, self.timeout = path, tcp, headers or {}, timeout

    def connection(self):
        if self.tcp:
            host, _, port = self.tcp.rpartition(":")
            return http.client.HTTPConnection(host, int(port), timeout=self.timeout)
        return _UnixConnection(self.path, self.timeout)

    def call(self, method, path, body=None, content_type="application/json", headers=None, **query):
        connection = self.connection()
        try:
            text = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            sent = {**self.headers, **(headers or {})}
            if text is not None:
                sent["Content-Type"] = content_type
            where = f"{path}?{urlencode(query, doseq=True)}" if query else path
            connection.request(method, where, text, sent)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path, **query):
        return self.call("GET", path, **query)

    def post(self, path, body, **query):
        return self.call("POST", path, body, **query)

    def put(self, path, body, **query):
        return self.call("PUT", path, body, **query)

    def patch(self, path, body, content_type=MERGE, **query):
        return self.call("PATCH", path, body, content_type, **query)

    def delete(self, path, body=None, **query):
        return self.call("DELETE", path, body, **query)

    def names(self, path, **query):
        return [item["metadata"]["name"] for item in self.get(path, **query).json["items"]]

    @contextlib.contextmanager
    def watch(self, path, headers=None, **query):
        """Yields a function that returns the next event, or None when the server has ended the watch."""
        connection = self.connection()
        try:
            connection.request("GET", f"{path}?{urlencode({'watch': 'true', **query})}", headers=headers or {})
            response = connection.getresponse()
            assert response.status == 200, response.read()

            def following():
                line = response.readline()
                return json.loads(line) if line else None

            yield following
        finally:
            connection.close()


def pod(name="web", **spec):
    """A small pod that the API accepts."""
    meta = {"name": name} if name else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": [{"name": "main", "image": "host"}], **spec},
    }


def eventually(check, seconds=10.0):
    """Wait until `check` returns something true, and return it."""
    ends = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < ends, f"not within {seconds} s: {check}"
        time.sleep(0.02)


class Process:
    """The server as a process of its own, in a short folder of its own."""

    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(prefix="sapi", dir="/tmp")
        self.socket = os.path.join(self.folder, "s")
        self.logs = os.path.join(self.folder, "logs")
        os.mkdir(self.logs)
        self.flags = flags
        self.process = None

    def arguments(self):
        folder = self.folder
        where = ["--socket", self.socket, "--database", f"{folder}/db", "--log-dir", self.logs]
        return [sys.executable, "-m", "standalone.api", *where, *self.flags]

    def start(self):
        with open(f"{self.folder}/out", "ab") as out:
            self.process = subprocess.Popen(self.arguments(), stdout=out, stderr=out)
        eventually(self._answers, 20.0)
        return Client(self.socket)

    def _answers(self):
        assert self.process.poll() is None, self.output()
        try:
            return Client(self.socket).get("/readyz").code == 200
        except OSError:
            return False

    def output(self):
        with open(f"{self.folder}/out") as file:
            return file.read()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder)
