"""The capabilities that the chart gives the agent, tried with the kernel: all are enough, one less breaks its part."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.deploy.chart import ROOT
from tests.deploy.rights import plain, table

GIVEN = [
    plain(row["capability"]) for row in table("capability") if plain(row["only with"]) == "agent.observeOnly: false"
]
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="capabilities can be dropped by root only"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed"),
]

TRY = {
    "DAC_OVERRIDE": """
        from agent.host.cgroup import CgroupLister
        from agent.host.probe import probe
        from slacktide.kernel.hierarchy import discover
        hierarchy = discover("/proc")
        # The top of the tree, where a node without pods has nothing else to try on.
        found = probe(hierarchy, CgroupLister(hierarchy, "slacktide-none"), "/proc")
        worked = bool(found.writable)
    """,
    "SYS_NICE": """
        from agent.host.affinity import Affinity
        from slacktide.errors import KernelError
        affinity = Affinity("/proc")
        key = affinity.key_of(other)
        try:
            affinity.write(key, frozenset(os.sched_getaffinity(other)))
            worked = True
        except KernelError:
            worked = False
    """,
    "KILL": """
        import signal
        descriptor = os.pidfd_open(other)
        try:
            signal.pidfd_send_signal(descriptor, 0)
            worked = True
        except PermissionError:
            worked = False
    """,
}


COUNT = """
    from agent.host.perf_event import PerfEvents
    from slacktide.errors import KernelError, NotPermitted
    try:
        PerfEvents().open_own()
        worked = True
    except NotPermitted:
        worked = False
    except KernelError:
        # A machine without counters says so to those who may ask.
        worked = True
"""


def works(what, capabilities):
    """Whether the agent's own code for that, with these capabilities and no other, does what it is for."""
    bounds = ",".join(["-all", *(f"+{one.lower()}" for one in capabilities)])
    drop = ["setpriv", "--no-new-privs", "--inh-caps=-all", f"--bounding-set={bounds}"]
    script = COUNT if what == "PERFMON" else TRY[what]
    nobody = subprocess.Popen(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "100"])
    try:
        program = f"import os\nother = {nobody.pid}\n{textwrap.dedent(script)}\nprint(worked)"
        done = subprocess.run(
            [*drop, sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
    finally:
        nobody.kill()
        nobody.wait()
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "True"


def test_every_capability_is_tried():
    assert sorted(TRY) == sorted(GIVEN)


@pytest.mark.parametrize("what", sorted(TRY))
def test_with_what_the_chart_gives_it_works(what):
    assert works(what, GIVEN)


@pytest.mark.parametrize("what", sorted(TRY))
def test_without_it_that_part_does_not(what):
    assert not works(what, [one for one in GIVEN if one != what])


@pytest.mark.skipif(
    int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) > 2,
    reason="kernel.perf_event_paranoid is above 2: this kernel may want more than CAP_PERFMON",
)
def test_perfmon_counts_and_without_it_nothing_does():
    assert works("PERFMON", [*GIVEN, "PERFMON"])
    assert not works("PERFMON", GIVEN)
