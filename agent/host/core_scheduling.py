"""Whether this kernel has core scheduling (PR_SCHED_CORE): it is asked for the cookie of this process, no more.

Source: Linux Documentation/admin-guide/hw-vuln/core-scheduling.rst. Without SMT the kernel answers ENODEV.
"""

from __future__ import annotations

import ctypes
from typing import Final

_PR_SCHED_CORE: Final = 62
_GET: Final = 0
_THREAD: Final = 0


def available() -> bool:
    """Whether cookies can be had."""
    cookie = ctypes.c_uint64()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    arguments = (_GET, 0, _THREAD, ctypes.addressof(cookie))
    return bool(prctl(_PR_SCHED_CORE, *(ctypes.c_ulong(argument) for argument in arguments)) == 0)
