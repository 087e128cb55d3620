"""Assignable bandwidth counters (ABMC): which event of which group has one, and what the events count."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.monitoring import MBM, START_CONFIG, Monitor
from tests.emulators.resctrl.parsing import SPACE, kernel_bool, kernel_number
from tests.emulators.resctrl.state import Group, LastCommand

TRANSACTIONS = (
    "local_reads",
    "remote_reads",
    "local_non_temporal_writes",
    "remote_non_temporal_writes",
    "local_reads_slow_memory",
    "remote_reads_slow_memory",
    "dirty_victim_writes_all",
)
"""By bit of the event configuration."""
_ULONG = (1 << 64) - 1


class Assignments:
    """Counters of each domain. On at mount, as on AMD that has them."""

    def __init__(self, monitor: Monitor, status: LastCommand, groups: Callable[[], Iterator[Group]]) -> None:
        self._monitor = monitor
        self._status = status
        self._groups = groups
        self._events = tuple(event for event in MBM if event in monitor.facts.events)
        self._held: set[tuple[int, int, str]] = set()
        """(rmid, domain, event) with a counter."""
        self._filters = dict(START_CONFIG)
        self.enabled = True
        self.on_mkdir = True

    def begin(self, group: Group) -> None:
        """Counters for a new group as far as there are any; without them it reads Unassigned."""
        if self.enabled and self.on_mkdir:
            for event in self._events:
                for domain in self._monitor.facts.domains:
                    self._take(group, domain, event)
        self._tell()

    def end(self, group: Group) -> None:
        """A group is gone: its counters are free."""
        self._held = {key for key in self._held if key[0] != group.rmid}
        self._tell()

    def _take(self, group: Group, domain: int, event: str) -> bool:
        key = (group.rmid, domain, event)
        if key in self._held:
            return True
        if self._free(domain) == 0:
            return False
        self._held.add(key)
        return True

    def _free(self, domain: int) -> int:
        return self._monitor.facts.abmc_counters - sum(key[1] == domain for key in self._held)

    def _tell(self) -> None:
        """Let the monitor know what has no counter."""
        everything = {
            (group.rmid, domain, event)
            for group in self._groups()
            for domain in self._monitor.facts.domains
            for event in self._events
        }
        self._monitor.unassigned = everything - self._held if self.enabled else set()

    def need_enabled(self, code: int = errno.EINVAL) -> None:
        """Clears last_cmd_status, on reads too. Raises ResctrlError where the mode is off."""
        self._status.clear()
        if not self.enabled:
            raise self._status.fail(code, "mbm_event counter assignment mode is not enabled")

    def mode_text(self) -> str:
        """The file mbm_assign_mode."""
        return "[mbm_event]\ndefault\n" if self.enabled else "mbm_event\n[default]\n"

    def switch(self, text: str) -> None:
        """Turn the mode on or off: all counters start anew. Raises ResctrlError EINVAL."""
        self._status.clear()
        if text not in {"mbm_event", "default"}:
            raise self._status.fail(errno.EINVAL, "Unsupported assign mode")
        if self.enabled == (text == "mbm_event"):
            return
        self.enabled = text == "mbm_event"
        self._held.clear()
        self.on_mkdir = True
        self._filters = dict(START_CONFIG)
        self._monitor.reset_all()
        if self.enabled:
            for group in self._groups():
                self.begin(group)
        self._tell()

    def available_text(self) -> str:
        """The file available_mbm_cntrs. Raises ResctrlError EINVAL where the mode is off."""
        self.need_enabled()
        return ";".join(f"{domain}={self._free(domain)}" for domain in self._monitor.facts.domains) + "\n"

    def number_text(self) -> str:
        """The file num_mbm_cntrs."""
        facts = self._monitor.facts
        return ";".join(f"{domain}={facts.abmc_counters}" for domain in facts.domains) + "\n"

    def on_mkdir_text(self) -> str:
        """The file mbm_assign_on_mkdir. Raises ResctrlError EINVAL where the mode is off."""
        self.need_enabled()
        return f"{int(self.on_mkdir)}\n"

    def set_on_mkdir(self, text: str) -> None:
        """Raises ResctrlError EINVAL."""
        value = kernel_bool(text)
        self.need_enabled()
        self.on_mkdir = value

    def filter_text(self, event: str) -> str:
        """The file event_filter. Raises ResctrlError EINVAL where the mode is off."""
        self.need_enabled()
        mask = self._filters[event]
        return ",".join(name for bit, name in enumerate(TRANSACTIONS) if mask >> bit & 1) + "\n"

    def set_filter(self, event: str, text: str) -> None:
        """Comma names, none for nothing. Raises ResctrlError EINVAL."""
        self.need_enabled()
        mask = 0
        for name in filter(None, (part.strip(SPACE) for part in text.split(","))):
            if name not in TRANSACTIONS:
                raise self._status.fail(errno.EINVAL, f"Invalid memory transaction type {name}")
            mask |= 1 << TRANSACTIONS.index(name)
        if mask != self._filters[event]:
            self._filters[event] = mask
            self._monitor.reset_event(event)

    def text(self, group: Group) -> str:
        """The file mbm_L3_assignments. Raises ResctrlError EINVAL where the mode is off."""
        self.need_enabled()
        lines = []
        for event in self._events:
            cells = (
                f"{domain}={'e' if (group.rmid, domain, event) in self._held else '_'}"
                for domain in self._monitor.facts.domains
            )
            lines.append(f"{event}:{';'.join(cells)}\n")
        return "".join(lines)

    def write(self, group: Group, text: str) -> None:
        """Lines EVENT:DOMAIN=e|_, * for all domains; what stands before a bad one stays.

        Raises ResctrlError EINVAL, ENOENT for an unknown event, ENOSPC without a free counter.
        """
        self.need_enabled()
        try:
            for line in text.split("\n"):
                event, _, rest = line.partition(":")
                if event not in self._events:
                    raise self._status.fail(errno.ENOENT, f"Invalid event {event}")
                self._line(group, event, rest)
        finally:
            self._tell()

    def _line(self, group: Group, event: str, text: str) -> None:
        while text:
            token, _, text = text.partition(";")
            name, _, state = token.strip(SPACE).partition("=")
            try:
                domains = self._named(name)
                for domain in domains:
                    self._assign(group, domain, event, state)
            except ResctrlError:
                self._status.say(f"Assign operation '{event}:{name}={state}' failed")
                raise
            if name.startswith("*"):
                return

    def _named(self, name: str) -> tuple[int, ...]:
        if name.startswith("*"):
            return self._monitor.facts.domains
        try:
            domain = kernel_number(name, 10, _ULONG)
        except ResctrlError:
            raise self._status.fail(errno.EINVAL, "Missing domain id") from None
        if domain not in self._monitor.facts.domains:
            raise self._status.fail(errno.EINVAL, f"Invalid domain id {domain}")
        return (domain,)

    def _assign(self, group: Group, domain: int, event: str, state: str) -> None:
        if state == "_":
            self._held.discard((group.rmid, domain, event))
        elif state != "e":
            raise self._status.fail(errno.EINVAL, "Invalid assign state")
        elif not self._take(group, domain, event):
            line = f"Failed to allocate counter for {event} in domain {domain}"
            raise self._status.fail(errno.ENOSPC, line)
