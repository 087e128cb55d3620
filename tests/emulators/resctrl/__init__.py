"""resctrl of the kernel, emulated: the same grammar, errors, limits and counters, on a machine that has none.

`Model` is all of it without a mount, `mounted()` puts it under a directory through FUSE, and
`python -m tests.emulators.resctrl` does so by hand. Hardware is a simple model that a test may script.

What differs from a kernel: a write of no bytes never arrives; the thread that made a thread is not known, so a new
thread begins where the first thread of its process is; a child is taken for what its parent is when it is first seen,
at most 0.2 s after its birth; pseudo-locking makes no device; nothing is throttled for real.
"""

from tests.emulators.resctrl.errors import ResctrlError
from tests.emulators.resctrl.host import Caller, FakeHost, ProcHost
from tests.emulators.resctrl.model import Clock, Model
from tests.emulators.resctrl.mounting import Handle, missing, mounted
from tests.emulators.resctrl.profiles import PROFILES, Profile

__all__ = [
    "PROFILES",
    "Caller",
    "Clock",
    "FakeHost",
    "Handle",
    "Model",
    "ProcHost",
    "Profile",
    "ResctrlError",
    "missing",
    "mounted",
]
