"""What the cpuset of a cgroup allows, as a mask: of the group itself, or of the nearest one above it that has any.

Read through held descriptors, and judged only when the text changed. Source: reference/kernel.md 2.2.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from agent.host.confines import CPUSET_FILE, cpu_list
from agent.host.fds import FdBudget, GroupFiles
from agent.threads import Mask, parse_cpus
from slacktide.errors import KernelError
from slacktide.kernel.hierarchy import Hierarchy

_YOUNG: Final = 10
_SEARCH_EVERY: Final = 10
"""A group without a cpuset of its own is looked for again at each of the first _YOUNG questions (it may be half made),
then each so many."""

_MOST_TEXTS: Final = 1024


class CpusetMasks:
    """Masks by cgroup (relative path). One thread uses it."""

    def __init__(self, hierarchy: Hierarchy, budget: FdBudget, clock: Callable[[], float]) -> None:
        self._mount = hierarchy.controllers.get("cpuset")
        self._budget = budget
        self._clock = clock
        self._files: dict[str, GroupFiles] = {}
        self._where: dict[str, tuple[str, int]] = {}
        """Where a group's cpuset was found, and how often that was asked."""
        self._masks: dict[bytes, Mask | None] = {}

    def of(self, group: str) -> Mask | None:
        """CPUs that `group` may use; None where no cpuset says."""
        if self._mount is None:
            return None
        found, asked = self._where.get(group, (None, 0))
        if found is not None and (found == group or (asked >= _YOUNG and asked % _SEARCH_EVERY)):
            mask = self._read(found)
            if mask is not None:
                self._where[group] = (found, asked + 1)
                return mask
        return self._search(group, asked + 1)

    def keep(self, groups: set[str]) -> None:
        """Forget all other groups, and close what was held for them."""
        for group in self._where.keys() - groups:
            del self._where[group]
        used = {found for found, _ in self._where.values()}
        for found in self._files.keys() - used:
            self._files.pop(found).release()

    def _search(self, group: str, asked: int) -> Mask | None:
        above = group
        while True:
            mask = self._read(above)
            if mask is not None:
                self._where[group] = (above, asked)
                return mask
            if not above:
                return None
            above = os.path.dirname(above)

    def _read(self, group: str) -> Mask | None:
        assert self._mount is not None
        files = self._files.get(group)
        if files is None:
            path = os.path.join(self._mount.path, group) if group else self._mount.path
            files = GroupFiles(path, None, self._budget, self._clock)
        try:
            text = files.hot(CPUSET_FILE[self._mount.version])
        except KernelError:
            self._files.pop(group, None)
            files.release()
            return None
        self._files[group] = files
        if text not in self._masks:
            if len(self._masks) >= _MOST_TEXTS:
                self._masks.clear()
            allowed = cpu_list(text)
            self._masks[text] = parse_cpus(allowed) if allowed else None
        return self._masks[text]
