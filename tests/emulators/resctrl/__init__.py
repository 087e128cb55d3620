"""resctrl of the kernel, emulated: the same grammar, errors, limits and counters, on a machine that has none.

`Model(PROFILES["intel-2s"], host=FakeHost(5))` is all of it without a mount. `mounted("intel-2s", tmp_path)` puts it
under a directory through FUSE, in a process of its own; its handle has `path` (instead of /sys/fs/resctrl),
`mounts_file` (instead of /proc/mounts) and `control`, whose methods (see control.Commands) make the machine do things:
rates and demands of groups, texts in place of numbers, errors, slow files, groups that vanish, a remount, frozen time.
`fixture.resctrl` does the same as a pytest fixture. By hand: `python -m tests.emulators.resctrl MOUNTPOINT --control
SOCKET`, and `python -m tests.emulators.resctrl.tell SOCKET COMMAND ...`.

What differs from a kernel:
- statfs and /proc/mounts say fuse; a write of no bytes never arrives;
- the thread that made a thread is not known, so a new thread begins where the first thread of its process is; a child
  is taken for what its parent is when it is first seen, at most 0.2 s after its birth;
- after a lazy unmount what is still open says ENOTCONN, where a kernel would go on until it is closed; after remount()
  of the control a directory that is held open names the new group of that name;
- pseudo-locking makes no device, and nothing is throttled for real: counters follow a simple model (hardware.py);
- counters are sampled every 0.05 s at most; old kernels' words are only told apart by capitals and articles.
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
