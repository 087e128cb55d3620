"""The chart's admission policies on a control plane of a test, and requests to it as anybody."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import urllib3
import yaml

from tests.cluster.harness import ROOT, ControlPlane
from tests.deploy import tools
from tests.patience import PATIENCE

CHART: Final = ROOT / "deploy" / "chart" / "slacktide"
SYSTEM: Final = "slacktide-system"
REGISTRATION: Final = "admissionregistration.k8s.io/v1"
_ACTIVE_SECONDS: Final = 30.0


def rendered(*flags: str, version: str = "1.36.0") -> list[dict[str, Any]]:
    """The policies and bindings of the chart, bindings last. Raises ToolsMissing."""
    command = [str(tools.path("helm3")), "template", "slacktide", str(CHART), "--namespace", SYSTEM, *flags]
    command += ["--kube-version", version, "--show-only", "templates/admission/*.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    return sorted(found, key=lambda one: (one["kind"].endswith("Binding"), one["metadata"]["name"]))


class Api:
    """The API server by plain requests: as the administrator, as anybody, with any token."""

    def __init__(self, plane: ControlPlane) -> None:
        with open(plane.kubeconfig(), encoding="utf-8") as file:
            config = json.load(file)
        self._url = plane.url
        user = config["users"][0]["user"]
        self._pools = {}
        for is_admin in (True, False):
            context = ssl.create_default_context(cafile=config["clusters"][0]["cluster"]["certificate-authority"])
            # The authority has no keyUsage.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if is_admin:
                context.load_cert_chain(user["client-certificate"], user["client-key"])
            self._pools[is_admin] = urllib3.PoolManager(ssl_context=context, retries=False)

    def call(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", token: str = "", **who: Any
    ) -> tuple[int, dict[str, Any]]:
        """(status, body). `who` is user, groups, extra of somebody to be."""
        headers = {"Content-Type": kind, **({"Authorization": f"Bearer {token}"} if token else _impersonation(**who))}
        pool = self._pools[not token]
        answer = pool.request(
            method, self._url + path, body=None if body is None else json.dumps(body), headers=headers
        )
        return answer.status, answer.json() if answer.data else {}

    def do(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", **who: Any
    ) -> dict[str, Any]:
        """The body of an answer that says yes."""
        status, said = self.call(method, path, body, kind, **who)
        assert status < 300, said
        return said

    def close(self) -> None:
        """Close idle connections."""
        for pool in self._pools.values():
            pool.clear()


def _impersonation(user: str = "", groups: tuple[str, ...] = (), extra: Mapping[str, str] | None = None) -> Any:
    if not user:
        return {}
    headers = urllib3.HTTPHeaderDict({"Impersonate-User": user})
    for group in groups:
        headers.add("Impersonate-Group", group)
    for key, value in (extra or {}).items():
        headers.add(f"Impersonate-Extra-{key.replace('/', '%2F')}", value)
    return headers


@contextlib.contextmanager
def installed(api: Api, manifests: list[dict[str, Any]]) -> Iterator[None]:
    """The policies in force; gone afterwards."""
    paths = []
    try:
        for manifest in manifests:
            kind = manifest["kind"].lower()
            path = f"/apis/{manifest.get('apiVersion', REGISTRATION)}/" + (
                f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
            )
            api.do("POST", path, manifest)
            paths.append(f"{path}/{manifest['metadata']['name']}")
        yield
    finally:
        for path in reversed(paths):
            api.do("DELETE", path)


def until(condition: Any, what: str, seconds: float = _ACTIVE_SECONDS) -> Any:
    """The first answer of `condition` that is true."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds:.0f} s"
        time.sleep(0.05)
    return found
