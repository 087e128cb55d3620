"""io_alloc: I/O writes into the cache use the masks of the highest class, which then no group can have."""

from __future__ import annotations

import errno

from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.parsing import kernel_bool
from tests.emulators.resctrl.profiles import Cache
from tests.emulators.resctrl.schemata import Controls, Schema
from tests.emulators.resctrl.state import Closids, Group, LastCommand


class IoAlloc:
    """The two files of a cache's info directory."""

    def __init__(self, controls: Controls, closids: Closids, status: LastCommand) -> None:
        self._controls = controls
        self._closids = closids
        self._status = status

    def state(self, schema: Schema) -> str:
        """The file io_alloc."""
        if not self._capable(schema):
            return "not supported\n"
        return "enabled\n" if self._controls.hardware_class is not None else "disabled\n"

    @staticmethod
    def _capable(schema: Schema) -> bool:
        return isinstance(schema.resource, Cache) and schema.resource.io_alloc

    def _need(self, schema: Schema) -> None:
        if not self._capable(schema):
            raise self._status.fail(errno.ENODEV, f"io_alloc is not supported on {schema.name}")

    def switch(self, schema: Schema, text: str) -> None:
        """Turn it on or off. Raises ResctrlError EINVAL, ENODEV, or ENOSPC where a group holds the class."""
        enable = kernel_bool(text)
        self._status.clear()
        self._need(schema)
        if enable == (self._controls.hardware_class is not None):
            return
        closid = schema.num_closids - 1
        if closid >= self._closids.number:
            line = f"io_alloc CLOSID (ctrl_hw_id) {closid} is not available"
            raise self._status.fail(errno.EINVAL, line)
        if not enable:
            self._closids.free(closid)
            self._controls.hardware_class = None
            return
        if not self._closids.take_fixed(closid):
            name = next(group.name for group in self._controls.groups() if group.closid == closid)
            line = f"CLOSID (ctrl_hw_id) {closid} for io_alloc is used by {name} group"
            raise self._status.fail(errno.ENOSPC, line)
        try:
            self._controls.start(closid)
        except ResctrlError:
            self._closids.free(closid)
            raise self._status.fail(errno.ENOSPC, "Failed to initialize io_alloc allocations") from None
        self._controls.hardware_class = closid

    def _active(self, schema: Schema) -> int:
        self._status.clear()
        self._need(schema)
        if self._controls.hardware_class is None:
            raise self._status.fail(errno.EINVAL, f"io_alloc is not enabled on {schema.name}")
        return self._controls.hardware_class

    def masks(self, schema: Schema) -> str:
        """The file io_alloc_cbm. Reading clears last_cmd_status. Raises ResctrlError ENODEV or EINVAL."""
        return self._controls.domains_text(schema, self._active(schema)) + "\n"

    def write_masks(self, schema: Schema, text: str) -> None:
        """New masks; CODE and DATA stay equal. Raises ResctrlError ENODEV or EINVAL."""
        closid = self._active(schema)
        staged: dict[tuple[str, int], int] = {}
        self._controls.line(Group("", 0, closid, 0), schema, text, staged)
        for (_, domain), value in staged.items():
            for peer in self._controls.peers(schema):
                self._controls.put(peer, domain, closid, value)
