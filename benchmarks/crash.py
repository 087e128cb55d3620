"""kill -9 of the agent at random moments under load, again and again: what is left, and does the next one know it?

LS works and sleeps, BE keeps all CPUs busy and forks without end, and the agent's settings hold BE to its floor, so
that there is a limit to lose. Half of the kills come at a random moment of the agent's start, the others some time
after its second turn. All knobs of all cgroups and the CPU masks of all threads are read from outside: before the
first agent, after each kill, after the second turn of the agent that follows (the first one that decides), and after
the restore at the end.

    ls_limited   times that anything of LS, or of what is above it, was not as before the first agent
    limits_lost  BE limits in force that are in no journal: the next agent could neither adopt nor undo them
    left_over    what was not as before when all was restored
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent.act.journal import FILE_NAME, Journal
from agent.capabilities import Knob
from benchmarks import report
from benchmarks.stage import BE, LS, AgentProcess, Stage, restore
from slacktide.kernel.hierarchy import discover
from standalone.load.colocation import usable_cpus

KILLS: Final = 200
QUICK_KILLS: Final = 12
START_SECONDS: Final = 1.5
"""Kills at the start come within this time; the agent is at work before it has passed."""
LIFE_SECONDS: Final = 0.5
EARLY_SHARE: Final = 0.5

SETTINGS: Final = {
    "turn-seconds": "0.2",
    "suppress.engage-percent": "1",
    "suppress.target-percent": "1",
    "suppress.hold-percent": "0",
}
"""Any use at all engages the cap, and it is the floor."""

KNOBS: Final[Mapping[str, frozenset[Knob]]] = {
    "cpu.idle": frozenset({Knob.IDLE}),
    "cpu.shares": frozenset({Knob.WEIGHT, Knob.IDLE}),
    "cpu.weight": frozenset({Knob.WEIGHT, Knob.IDLE}),
    "cpu.weight.nice": frozenset({Knob.WEIGHT, Knob.IDLE}),
    "cpu.cfs_quota_us": frozenset({Knob.QUOTA}),
    "cpu.cfs_period_us": frozenset({Knob.QUOTA}),
    "cpu.max": frozenset({Knob.QUOTA}),
    "cpu.cfs_burst_us": frozenset({Knob.BURST, Knob.QUOTA}),
    "cpu.max.burst": frozenset({Knob.BURST, Knob.QUOTA}),
    "cpuset.cpus": frozenset({Knob.CPUSET}),
    "memory.limit_in_bytes": frozenset({Knob.MEMORY_MAX}),
    "memory.max": frozenset({Knob.MEMORY_MAX}),
    "memory.high": frozenset({Knob.MEMORY_HIGH}),
    "io.max": frozenset({Knob.IO_MAX}),
    "io.weight": frozenset({Knob.IO_WEIGHT}),
    "freezer.state": frozenset({Knob.FREEZE}),
    "cgroup.freeze": frozenset({Knob.FREEZE}),
}
"""Files that are read, and the knobs that change them (leaving the idle class changes the weight as well)."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the kernel holds: by (group, file) the text, and by group the masks of its threads."""

    knobs: Mapping[tuple[str, str], str]
    masks: Mapping[str, frozenset[frozenset[int]]]

    def changed(self, before: Held) -> set[tuple[str, str]]:
        """(group, file) that differ; masks as file `affinity`. A group that is new is a difference by itself."""
        found = {key for key, text in self.knobs.items() if before.knobs.get(key) != text}
        everywhere = frozenset.union(*(mask for masks in before.masks.values() for mask in masks))
        narrowed = {group for group, masks in self.masks.items() if any(mask < everywhere for mask in masks)}
        return found | {(group, "affinity") for group in narrowed}


def held_now(root: str) -> Held:
    """Read all of it below `root`; what vanishes meanwhile is left out."""
    knobs: dict[tuple[str, str], str] = {}
    masks: dict[str, frozenset[frozenset[int]]] = {}
    for mount in discover().mounts():
        for directory, _, _ in os.walk(os.path.join(mount.path, root)):
            group = os.path.relpath(directory, mount.path)
            for name in KNOBS:
                with contextlib.suppress(OSError), open(os.path.join(directory, name), encoding="ascii") as file:
                    knobs[(group, name)] = file.read().strip()
            found = frozenset(_masks(directory))
            if found:
                masks[group] = found
    return Held(knobs, masks)


def _masks(directory: str) -> Iterable[frozenset[int]]:
    for name in ("cgroup.threads", "tasks"):
        with contextlib.suppress(OSError), open(os.path.join(directory, name), encoding="ascii") as file:
            for tid in file.read().split():
                with contextlib.suppress(OSError):
                    yield frozenset(os.sched_getaffinity(int(tid)))
            return


