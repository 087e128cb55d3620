"""Golden vectors: what the kernel answers to single commands, kept in golden.json and played on any resctrl.

`python -m tests.emulators.resctrl.verify /sys/fs/resctrl` plays them on a real one and tells every difference. It
refuses where there are groups, and leaves the mount as it found it. A vector names what a machine must have; values
that depend on the machine stand in braces and are filled in from its info directory.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.emulators.resctrl.model import Model
from tests.emulators.resctrl.schemata import UNLIMITED_MBPS

GOLDEN = Path(__file__).with_name("golden.json")
GROUP = "slacktide-golden"
NO_TASK = 0x7FFFFFF0
"""Above the highest pid that a kernel gives."""
MOST_GROUPS = 512


class Tree(Protocol):
    """A resctrl to play on. Every method raises OSError."""

    def read(self, path: str) -> str:
        """Whole text of a file."""

    def write(self, path: str, data: bytes) -> None:
        """Open for writing, write once."""

    def create(self, path: str) -> None:
        """Open a file that is not there for writing, and create it."""

    def mkdir(self, path: str) -> None:
        """Make a directory."""

    def rmdir(self, path: str) -> None:
        """Remove a directory."""

    def rename(self, old: str, new: str) -> None:
        """Move a directory."""

    def names(self, path: str) -> set[str]:
        """Entries of a directory."""


class DirectoryTree:
    """A mounted one."""

    def __init__(self, root: str) -> None:
        self._root = root

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def read(self, path: str) -> str:
        """Whole text of a file."""
        with open(self._at(path), encoding="latin-1") as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        """Open for writing, write once."""
        descriptor = os.open(self._at(path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def create(self, path: str) -> None:
        """Open a file that is not there for writing, and create it."""
        os.close(os.open(self._at(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def mkdir(self, path: str) -> None:
        """Make a directory."""
        os.mkdir(self._at(path))

    def rmdir(self, path: str) -> None:
        """Remove a directory."""
        os.rmdir(self._at(path))

    def rename(self, old: str, new: str) -> None:
        """Move a directory."""
        os.rename(self._at(old), self._at(new))

    def names(self, path: str) -> set[str]:
        """Entries of a directory."""
        return set(os.listdir(self._at(path)))


class ModelTree:
    """The model without a mount."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.read = model.read
        self.create = model.create
        self.mkdir = model.mkdir
        self.rmdir = model.rmdir
        self.rename = model.rename

    def write(self, path: str, data: bytes) -> None:
        """Open for writing, write once."""
        self.model.write(path, data)

    def names(self, path: str) -> set[str]:
        """Entries of a directory."""
        return set(self.model.list(path))


@dataclass
class Machine:
    """What a mount says of itself."""

    has: set[str]
    values: dict[str, object]


def machine(tree: Tree) -> Machine:
    """Read the info directory. Raises OSError where it cannot be read."""
    info = tree.names("info")
    has: set[str] = set()
    values: dict[str, object] = {"g": GROUP, "no_task": NO_TASK, "unlimited": UNLIMITED_MBPS}
    cache = next((name for name in ("L3", "L3DATA", "L2", "L2DATA") if name in info), None)
    has.add("cat" if cache else "no-cat")
    if cache is not None:
        _cache(tree, cache, has, values)
    if "MB" in info:
        _bandwidth(tree, has, values)
    else:
        has.add("rewritable")
    if "L3_MON" in info:
        has.add("mon")
        features = tree.read("info/L3_MON/mon_features").split()
        has |= {name for name in ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes") if name in features}
        has |= {"bmec"} if "mbm_total_bytes_config" in tree.names("info/L3_MON") else set()
    else:
        has.add("no-mon")
    if cache is None and "MB" not in info:
        has.add("no-alloc")
    has |= {"alloc"} - ({"alloc"} if "no-alloc" in has else set())
    has |= {"mbps-event"} if "mba_MBps_event" in tree.names("") else set()
    values["cpus"] = tree.read("cpus_list").strip()
    closids = [int(tree.read(f"info/{name}/num_closids")) for name in info if "num_closids" in _inside(tree, name)]
    least = min(closids, default=1)
    if "mon" in has and int(tree.read("info/L3_MON/num_rmids")) > 2 * least:
        has.add("plenty-rmids")
    return Machine(has, values)


def _inside(tree: Tree, name: str) -> set[str]:
    return _names(tree, f"info/{name}")


def _names(tree: Tree, path: str) -> set[str]:
    """Entries of a directory, none where it is no directory or not there."""
    try:
        return tree.names(path)
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ENOENT}:
            return set()
        raise


