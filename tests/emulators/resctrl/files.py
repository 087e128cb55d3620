"""Files by directory: what each shows and takes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Union

from tests.emulators.resctrl.assignments import Assignments
from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.host import Caller
from tests.emulators.resctrl.io_alloc import IoAlloc
from tests.emulators.resctrl.monitoring import LOCAL, MBM, OCCUPANCY, TOTAL, Monitor
from tests.emulators.resctrl.mount import Mount
from tests.emulators.resctrl.parsing import kernel_number
from tests.emulators.resctrl.profiles import Cache
from tests.emulators.resctrl.schemata import Schema
from tests.emulators.resctrl.state import LOCKSETUP, Group

READ_ONLY, WRITABLE, CLOSED = 0o444, 0o644, 0
PAGE = 4096


@dataclass(frozen=True)
class File:
    """One file."""

    mode: int
    read: Callable[[Caller], str]
    write: Callable[[bytes, Caller], None] | None = None


Directory = Mapping[str, Union[File, "Directory"]]


def text_of(data: bytes) -> str:
    """What the kernel sees of a write: up to the first zero byte."""
    return data.split(b"\0", 1)[0].decode("latin-1")


def line_of(data: bytes) -> str:
    """A write that must end with a newline, without it. Raises ResctrlError EINVAL before anything else happens."""
    if not data.endswith(b"\n"):
        raise ResctrlError(errno.EINVAL)
    return text_of(data[:-1])


def shown(text: object) -> File:
    """A file that only shows `text` and a newline."""
    return File(READ_ONLY, lambda _caller: f"{text}\n")


def group_files(mount: Mount, group: Group, clock: Callable[[], float]) -> dict[str, File]:
    """Files of a group's directory."""
    mode = CLOSED if group.mode == LOCKSETUP else WRITABLE
    files = {
        "cpus": _cpus(mount, group, mode, False),
        "cpus_list": _cpus(mount, group, mode, True),
        "tasks": File(
            mode,
            lambda caller: mount.tasks_text(group, caller),
            lambda data, caller: mount.write_tasks(group, text_of(data), caller),
        ),
    }
    debug = "debug" in mount.options
    if mount.monitor is not None and debug:
        files["mon_hw_id"] = File(READ_ONLY, lambda _caller: f"{group.rmid}\n")
    if mount.assignments is not None:
        files["mbm_L3_assignments"] = _assignments(mount.assignments, group)
    if group.control:
        files |= _control_files(mount, group, clock)
        if debug:
            files["ctrl_hw_id"] = File(READ_ONLY, lambda _caller: f"{group.closid}\n")
    return files


def _control_files(mount: Mount, group: Group, clock: Callable[[], float]) -> dict[str, File]:
    files = {
        "schemata": File(
            WRITABLE,
            lambda _caller: mount.controls.text(group),
            lambda data, _caller: mount.write_schemata(group, line_of(data)),
        ),
        "mode": File(
            WRITABLE,
            lambda _caller: f"{group.mode}\n",
            lambda data, _caller: mount.write_mode(group, line_of(data), clock()),
        ),
        "size": File(READ_ONLY, lambda _caller: mount.controls.sizes(group)),
    }
    if "mba_MBps" in mount.options and mount.profile.event_file:
        files["mba_MBps_event"] = File(
            WRITABLE,
            lambda _caller: f"{group.mbps_event}\n",
            lambda data, _caller: _choose_event(mount, group, line_of(data)),
        )
    return files


def _cpus(mount: Mount, group: Group, mode: int, as_list: bool) -> File:
    return File(
        mode,
        lambda _caller: mount.cpus_text(group, as_list),
        lambda data, _caller: mount.write_cpus(group, text_of(data), as_list),
    )


def _choose_event(mount: Mount, group: Group, text: str) -> None:
    mount.status.clear()
    assert mount.monitor is not None
    if text not in MBM or text not in mount.monitor.facts.events:
        raise mount.status.fail(errno.EINVAL, f"Unsupported event id '{text}'")
    group.mbps_event = text


def _assignments(assignments: Assignments, group: Group) -> File:
    return File(
        WRITABLE,
        lambda _caller: assignments.text(group),
        lambda data, _caller: assignments.write(group, line_of(data)),
    )


def mon_data(mount: Mount, group: Group) -> Directory:
    """The directory mon_data: one directory for each L3, with SNC one more level."""
    monitor = mount.monitor
    assert monitor is not None
    facts = monitor.facts
    found: dict[str, File | Directory] = {}
    if facts.subdomains:
        for whole, parts in facts.subdomains.items():
            alive = [part for part in parts if part not in monitor.offline]
            if alive:
                inner = {f"mon_sub_L3_{part:02d}": _events(monitor, group, part, False) for part in alive}
                found[f"mon_L3_{whole:02d}"] = {**_events(monitor, group, whole, True), **inner}
    else:
        for domain in facts.domains:
            if domain not in monitor.offline:
                found[f"mon_L3_{domain:02d}"] = _events(monitor, group, domain, False)
    for name, files in facts.extra_directories.items():
        found[name] = {file: shown(text.removesuffix("\n")) for file, text in files.items()}
    return found


