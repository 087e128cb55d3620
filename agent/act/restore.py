"""Gives everything back on demand: what agents that are no longer running left in the kernel.

Needs state directory and cgroup root of those agents, no API, no predictor. Refuses while an agent runs there. A
journal that cannot be read tells nothing: then only an agent, which asks the API what pods are entitled to, can undo.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from agent.act.executor import Executor
from agent.act.journal import Entry, Journal
from agent.act.owner import Ownership
from agent.act.resctrl import remove_all
from agent.capabilities import Capabilities, Knob, Value
from agent.host.cgroup import CgroupLister
from agent.host.resctrl.mount import RdtPlaces
from slacktide.errors import KernelError, SettingsError, StateError
from slacktide.kernel.files import read_text, write_value
from slacktide.kernel.hierarchy import Hierarchy, discover

AFFINITY: Final = "cpu affinity"
Result = Literal["given back", "would be given back", "nothing to do", "failed"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of one cgroup. `held` is what the kernel had, `original` what it has now; null is no limit.

    Units are the kernel's: quota microseconds a period, sizes bytes.
    """

    cgroup: str
    what: str
    held: Value | None = None
    original: Value | None = None
    result: Result
    reason: str = ""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was done. `problems` are about no single cgroup."""

    dry_run: bool
    rows: list[Row]
    problems: list[str]

    @property
    def complete(self) -> bool:
        """Whether nothing is left."""
        return not self.problems and all(row.result != "failed" for row in self.rows)


def restore(
    state_dir: str,
    cgroup_root: str,
    proc_root: str = "/proc",
    *,
    dry_run: bool = False,
    hierarchy: Hierarchy | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Restored:
    """Undo what the journal in `state_dir` says, below `cgroup_root`, and remove the agent's groups of resctrl.

    With `dry_run` nothing is written. Raises StateError when there is no such directory or an agent runs there, and
    SettingsError for a root that leaves its mount.
    """
    hierarchy = hierarchy or discover(proc_root)
    try:
        lister = CgroupLister(hierarchy, cgroup_root)
    except ValueError as error:
        raise SettingsError([f"cgroup_root: {error}"]) from error
    if not os.path.isdir(state_dir):
        raise StateError(f"state_dir {state_dir} does not exist: no agent has kept anything there")
    owner = Ownership(state_dir, hierarchy, lister.root, proc_root, make_root=False, pause=pause)
    try:
        boot_id = read_text(os.path.join(proc_root, "sys/kernel/random/boot_id")).strip()
        return _restored(lister, Journal(state_dir, boot_id, read_only=dry_run), proc_root, dry_run)
    finally:
        owner.close()


def _restored(lister: CgroupLister, journal: Journal, proc_root: str, dry_run: bool) -> Restored:
    executor = Executor(
        lister,
        journal,
        Capabilities(mode=lister.hierarchy.mode, cpu_version=None, writable=frozenset(Knob)),
        _write_nothing if dry_run else write_value,
    )
    entries, groups = journal.load(), journal.masks()
    outcome = executor.restore_knobs() if dry_run else executor.restore()
    done: Result = "would be given back" if dry_run else "given back"
    given = {(one.group, one.knob): one for one in outcome.given}
    rows = []
    for entry in sorted(entries, key=lambda entry: (entry.group, entry.knob)):
        one = given.get((entry.group, entry.knob))
        if one is None:
            rows.append(_untouched(entry, left=journal.get(entry.group, entry.knob) is not None, done=done))
            continue
        result: Result = "failed" if one.why_not else done
        rows.append(
            Row(
                cgroup=one.group,
                what=one.knob.value,
                held=one.held,
                original=one.original,
                result=result,
                reason=one.why_not,
            )
        )
    rows += [Row(cgroup=group.group, what=AFFINITY, result=done) for group in groups]
    told = {row.reason for row in rows}
    # Without writes nothing reads back as it should.
    problems = [] if dry_run else [problem for problem in outcome.problems if problem not in told]
    if journal.problem:
        problems.append(f"{journal.problem}; what it held is not known: start an agent, it asks the API and undoes it")
    if not dry_run:
        problems += _without_resctrl(proc_root)
    return Restored(dry_run=dry_run, rows=rows, problems=problems)


def _without_resctrl(proc_root: str) -> list[str]:
    try:
        return remove_all(RdtPlaces(mounts=os.path.join(proc_root, "self/mounts")))
    except KernelError as error:
        return [f"groups of resctrl could not be removed: {error}"]


def _untouched(entry: Entry, *, left: bool, done: Result) -> Row:
    """An entry that needed no write of its own."""
    if left:
        # A weight comes back with the end of the idle class.
        return Row(cgroup=entry.group, what=entry.knob.value, original=entry.original.value, result=done)
    reason = "its cgroup is gone, it has its original, or someone else has set it since"
    return Row(cgroup=entry.group, what=entry.knob.value, result="nothing to do", reason=reason)


def _write_nothing(name: str, value: str | int, dir_fd: int | None = None) -> None:
    del name, value, dir_fd
