"""Event files: numbers or one of the texts that stand for none, sums of CTRL groups, event configuration."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.hardware import Hardware
from tests.emulators.resctrl.parsing import SPACE, kernel_number
from tests.emulators.resctrl.profiles import Monitoring
from tests.emulators.resctrl.state import Group, LastCommand

OCCUPANCY, TOTAL, LOCAL = "llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"
MBM = (TOTAL, LOCAL)
UNAVAILABLE, ERROR, UNASSIGNED = "Unavailable", "Error", "Unassigned"
CONFIG_MASK = 0x7F
START_CONFIG = {TOTAL: 0x7F, LOCAL: 0x15}
_ULONG = (1 << 64) - 1


@dataclass
class Script:
    """A text that a test wants an event to show, and how often; None for always."""

    text: str
    times: int | None = None


class Monitor:
    """Reads of mon_data, from the hardware's counters."""

    def __init__(self, monitoring: Monitoring, hardware: Hardware, status: LastCommand) -> None:
        self.facts = monitoring
        self._hardware = hardware
        self._status = status
        self._base: dict[tuple[int, int, str], float] = {}
        self._fresh: set[tuple[int, int, str]] = set()
        """Events whose next read has no data."""
        self.scripts: dict[tuple[int, int, str], Script] = {}
        self.config = {(event, domain): START_CONFIG[event] for event in MBM for domain in monitoring.domains}
        self.offline: set[int] = set()
        """Domains that went away."""
        self.unassigned: set[tuple[int, int, str]] = set()
        """Without a counter; kept by Assignments."""

    def begin(self, rmid: int) -> None:
        """A group got this id: its counts start at zero."""
        for domain in self.facts.domains:
            for event in MBM:
                self._base[rmid, domain, event] = self._raw(rmid, domain, event)
            if self.facts.first_read_unavailable and rmid:
                self._fresh.update((rmid, domain, event) for event in self.facts.events)
        self.scripts = {key: script for key, script in self.scripts.items() if key[0] != rmid}

    def base(self, rmid: int, domain: int, event: str) -> float:
        """Where a count of this id began."""
        return self._base.get((rmid, domain, event), 0.0)

    def _raw(self, rmid: int, domain: int, event: str) -> float:
        counter = self._hardware.counter(rmid, domain)
        return {OCCUPANCY: counter.occupancy, TOTAL: counter.total, LOCAL: counter.local}[event]

    def _one(self, rmid: int, domain: int, event: str) -> int | str:
        key = (rmid, domain, event)
        script = self.scripts.get(key)
        if script is not None:
            if script.times is not None:
                script.times -= 1
                if script.times <= 0:
                    del self.scripts[key]
            return script.text
        if key in self.unassigned:
            return UNASSIGNED
        if key in self._fresh:
            self._fresh.discard(key)
            return UNAVAILABLE
        value = self._raw(rmid, domain, event) - (self.base(*key) if event in MBM else 0.0)
        return int(max(0.0, value) / self.facts.unit) * self.facts.unit

    def read(self, group: Group, domain: int, event: str, whole: bool = False) -> str:
        """An event file: own count plus those of the MON groups; errors of some are dropped where any has a number.

        `whole`: `domain` is an L3 that SNC splits, all its parts are summed. Raises ResctrlError ENOENT.
        """
        parts = self.facts.subdomains[domain] if whole else (domain,)
        if any(part in self.offline for part in parts):
            raise ResctrlError(errno.ENOENT)
        numbers: list[int] = []
        texts: list[str] = []
        for member in group.members() if group.control else (group,):
            values = [self._one(member.rmid, part, event) for part in parts]
            bad = [value for value in values if isinstance(value, str)]
            if bad:
                texts.append(bad[0])
            else:
                numbers.append(sum(value for value in values if isinstance(value, int)))
        return f"{sum(numbers)}\n" if numbers else f"{texts[0]}\n"

    def config_text(self, event: str) -> str:
        """The file EVENT_config."""
        return ";".join(f"{domain}=0x{self.config[event, domain]:02x}" for domain in self.facts.domains) + "\n"

    def configure(self, event: str, text: str) -> None:
        """Choose what an event counts, without the last newline. Domains before a bad one stay changed.

        Raises ResctrlError EINVAL.
        """
        while text:
            token, _, text = text.partition(";")
            name, _, value = token.strip(SPACE).partition("=")
            domain = self._number(name, 10, "Missing '=' or non-numeric domain id")
            mask = self._number(value, 16, "Non-numeric event configuration value")
            if mask & ~CONFIG_MASK:
                line = f"Invalid event configuration: max valid mask is 0x{CONFIG_MASK:02x}"
                raise self._status.fail(errno.EINVAL, line)
            if domain not in self.facts.domains:
                raise ResctrlError(errno.EINVAL)
            if self.config[event, domain] != mask:
                self.config[event, domain] = mask
                self._reset(domain)

    def _number(self, text: str, base: int, complaint: str) -> int:
        try:
            return kernel_number(text, base, _ULONG)
        except ResctrlError:
            raise self._status.fail(errno.EINVAL, complaint) from None

    def reset_all(self) -> None:
        """Every count starts anew."""
        for domain in self.facts.domains:
            self._reset(domain)

    def reset_event(self, event: str) -> None:
        """One event counts something else from now on."""
        for domain in self.facts.domains:
            self._reset(domain, (event,))

    def _reset(self, domain: int, events: tuple[str, ...] = MBM) -> None:
        """All ids of the domain lose their counts, and have no data at the next read."""
        for rmid in range(self.facts.num_rmids):
            for event in events:
                self._base[rmid, domain, event] = self._raw(rmid, domain, event)
                self._fresh.add((rmid, domain, event))