def _cache(tree: Tree, name: str, has: set[str], values: dict[str, object]) -> None:
    where = f"info/{name}"
    full = int(tree.read(f"{where}/cbm_mask"), 16)
    least = int(tree.read(f"{where}/min_cbm_bits"))
    shared = int(tree.read(f"{where}/shareable_bits"), 16)
    sparse = "sparse_masks" in tree.names(where) and tree.read(f"{where}/sparse_masks").strip() == "1"
    domains = [cell.split("=")[0].strip() for cell in _line(tree, name).split(";")]
    has |= {"sparse" if sparse else "contiguous", "shared-bits" if shared else "no-shared-bits"}
    has |= {name.removesuffix("DATA").lower(), "cdp" if name.endswith("DATA") else "no-cdp"}
    has |= {"empty-mask"} if least == 0 else {"no-empty-mask"}
    has |= {"two-bits"} if least == 2 else set()
    has |= {"two-domains"} if len(domains) > 1 else set()
    free = full & ~shared
    half = free.bit_length() // 2
    values.update(
        cache=name,
        code=name.replace("DATA", "CODE"),
        full=f"{full:x}",
        over=f"{full << 1 | 1:x}",
        hole=f"{0xF7 & full:x}",
        low=f"{(1 << half) - 1:x}",
        high=f"{free >> half << half:x}",
        d0=domains[0],
        d1=domains[-1],
        no_domain=max(map(int, domains)) + 1,
        least=least,
    )