def unknown(changed: Iterable[tuple[str, str]], state: str) -> list[tuple[str, str]]:
    """Of BE's changes those that the journal in `state` does not explain."""
    with tempfile.TemporaryDirectory(prefix="slacktide-crash-") as copy:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(os.path.join(state, FILE_NAME), copy)
        journal = Journal(copy, _boot_id())
        entries = {(entry.group, entry.knob) for entry in journal.load()}
        pinned = {entry.group for entry in journal.masks()}
    return [
        (group, name)
        for group, name in changed
        if not (group in pinned if name == "affinity" else any((group, knob) in entries for knob in KNOBS[name]))
    ]


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


@dataclass(slots=True)
class Tally:
    """What was seen; texts say what and when."""

    kills: int = 0
    ls_limited: list[str] = field(default_factory=list)
    limits_lost: list[str] = field(default_factory=list)
    limits_seen: int = 0
    start_seconds: list[float] = field(default_factory=list)


class Play:
    """Kills agents on a stage and keeps the tally."""

    def __init__(self, stage: Stage, before: Held, rng: random.Random) -> None:
        self._stage = stage
        self._before = before
        self._rng = rng
        self._known = {group for group, _ in before.knobs}
        self._be = stage.group(BE)
        self.tally = Tally()

    def early(self) -> None:
        """An agent that is killed somewhere in its start."""
        agent = AgentProcess(self._stage, SETTINGS)
        time.sleep(self._rng.uniform(0.0, START_SECONDS))
        self._kill(agent)

    def late(self) -> None:
        """An agent that takes over what the one before left, is looked at, and is killed some time later."""
        begin = time.monotonic()
        agent = AgentProcess(self._stage, SETTINGS)
        try:
            agent.wait_for_turns(2)
            self.tally.start_seconds.append(time.monotonic() - begin)
            self._look(agent, "after the second turn")
            time.sleep(self._rng.uniform(0.0, LIFE_SECONDS))
        finally:
            self._kill(agent)

    def _kill(self, agent: AgentProcess) -> None:
        agent.end(signal.SIGKILL)
        self.tally.kills += 1
        self._look(agent, "after the kill")

    def _look(self, agent: AgentProcess, when: str) -> None:
        changed = held_now(self._stage.root).changed(self._before)
        be = {one for one in changed if one[0] == self._be or one[0].startswith(f"{self._be}/")}
        self.tally.limits_seen += len(be)
        said = f"kill {self.tally.kills}, {when}"
        # What the agent made for itself (its probe's cgroup, say) limits nobody; it must be gone at the end.
        others = {one for one in changed - be if one[0] in self._known}
        self.tally.ls_limited += [f"{said}: {group} {name}" for group, name in sorted(others)]
        self.tally.limits_lost += [f"{said}: {group} {name}" for group, name in sorted(unknown(be, agent.state))]


def play(kills: int, seed: int) -> tuple[Tally, list[str]]:
    """All kills on a stage of their own; the tally, and what was left after the restore."""
    cpus, rng = usable_cpus(), random.Random(seed)
    burn = ("-m", "standalone.load", "burn", "--processes")
    with Stage() as stage, contextlib.ExitStack() as stack:
        stack.enter_context(stage.run(LS, *burn, str(cpus), "--kind", "sleepwake"))
        stack.enter_context(stage.run(BE, *burn, str(2 * cpus)))
        stack.enter_context(stage.run(BE, *burn, "1", "--kind", "forkstorm"))
        time.sleep(1.0)
        before = held_now(stage.root)
        one = Play(stage, before, rng)
        while one.tally.kills < kills - 1:
            if rng.random() < EARLY_SHARE:
                one.early()
            else:
                one.late()
            if one.tally.kills % 20 == 0:
                print(f"{one.tally.kills} of {kills} kills", file=sys.stderr, flush=True)
        one.late()
        said = restore(stage)
        left = held_now(stage.root).changed(before)
        return one.tally, [f"{group} {name}" for group, name in sorted(left)] + ([said] if said else [])


def summarise(tally: Tally, left: list[str]) -> dict[str, Any]:
    """Counts, and the first few of each in words."""
    return {
        "kills": tally.kills,
        "ls_limited": len(tally.ls_limited),
        "limits_lost": len(tally.limits_lost),
        "left_over": len(left),
        "limits_seen": tally.limits_seen,
        "start_seconds_p50": statistics.median(tally.start_seconds) if tally.start_seconds else None,
        "what": [*tally.ls_limited[:5], *tally.limits_lost[:5], *left[:5]],
    }


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its result."""
    parser = report.parser("crash", __doc__)
    parser.add_argument("--kills", type=int, help=f"default {KILLS}, with --quick {QUICK_KILLS}")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args(argv)
    kills = arguments.kills or (QUICK_KILLS if arguments.quick else KILLS)
    tally, left = play(kills, arguments.seed)
    report.emit("crash", summarise(tally, left), arguments.output, save=arguments.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
