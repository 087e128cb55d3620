"""An API server of a few dictionaries, builders of pods, and a whole runner around them on this machine."""

from __future__ import annotations

import copy
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from slacktide.cluster.errors import AlreadyExists, Conflict, NotFound, Unreachable
from slacktide.cluster.kinds import PODS, Kind
from slacktide.objects import Pod
from standalone.runner.attempts import Attempt
from standalone.runner.containers import Containers, LogRules
from standalone.runner.groups import Groups
from standalone.runner.lifecycle import BackOff
from standalone.runner.metrics import Metrics
from standalone.runner.narrator import Narrator
from standalone.runner.outbox import Outbox
from standalone.runner.plan import Rules
from standalone.runner.probes import Prober
from standalone.runner.records import Store
from standalone.runner.shim.proc import boot_id
from standalone.runner.turn import Turns
from standalone.runner.wake import Wake
from tests.patience import PATIENCE

NODE = "n1"
_ORPHANS: list[int] = []
LOTS = {"cpu": 64_000, "memory": 1 << 40, "pods": 110}


def pod_dict(name: str = "web", command: list[str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod bound to the node with one container `main`; keywords override fields of spec."""
    container = {"name": "main", "image": "slacktide.io/host-process", "command": command or ["true"]}
    whole = {"nodeName": NODE, "restartPolicy": "Never", "terminationGracePeriodSeconds": 10, "containers": [container]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": str(uuid.uuid4()),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {**whole, **spec},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    }


def pod_view(body: Mapping[str, Any]) -> Pod:
    return msgspec.convert(dict(body), Pod)


def make_pod(name: str = "web", command: list[str] | None = None, **spec: Any) -> Pod:
    return pod_view(pod_dict(name, command, **spec))


def merge(target: Any, patch: Any, strategic: bool) -> Any:
    """RFC 7386; strategic: lists under `conditions` and `addresses` merge by type."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif strategic and key in {"conditions", "addresses"}:
            by_type = {item["type"]: item for item in result.get(key, [])}
            for item in value:
                by_type[item["type"]] = {**by_type.get(item["type"], {}), **item}
            result[key] = list(by_type.values())
        else:
            result[key] = merge(result.get(key), value, strategic)
    return result


class FakeApi:
    """The calls of the client on dictionaries. `away` makes every call fail as an unreachable server would."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.away = False
        self.synced = True

    def add(self, body: dict[str, Any]) -> dict[str, Any]:
        self.objects[body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]] = body
        return body

    def pod(self, name: str = "web") -> dict[str, Any] | None:
        return self.objects.get(("Pod", "default", name))

    def items(self) -> tuple[Pod, ...]:
        return tuple(pod_view(body) for (kind, _, _), body in list(self.objects.items()) if kind == "Pod")

    def ask_deletion(self, name: str = "web", grace: int = 10) -> None:
        body = copy.deepcopy(self.objects["Pod", "default", name])
        body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:10Z", "deletionGracePeriodSeconds": grace}
        self.add(body)

    def get(self, kind: Kind[Any], name: str, namespace: str | None = None) -> Any:
        return msgspec.convert(self.get_dict(kind, name, namespace), kind.view)

    def get_dict(self, kind: Kind[Any], name: str, namespace: str | None = None) -> dict[str, Any]:
        self._call("get", kind, name)
        try:
            return self.objects[kind.kind, namespace or "", name]
        except KeyError:
            raise NotFound(404, "NotFound", name) from None

    def create(self, kind: Kind[Any], body: Any, namespace: str | None = None) -> Any:
        self._call("create", kind, body["metadata"]["name"])
        key = (kind.kind, namespace or "", body["metadata"]["name"])
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", key[2])
        self.objects[key] = {"metadata": {}, **copy.deepcopy(body)}
        return msgspec.convert(self.objects[key], kind.view)

    def replace(self, kind: Kind[Any], body: dict[str, Any]) -> Any:
        raise NotImplementedError

    def patch(
        self,
        kind: Kind[Any],
        name: str,
        namespace: str | None,
        body: Any,
        subresource: str | None = None,
        patch_type: str = "merge",
    ) -> Any:
        before = copy.deepcopy(self.get_dict(kind, name, namespace))
        self.calls[-1] = ("patch", kind.kind, name)
        uid = body.get("metadata", {}).get("uid")
        if uid and uid != before["metadata"].get("uid"):
            raise Conflict(409, "Conflict", "the UID in the precondition differs")
        after = merge(before, body, patch_type == "strategic")
        kept = {"status"} if subresource == "status" else set(after) - {"status"}
        result = {**before, **{key: after[key] for key in kept if key in after}}
        self.objects[kind.kind, namespace or "", name] = result
        return msgspec.convert(result, kind.view)

    def delete(
        self,
        kind: Kind[Any],
        name: str,
        namespace: str | None = None,
        uid: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> None:
        body = self.get_dict(kind, name, namespace)
        self.calls[-1] = ("delete", kind.kind, name)
        if uid and uid != body["metadata"]["uid"]:
            raise Conflict(409, "Conflict", "the UID in the precondition differs")
        assert grace_period_seconds == 0
        del self.objects[kind.kind, namespace or "", name]

    def _call(self, verb: str, kind: Kind[Any], name: str) -> None:
        self.calls.append((verb, kind.kind, name))
        if self.away:
            raise Unreachable("the server is away")


class FakeRecorder:
    """Keeps events as (type, reason, message)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def record(self, involved: Pod, type_: str, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.events]


class Bench:
    """A runner's loop on this machine, turned by the test. `groups` None: without cgroups."""

    def __init__(self, directory: str, api: FakeApi, groups: Groups | None = None, **options: Any) -> None:
        self.directory = directory
        self.closed = False
        self.api = api
        self.boot_id = boot_id()
        self.store = Store(os.path.join(directory, "state"), self.boot_id)
        self.wake = Wake(self.store.wake_path)
        self.logs = os.path.join(directory, "logs")
        rules = LogRules(directory=self.logs, max_bytes=options.pop("log_max_bytes", 10 << 20), keep=3)
        self.containers = Containers(self.store, groups, rules, "127.0.0.1", self.boot_id, 8 << 30)
        self.recorder = FakeRecorder()
        self.outbox = Outbox(api, done=self.wake.poke)
        self.outbox.start()
        self.prober = Prober(self.wake.poke)
        self.metrics = Metrics(CollectorRegistry())
        back_off = options.pop("back_off", BackOff(first_seconds=0.2, max_seconds=1.0, reset_seconds=60.0))
        self.offered: Mapping[str, int] | None = options.pop("offered", LOTS)
        self.turns = Turns(
            pods=api,
            containers=self.containers,
            outbox=self.outbox,
            narrator=Narrator(self.recorder, self.metrics, back_off),
            prober=self.prober,
            allocatable=lambda fresh: self.offered,
            metrics=self.metrics,
            rules=Rules(back_off=back_off, **options),
            address="127.0.0.1",
        )

    def until(self, condition: Callable[[], Any], seconds: float = 12.0) -> Any:
        """Turn until the condition holds; fails with the state of all pods."""
        end = time.monotonic() + seconds * PATIENCE
        while True:
            due = self.turns.turn()
            found = condition()
            if found:
                return found
            now = time.monotonic()
            assert now < end, f"not reached: {self.api.objects}\n{self.containers.observe()}"
            self.wake.wait(min(0.05, max(0.0, (due or now + 1) - now)))

    def attempts(self) -> tuple[Attempt, ...]:
        return self.containers.observe()

    def status(self, name: str = "web") -> dict[str, Any]:
        body = self.api.pod(name)
        return body["status"] if body else {}

    def phase(self, name: str = "web") -> str:
        return str(self.status(name).get("phase", ""))

    def terminated(self, name: str = "web", container: int = 0) -> dict[str, Any]:
        return self.status(name)["containerStatuses"][container]["state"]["terminated"]

    def log(self, name: str = "web", container: str = "main", number: int = 0) -> str:
        uid = self.api.pod(name)["metadata"]["uid"]
        path = os.path.join(self.logs, f"default_{name}_{uid}", container, f"{number}.log")
        with open(path, encoding="utf-8") as file:
            return file.read()

    def crash(self) -> None:
        """Lose everything that a killed runner loses: nothing is told to the containers."""
        self.prober.stop()
        self.outbox.stop(0.0)
        self.wake.close()
        self.store.close()
        self.closed = True
        for process in self.containers._shims.values():
            # A killed runner leaves its shims to init; here the test process is their parent and reaps them later.
            if process.poll() is None:
                _ORPHANS.append(process.pid)
                process.returncode = 0
        self.containers._shims.clear()

    def close(self) -> None:
        """End all containers and leave nothing behind."""
        if self.closed:
            return
        self.api.away = False
        self.api.synced = True
        self.api.objects = {key: body for key, body in self.api.objects.items() if key[0] != "Pod"}
        try:
            self.until(lambda: not self.attempts() and not self.containers.listed(), 30.0)
            for process in self.containers._shims.values():
                process.wait(5.0 * PATIENCE)
        finally:
            self.crash()
        for pid in _ORPHANS:
            wait_for(lambda pid=pid: os.waitpid(pid, os.WNOHANG)[0])
        _ORPHANS.clear()


def running_pod(bench: Bench, name: str = "web", **spec: Any) -> int:
    """Add a pod, wait until its container runs, return the payload's pid."""
    bench.api.add(pod_dict(name, **spec))
    bench.until(lambda: bench.phase(name) == "Running")
    return payload_pid(bench, name)


def payload_pid(bench: Bench, name: str = "web") -> int:
    newest = max((one for one in bench.attempts() if one.pod == name), key=lambda one: one.number)
    started = bench.store.read(newest.id).started
    assert started is not None
    return started.pid


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Poll a condition with a deadline."""
    end = time.monotonic() + seconds * PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "condition not reached in time"
        time.sleep(0.005)
    return found


__all__ = ["PODS", "Bench", "FakeApi", "FakeRecorder", "alive", "make_pod", "pod_dict", "running_pod", "wait_for"]