def _bandwidth(tree: Tree, has: set[str], values: dict[str, object]) -> None:
    least = int(tree.read("info/MB/min_bandwidth"))
    step = int(tree.read("info/MB/bandwidth_gran"))
    cells = [cell.partition("=") for cell in _line(tree, "MB").split(";")]
    widest = int(cells[0][2])
    mbps = widest == UNLIMITED_MBPS
    linear = tree.read("info/MB/delay_linear").strip() == "1"
    absolute = not linear and not mbps and widest > 100
    has |= {"mb", "mbps" if mbps else "absolute" if absolute else "percent" if linear else "non-linear"}
    odd = -(-33 // step) * step - step + 1 if step > 1 else 33
    values.update(
        mb0=cells[0][0].strip(), widest=widest, least_mb=least, odd=odd, rounded=-(-odd // step) * step, step=step
    )
    has |= set() if "non-linear" in has else {"rewritable"}
    has |= {"mb-least"} if least > 0 else set()
    has |= {"mb-steps"} if step > 1 else set()
    values["below"] = least - 1


def _line(tree: Tree, name: str) -> str:
    """What schemata says of a resource. Raises ValueError where it says nothing."""
    for line in tree.read("schemata").splitlines():
        found, colon, rest = line.partition(":")
        if colon and found.strip() == name:
            return rest
    raise ValueError(f"no line {name} in schemata")


@dataclass
class Played:
    """Outcome of one vector."""

    wrong: list[str] = field(default_factory=list)
    wording: list[str] = field(default_factory=list)
    """Only last_cmd_status differs in a way that kernels do: capitals, a leading The."""


def vectors() -> list[dict[str, Any]]:
    """All vectors of golden.json."""
    found: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["vectors"]
    return found


def fits(vector: dict[str, Any], has: set[str]) -> bool:
    """Whether the machine has what the vector needs."""
    return set(vector.get("needs", [])) <= has


def play(tree: Tree, vector: dict[str, Any], facts: Machine) -> Played:
    """Play one vector in a group of its own, and clean up."""
    player = _Player(tree, facts)
    with _group(tree, vector.get("group", True), facts):
        for step in vector["steps"]:
            player.step(step)
    return player.played


@contextlib.contextmanager
def _group(tree: Tree, wanted: bool, facts: Machine) -> Iterator[None]:
    where = GROUP if "alloc" in facts.has else f"mon_groups/{GROUP}"
    if wanted:
        tree.mkdir(where)
    try:
        yield
    finally:
        _clean(tree)


def _clean(tree: Tree) -> None:
    """Remove every group that begins with our name."""
    for above in ("", "mon_groups"):
        for name in _names(tree, above):
            if name.startswith(GROUP):
                tree.rmdir(f"{above}/{name}".strip("/"))


class _Player:
    def __init__(self, tree: Tree, facts: Machine) -> None:
        self._tree = tree
        self._facts = facts
        self._status = ""
        self.played = Played()

    def _fill(self, text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: str(self._facts.values[found[1]]), text)

    def step(self, step: dict[str, Any]) -> None:
        """One command, its error and what it leaves behind."""
        kind, path = step["do"], self._fill(step.get("at", ""))
        said = f"{kind} {path} {self._fill(str(step.get('data', step.get('to', ''))))!r}"
        unchanged = step["do"] == "write" and path.endswith("schemata") and "errno" in step and not step.get("partial")
        before = self._tree.read(path) if unchanged else None
        got, text = self._attempt(kind, path, step)
        wanted = step.get("errno", "")
        if got != wanted:
            self.played.wrong.append(f"{said}: {got or 'success'} instead of {wanted or 'success'}")
        if before is not None and self._tree.read(path) != before:
            self.played.wrong.append(f"{said}: changed {path} although it failed")
        if text is not None and not re.fullmatch(self._fill(step["text"]), text, re.DOTALL):
            self.played.wrong.append(f"{said}: reads {text!r} instead of {self._fill(step['text'])!r}")
        self._judge_status(step, said)

    def _judge_status(self, step: dict[str, Any], said: str) -> None:
        status = self._tree.read("info/last_cmd_status")
        if "status" in step:
            wanted = self._status if step["status"] == "same" else self._fill(step["status"]) + "\n"
            if _plain(status) != _plain(wanted):
                self.played.wrong.append(f"{said}: last_cmd_status {status!r} instead of {wanted!r}")
            elif status != wanted:
                self.played.wording.append(f"{said}: last_cmd_status {status!r}, here {wanted!r}")
        self._status = status

    def _attempt(self, kind: str, path: str, step: dict[str, Any]) -> tuple[str, str | None]:
        """Name of the error, or what a read found."""
        actions: dict[str, Callable[[], object]] = {
            "read": lambda: self._tree.read(path),
            "write": lambda: self._tree.write(path, self._data(step)),
            "create": lambda: self._tree.create(path),
            "mkdir": lambda: self._tree.mkdir(path),
            "rmdir": lambda: self._tree.rmdir(path),
            "rename": lambda: self._tree.rename(path, self._fill(step["to"])),
            "rewrite": lambda: self._tree.write(path, self._tree.read(path).encode("latin-1")),
            "exhaust": lambda: self._exhaust(path),
        }
        try:
            result = actions[kind]()
        except OSError as error:
            return errno.errorcode[error.errno or 0], None
        return "", result if isinstance(result, str) and "text" in step else None

    def _data(self, step: dict[str, Any]) -> bytes:
        data = self._fill(step["data"]).encode("latin-1")
        return data[:-1].ljust(step["pad"] - 1) + b"\n" if "pad" in step else data

    def _exhaust(self, path: str) -> str:
        for number in range(MOST_GROUPS):
            try:
                self._tree.mkdir(f"{path}{number}")
            except OSError:
                self._facts.values["made"] = number
                raise
        return ""


def _plain(text: str) -> str:
    """Wording without what changed between kernels."""
    return re.sub(r"(?m)^the ", "", text.lower())


def busy(tree: Tree) -> list[str]:
    """Groups that are there."""
    mounted = tree.names("") - {"info", "mon_data", "mon_groups"}
    files = {"cpus", "cpus_list", "tasks", "schemata", "mode", "size", "mba_MBps_event", "mbm_L3_assignments"}
    found = mounted - files - {"mon_hw_id", "ctrl_hw_id"}
    if "mon_groups" in tree.names(""):
        found |= {f"mon_groups/{name}" for name in tree.names("mon_groups")}
    return sorted(found)


def main() -> int:
    """Play all vectors on a mount; 1 where something differs, 2 where it cannot be played on."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulators.resctrl.verify", description=__doc__)
    parser.add_argument("path", help="where resctrl is mounted")
    path = parser.parse_args().path
    tree = DirectoryTree(path)
    try:
        there, facts = busy(tree), machine(tree)
    except (OSError, ValueError) as error:
        print(f"{path} cannot be read as resctrl: {error}", file=sys.stderr)
        return 2
    if there:
        print(
            f"{path} has groups ({', '.join(there[:5])}); vectors are only played where there are none", file=sys.stderr
        )
        return 2
    played = wrong = 0
    for vector in vectors():
        if not fits(vector, facts.has):
            print(f"skipped  {vector['name']}: needs {', '.join(sorted(set(vector['needs']) - facts.has))}")
            continue
        outcome = play(tree, vector, facts)
        played += 1
        wrong += bool(outcome.wrong)
        print(f"{'DIFFERS ' if outcome.wrong else 'same    '} {vector['name']}")
        for line in outcome.wrong + [f"(wording) {line}" for line in outcome.wording]:
            print(f"           {line}")
    print(f"{played} vectors played, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
