"""Gathers a support bundle: a tar file of texts from which secrets were taken out. What cannot be had is listed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import tarfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

import slacktide
from cli.bundle import cleaned, redact
from cli.exits import FAILED, CommandError
from slacktide.errors import SlacktideError

if TYPE_CHECKING:
    from cli.app import App
    from slacktide.cluster import Client
    from standalone.state import StateDir

LOG_BYTES: Final = 1 << 20
"""So much of the end of each log goes in."""
LOG_LINES: Final = 5_000

_DAEMONS: Final = ("api", "runner", "predictor", "scheduler", "agent")
_ROUTES: Final = ("/readyz", "/livez", "/metrics", "/status", "/debug/scheduling", "/debug/ladder", "/debug/evictions")
_LABEL: Final = "app.kubernetes.io/name=slacktide"
_PAGE: Final = 500


class Bundle:
    """Files by name, all of them text without secrets; and what was tried in vain."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def put(self, name: str, text: str) -> None:
        """Add a text."""
        self.files[name] = redact(text)

    def put_json(self, name: str, value: Any, *, ours: bool = False) -> None:
        """Add an object."""
        self.files[name] = json.dumps(cleaned(msgspec.to_builtins(value), ours=ours), indent=1, sort_keys=True) + "\n"

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Go on without what cannot be had, and say so."""
        try:
            yield
        except (SlacktideError, OSError, ValueError) as error:
            self.missing[what] = redact(f"{type(error).__name__}: {error}")

    def write(self, path: str) -> int:
        """Write the tar file, readable by its owner alone; its size in bytes. Raises CommandError."""
        if self.missing:
            self.put_json("missing.json", self.missing)
        top = re.sub(r"\.(tar\.gz|tgz)$", "", os.path.basename(path)) or "slacktide"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
                for name, text in sorted(self.files.items()):
                    data = text.encode("utf-8", "replace")
                    entry = tarfile.TarInfo(f"{top}/{name}")
                    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                    tar.addfile(entry, io.BytesIO(data))
            return os.stat(path).st_size
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror or error}", FAILED) from error


def about() -> dict[str, str]:
    """What made the bundle."""
    return {
        "slacktide": slacktide.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def of_machine(app: App, findings: Any) -> Bundle:
    """From the Slacktide of this machine, as far as it runs; `findings` are those of the doctor."""
    from standalone.state import find

    bundle = Bundle()
    bundle.put_json("about.json", about())
    bundle.put_json("doctor.json", findings)
    with bundle.trying("state directory"):
        state = find(app.root)
        if state is None:
            bundle.missing["state directory"] = f"{app.root} is none: nothing ever ran there"
            return bundle
        for name in ("supervisor", *_DAEMONS):
            _of_daemon(bundle, state, name)
        with bundle.trying("API server"):
            _objects(bundle, app.client())
    return bundle


def _of_daemon(bundle: Bundle, state: StateDir, name: str) -> None:
    from standalone.probe import get

    with bundle.trying(f"log of {name}"):
        bundle.put(f"{name}/log.txt", _tail(state.log_file(name)))
    if name == "supervisor":
        with bundle.trying("supervisor"):
            bundle.put("supervisor/report.json", _tail(state.supervisor_file))
        return
    if os.path.exists(state.config_file(name)):
        with bundle.trying(f"settings of {name}"):
            bundle.put(f"{name}/settings.yaml", _tail(state.config_file(name)))
    for route in _ROUTES:
        with bundle.trying(f"{route} of {name}"):
            code, body = get(state.observe_socket(name), route, timeout=5.0)
            if code != 404:
                bundle.put(f"{name}/{route.strip('/').replace('/', '-')}.txt", body.decode("utf-8", "replace"))


def _tail(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LOG_BYTES))
        return file.read().decode("utf-8", "replace")


def of_cluster(client: Client, namespace: str, findings: Any) -> Bundle:
    """From a cluster, as far as the caller may look; `findings` are those of the doctor."""
    bundle = Bundle()
    bundle.put_json("about.json", about())
    bundle.put_json("doctor.json", findings)
    with bundle.trying("API server"):
        _objects(bundle, client)
    ours: list[Any] = []
    with bundle.trying("our pods"):
        ours = _raw(client, f"/api/v1/namespaces/{namespace}/pods", labelSelector=_LABEL)
        bundle.put_json("components/pods.json", ours, ours=True)
    for group, plural in (("apps", "daemonsets"), ("apps", "deployments"), ("coordination.k8s.io", "leases")):
        with bundle.trying(plural):
            path = f"/apis/{group}/v1/namespaces/{namespace}/{plural}"
            bundle.put_json(f"components/{plural}.json", _raw(client, path), ours=True)
    for pod in ours:
        _logs(bundle, client, namespace, pod)
    return bundle


def _objects(bundle: Bundle, client: Client) -> None:
    """Nodes, pods and events: what numbers and decisions rest on."""
    for plural in ("nodes", "pods", "events"):
        with bundle.trying(plural):
            found = _raw(client, f"/api/v1/{plural}")
            if plural == "events":
                found = [one for one in found if _maker(one).startswith("slacktide")]
            bundle.put_json(f"{plural}.json", found)


def _maker(event: Any) -> str:
    return str(event.get("source", {}).get("component") or event.get("reportingComponent") or "")


def _raw(client: Client, path: str, **query: str) -> list[Any]:
    """All objects of a list, page by page."""
    found: list[Any] = []
    more = ""
    while True:
        asked = {**query, "limit": str(_PAGE), **({"continue": more} if more else {})}
        page = json.loads(client.request("GET", path, asked))
        found += page.get("items") or []
        more = page.get("metadata", {}).get("continue") or ""
        if not more:
            return found


def _logs(bundle: Bundle, client: Client, namespace: str, pod: Any) -> None:
    name = pod["metadata"]["name"]
    for container in pod["spec"]["containers"]:
        with bundle.trying(f"log of {name}/{container['name']}"):
            stream = client.logs(namespace, name, container["name"], tail_lines=LOG_LINES)
            bundle.put(f"components/{name}-{container['name']}.log", _read(stream))


def _read(stream: Any) -> str:
    """The end of a log, at most LOG_BYTES of it."""
    kept = b""
    try:
        for chunk in stream:
            kept = (kept + chunk)[-LOG_BYTES:]
    finally:
        stream.close()
    return kept.decode("utf-8", "replace")


def save(app: App, bundle: Bundle, path: str) -> None:
    """Write it and say what is in it and what is not."""
    size = bundle.write(path)
    if app.out.json:
        app.out.document({"file": path, "bytes": size, "files": sorted(bundle.files), "missing": bundle.missing})
        return
    app.out.text(f"{path}: {len(bundle.files)} files, {size} bytes. Secrets were taken out; look before you send it.")
    for what, why in sorted(bundle.missing.items()):
        app.out.say(f"not in it: {what}: {why}")
