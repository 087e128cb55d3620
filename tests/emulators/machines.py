"""Models and shorthands that the tests of the emulated resctrl share."""

from __future__ import annotations

import pytest

from tests.emulators.resctrl import PROFILES, Caller, Clock, FakeHost, Model, ResctrlError


def model(profile="intel-2s", *tids, options=None):
    machine = PROFILES[profile] if isinstance(profile, str) else profile
    chosen = None if options is None else frozenset(options)
    return Model(machine, host=FakeHost(1, *tids), clock=Clock(frozen=0.0), options=chosen)


def fails(call, *arguments):
    """Name of the error of a call."""
    with pytest.raises(ResctrlError) as caught:
        call(*arguments)
    return caught.value.symbol


def status(there):
    return there.read("info/last_cmd_status")


def write(there, path, text, caller=None):
    there.write(path, text.encode(), caller or Caller(1))


def lines(there, path="schemata"):
    """Values by resource and domain, as a reader should parse them: by name."""
    found = {}
    for line in there.read(path).splitlines():
        name, _, rest = line.partition(":")
        found[name.strip()] = dict(cell.split("=") for cell in rest.split(";"))
    return found


def exclusive(profile, mask="f", code=False):
    """A machine with an exclusive group e and a shareable one s beside it."""
    there = model(profile)
    names = ("L3CODE", "L3DATA") if code else ("L3",)
    there.mkdir("e")
    there.mkdir("s")
    for name in names:
        write(there, "schemata", f"{name}:0=ff00;1=ff00\n")
        write(there, "s/schemata", f"{name}:0=f0;1=f0\n")
        write(there, "e/schemata", f"{name}:0={mask};1={mask}\n")
    write(there, "e/mode", "exclusive\n")
    return there


def total(there, path, domain="00"):
    return int(there.read(f"{path}/mon_data/mon_L3_{domain}/mbm_total_bytes"))