def _events(monitor: Monitor, group: Group, domain: int, whole: bool) -> dict[str, File]:
    files = {event: _event(monitor, group, domain, event, whole) for event in monitor.facts.events}
    files |= {name: shown(text.removesuffix("\n")) for name, text in monitor.facts.extra_files.items()}
    return files


def _event(monitor: Monitor, group: Group, domain: int, event: str, whole: bool) -> File:
    return File(READ_ONLY, lambda _caller: monitor.read(group, domain, event, whole))


def info(mount: Mount) -> Directory:
    """The directory info."""
    found: dict[str, File | Directory] = {
        "last_cmd_status": File(READ_ONLY, lambda _caller: mount.status.text),
    }
    for schema in mount.controls.schemas:
        cache = isinstance(schema.resource, Cache)
        found[schema.name] = _cache_info(mount, schema) if cache else _bandwidth_info(schema)
    if mount.monitor is not None:
        found["L3_MON"] = _monitor_info(mount, mount.monitor)
    return found


def _cache_info(mount: Mount, schema: Schema) -> Directory:
    cache = schema.resource
    assert isinstance(cache, Cache)
    files = {
        "num_closids": shown(schema.num_closids),
        "cbm_mask": shown(f"{cache.full:x}"),
        "min_cbm_bits": shown(cache.min_cbm_bits),
        "shareable_bits": shown(f"{cache.shareable_bits:x}"),
        "bit_usage": File(READ_ONLY, lambda _caller: mount.controls.bit_usage(schema)),
    }
    if mount.profile.sparse_file:
        files["sparse_masks"] = shown(int(cache.sparse))
    if mount.profile.io_alloc_files:
        files |= _io_alloc(mount.io_alloc, schema)
    return files


def _io_alloc(io_alloc: IoAlloc, schema: Schema) -> dict[str, File]:
    return {
        "io_alloc": File(
            WRITABLE,
            lambda _caller: io_alloc.state(schema),
            lambda data, _caller: io_alloc.switch(schema, text_of(data)),
        ),
        "io_alloc_cbm": File(
            WRITABLE,
            lambda _caller: io_alloc.masks(schema),
            lambda data, _caller: io_alloc.write_masks(schema, line_of(data)),
        ),
    }


def _bandwidth_info(schema: Schema) -> Directory:
    resource = schema.resource
    assert not isinstance(resource, Cache)
    files = {
        "num_closids": shown(schema.num_closids),
        "min_bandwidth": shown(resource.minimum),
        "bandwidth_gran": shown(resource.gran),
        "delay_linear": shown(int(resource.linear)),
    }
    if resource.throttle_mode:
        files["thread_throttle_mode"] = shown(resource.throttle_mode)
    return files


def _monitor_info(mount: Mount, monitor: Monitor) -> Directory:
    facts = monitor.facts
    features = list(facts.events)
    if facts.bmec:
        features = [name for event in facts.events for name in (event, *([f"{event}_config"] if event in MBM else []))]
    files: dict[str, File | Directory] = {
        "num_rmids": shown(facts.num_rmids),
        "mon_features": shown("\n".join(features)),
    }
    if OCCUPANCY in facts.events:
        files["max_threshold_occupancy"] = File(
            WRITABLE,
            lambda _caller: f"{mount.threshold}\n",
            lambda data, _caller: _set_threshold(mount, text_of(data)),
        )
    if facts.bmec and not (mount.assignments and mount.assignments.enabled):
        files |= {f"{event}_config": _config(mount, monitor, event) for event in (TOTAL, LOCAL)}
    if mount.assignments is not None:
        files |= _assignment_info(mount.assignments, [event for event in MBM if event in facts.events])
    return files


def _assignment_info(assignments: Assignments, events: list[str]) -> dict[str, File | Directory]:
    return {
        "mbm_assign_mode": File(
            WRITABLE,
            lambda _caller: assignments.mode_text(),
            lambda data, _caller: assignments.switch(line_of(data)),
        ),
        "num_mbm_cntrs": File(READ_ONLY, lambda _caller: assignments.number_text()),
        "available_mbm_cntrs": File(READ_ONLY, lambda _caller: assignments.available_text()),
        "mbm_assign_on_mkdir": File(
            WRITABLE,
            lambda _caller: assignments.on_mkdir_text(),
            lambda data, _caller: assignments.set_on_mkdir(text_of(data)),
        ),
        "event_configs": {event: {"event_filter": _filter(assignments, event)} for event in events},
    }


def _filter(assignments: Assignments, event: str) -> File:
    return File(
        WRITABLE,
        lambda _caller: assignments.filter_text(event),
        lambda data, _caller: assignments.set_filter(event, line_of(data)),
    )


def _config(mount: Mount, monitor: Monitor, event: str) -> File:
    def write(data: bytes, _caller: Caller) -> None:
        text = line_of(data)
        mount.status.clear()
        monitor.configure(event, text)

    return File(WRITABLE, lambda _caller: monitor.config_text(event), write)


def _set_threshold(mount: Mount, text: str) -> None:
    facts = mount.profile.monitoring
    assert facts is not None
    value = kernel_number(text, 0, (1 << 32) - 1)
    if value > facts.cache_bytes:
        raise ResctrlError(errno.EINVAL)
    mount.threshold = value // facts.unit * facts.unit
