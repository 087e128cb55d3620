"""An API server in memory: the calls of `slacktide.cluster.Client` that the command makes, on dicts.

The test plays the runner: `bind`, `started`, `prints`, `ended`. `away` makes every call fail as a dead server does.
"""

import itertools
import threading

import msgspec

from slacktide.cluster import EVENTS, NODES, PODS, WatchEvent
from slacktide.cluster.client import Listing, Version
from slacktide.cluster.errors import AlreadyExists, NotFound, Unreachable
from slacktide.objects import Event, Node, Pod


class Twin:
    def __init__(self):
        self._changed = threading.Condition()
        self._versions = itertools.count(1)
        self._history = []
        self.pods = {}
        self.nodes = []
        self.events = []
        self.output = {}
        self.ended_output = set()
        self.away = False
        self.clock = None
        self.deletions = []
        self.created = threading.Event()
        self.lose_next_answer = False

    # What the command calls.

    def create(self, kind, body, namespace=None):
        self._reachable()
        key = (namespace, body["metadata"]["name"])
        with self._changed:
            if key in self.pods:
                raise AlreadyExists(409, "AlreadyExists", f"pods {key[1]!r} already exists")
            stored = {**body, "metadata": {**body["metadata"], "uid": f"uid-{key[1]}"}, "status": {"phase": "Pending"}}
            self.pods[key] = stored
            self._note("ADDED", stored)
        self.created.set()
        if self.lose_next_answer:
            self.lose_next_answer = False
            raise Unreachable("connection reset")
        return self._view(stored)

    def get(self, kind, name, namespace=None):
        self._reachable()
        if kind is NODES:
            found = [node for node in self.nodes if node["metadata"]["name"] == name]
            if not found:
                raise NotFound(404, "NotFound", f"nodes {name!r} not found")
            return msgspec.convert(found[0], Node)
        if (namespace, name) not in self.pods:
            raise NotFound(404, "NotFound", f"pods {name!r} not found")
        return self._view(self.pods[namespace, name])

    def list(self, kind, namespace=None, field_selector="", label_selector=""):
        self._reachable()
        with self._changed:
            if kind is NODES:
                return Listing(tuple(msgspec.convert(n, Node) for n in self.nodes), "1")
            if kind is EVENTS:
                return Listing(tuple(msgspec.convert(e, Event) for e in self.events), "1")
            if kind is not PODS:
                raise NotFound(404, "NotFound", f"the server has no {kind.plural}")
            field, _, value = field_selector.partition("=")
            fields = {
                "": lambda _pod: "",
                "metadata.name": lambda pod: pod["metadata"]["name"],
                "spec.nodeName": lambda pod: pod["spec"].get("nodeName", ""),
            }
            items = [
                pod
                for (space, _), pod in self.pods.items()
                if namespace in {None, space} and fields[field](pod) == value
            ]
            return Listing(tuple(map(self._view, items)), str(len(self._history)))

    def watch(self, kind, *, resource_version, field_selector="", **_):
        self._reachable()
        return _Watch(self, int(resource_version), field_selector.removeprefix("metadata.name="))

    def delete(self, kind, name, namespace=None, uid=None, grace_period_seconds=None):
        self._reachable()
        with self._changed:
            if (namespace, name) not in self.pods:
                raise NotFound(404, "NotFound", f"pods {name!r} not found")
            self.deletions.append((name, grace_period_seconds))
            pod = self.pods[namespace, name]
            if grace_period_seconds == 0 or not pod["spec"].get("nodeName"):
                del self.pods[namespace, name]
                self._note("DELETED", pod)
            else:
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self._note("MODIFIED", pod)

    def logs(self, namespace, name, container=None, follow=False, stream="All", tail_lines=None):
        self._reachable()
        return self._read(name, stream, follow, tail_lines)

    def server_seconds(self):
        return self.clock() if self.clock else None

    def close(self):
        """Nothing to close."""

    def version(self):
        self._reachable()
        return Version()

    # What the test does.

    def bind(self, name, namespace="default", node="n1"):
        self._update(namespace, name, lambda pod: pod["spec"].update(nodeName=node))

    def unschedulable(self, name, message, namespace="default"):
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._update(namespace, name, lambda pod: pod["status"].update(conditions=[condition]))

    def started(self, name, namespace="default", number=0):
        self.bind(name, namespace)
        status = {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        status |= {"containerID": f"slacktide://{number}", "restartCount": number}
        self._update(namespace, name, lambda pod: pod["status"].update(phase="Running", containerStatuses=[status]))

    def prints(self, name, data, stream="Stdout"):
        with self._changed:
            self.output.setdefault((name, stream), []).append(data)
            self._changed.notify_all()

    def ended(self, name, code, reason="", message="", namespace="default", **status):
        terminated = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error"), "message": message}
        container = {"name": "main", "state": {"terminated": terminated}, "containerID": "slacktide://0"}
        phase = {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [container], **status}
        self.ended_output.add(name)
        self._update(namespace, name, lambda pod: pod["status"].update(phase))

    def failed(self, name, reason, message, namespace="default"):
        self._update(namespace, name, lambda pod: pod["status"].update(phase="Failed", reason=reason, message=message))

    def put(self, body):
        """A pod as somebody else made it."""
        with self._changed:
            meta = body["metadata"]
            self.pods[meta["namespace"], meta["name"]] = body
            self._note("ADDED", body)

    def go_away(self):
        with self._changed:
            self.away = True
            self._changed.notify_all()

    def come_back(self):
        with self._changed:
            self.away = False

    def _update(self, namespace, name, change):
        with self._changed:
            pod = self.pods[namespace, name]
            change(pod)
            self._note("MODIFIED", pod)

    def _note(self, kind, pod):
        number = next(self._versions)
        pod["metadata"]["resourceVersion"] = str(number)
        self._history.append((kind, self._view(pod)))
        self._changed.notify_all()

    def _view(self, pod):
        return msgspec.convert(pod, Pod)

    def _reachable(self):
        if self.away:
            raise Unreachable("connection refused")

    def _read(self, name, stream, follow, tail_lines):
        position = 0
        while True:
            with self._changed:
                chunks = self.output.get((name, stream), [])[position:]
                if not chunks and not self.away:
                    if not follow or name in self.ended_output:
                        return
                    self._changed.wait(0.05)
                self._reachable()
            position += len(chunks)
            if tail_lines is not None:
                chunks = b"".join(chunks).splitlines(keepends=True)[-tail_lines:] if tail_lines else []
            yield from chunks


class _Watch:
    def __init__(self, twin, position, name):
        self._twin, self._position, self._name = twin, position, name
        self._closed = False

    def close(self):
        with self._twin._changed:
            self._closed = True
            self._twin._changed.notify_all()

    def __iter__(self):
        while True:
            with self._twin._changed:
                while self._position >= len(self._twin._history) and not self._closed and not self._twin.away:
                    self._twin._changed.wait(1.0)
                if self._closed:
                    return
                self._twin._reachable()
                kind, pod = self._twin._history[self._position]
                self._position += 1
            if self._name in {"", pod.metadata.name}:
                yield WatchEvent(kind, pod)
