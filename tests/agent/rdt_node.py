"""A node with an emulated resctrl: pods as cgroup directories that list this process's own threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.act.resctrl import RdtWriter
from agent.host.cgroup import PodGroup
from agent.host.resctrl.groups import BE_GROUP, RdtTree, is_ours
from agent.host.resctrl.mount import RdtPlaces
from agent.resctrl import RdtReading, Schemata
from slacktide.kernel.hierarchy import Version
from tests.agent.trees import Tree
from tests.emulators.resctrl import Handle, Profile, mounted

BE = "kubepods/besteffort/pod22222222-2222-4222-8222-222222222222"
BE2 = "kubepods/besteffort/pod33333333-3333-4333-8333-333333333333"


class Workers:
    """Threads of this process that wait, to stand for those of pods."""

    def __init__(self) -> None:
        self._threads: list[tuple[threading.Thread, threading.Event]] = []

    def start(self) -> int:
        """A new thread; its id."""
        ready, stop = threading.Event(), threading.Event()

        def wait() -> None:
            ready.set()
            stop.wait()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        ready.wait()
        self._threads.append((thread, stop))
        assert thread.native_id is not None
        return thread.native_id

    def end(self, tid: int) -> None:
        """End one and wait for it."""
        thread, stop = next(pair for pair in self._threads if pair[0].native_id == tid)
        stop.set()
        thread.join()

    def close(self) -> None:
        """End all."""
        for thread, stop in self._threads:
            stop.set()
            thread.join()


class RdtNode:
    """`writer` looks when told (`look`), at a time that only moves by `wait`."""

    def __init__(self, handle: Handle, base: Path, version: Version) -> None:
        self.handle = handle
        self.tree = Tree(base / "cgroup", version)
        self.workers = Workers()
        self.now = 1000.0
        self.places = RdtPlaces(mounts=handle.mounts_file)
        self.writer = self.new_writer()
        self.pods: dict[str, list[int]] = {}

    def new_writer(self, **options: object) -> RdtWriter:
        """As after a restart of the agent."""
        return RdtWriter(self.places, self.tree.lister(), lambda: self.now, **options)  # type: ignore[arg-type]

    @property
    def rdt(self) -> RdtTree:
        """The groups there are now."""
        return RdtTree(self.handle.path)

    def pod(self, group: str, threads: int) -> list[int]:
        """A BE pod with so many new threads, in its container; their ids."""
        tids = [self.workers.start() for _ in range(threads)]
        self.pods[group] = tids
        self.tree.group(group)
        self.tell(group)
        return tids

    def tell(self, group: str) -> None:
        """Let the cgroup of the container list what `pods` says."""
        name = "tasks" if self.tree.version is Version.V1 else "cgroup.threads"
        text = "".join(f"{tid}\n" for tid in self.pods[group])
        self.tree.group(f"{group}/{'c' * 64}", **{name.replace(".", "__"): text})

    def groups(self) -> tuple[PodGroup, ...]:
        """What a listing of BE's pods gives."""
        return tuple(pod for pod in self.tree.lister().pods() if pod.group in self.pods)

    def look(self, schemata: Schemata | None = None, *, seconds: float = 2.0, pods: bool = True) -> RdtReading:
        """One turn of the loop and one look of the writer after it."""
        self.now += seconds
        if self.writer.view() is None:
            self.writer.look()
        self.writer.view()
        self.writer.want(schemata, self.groups() if pods else None)
        return self.writer.look()

    def held(self, resource: str = "L3") -> dict[int, int]:
        """What the class of BE holds."""
        return self.rdt.schemata(BE_GROUP)[resource]

    def state(self, *, foreign: bool = False) -> dict[str, str]:
        """Every group with its values and tasks, or those of others only."""
        found = {}
        root = Path(self.handle.path)
        for directory in sorted(path.parent for path in root.rglob("tasks")):
            name = str(directory.relative_to(root))
            if foreign and (name == "." or any(is_ours(part) for part in name.split("/"))):
                continue
            schemata = directory / "schemata"
            tasks = "" if name == "." else (directory / "tasks").read_text()
            found[name] = tasks + (schemata.read_text() if schemata.exists() else "")
        return found


@contextmanager
def rdt_node(profile: str | Profile, base: Path, version: Version = Version.V1) -> Iterator[RdtNode]:
    """A node for one test."""
    (base / "rdt").mkdir()
    with mounted(profile, base / "rdt") as handle:
        node = RdtNode(handle, base, version)
        try:
            yield node
        finally:
            node.workers.close()
