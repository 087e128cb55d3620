"""Core scheduling: one cookie a tier, so that the threads of a core run LS or BE at one time, never both.

Where the kernel has it (CONFIG_SCHED_CORE, and SMT: without it the answer is ENODEV), threads with different cookies
do not share a core. A cookie is made by a thread for itself and goes on to others by PR_SCHED_CORE_SHARE_TO; it is
inherited on fork. So two threads of ours hold one each and sleep, a third has none, and the caller takes a cookie
over, hands it on, and takes none again: sharing "no cookie" is the way back.

The numbers of our cookies are written to the state directory before the first is handed on, so that the next agent
knows them: it hands on its own instead, or takes them away where core scheduling is switched off. A cookie of anyone
else (a virtual machine's, say) is left alone, and counted.
Source: Linux Documentation/admin-guide/hw-vuln/core-scheduling.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from slacktide.disk import write_atomically
from slacktide.errors import KernelError
from slacktide.kernel.files import translate
from slacktide.tier import Tier

FILE_NAME: Final = "core-cookies.json"
TIERS: Final = (Tier.LS, Tier.BE)

_PR_SCHED_CORE: Final = 62
GET: Final = 0
CREATE: Final = 1
SHARE_TO: Final = 2
SHARE_FROM: Final = 3
_THREAD: Final = 0
_SELF: Final = 0

Threads = Callable[[], Mapping[Tier, Iterable[int]]]
Prctl = Callable[[int, int], int]
"""(command, thread id) to the cookie for GET, else 0. Raises OSError."""


def prctl(command: int, tid: int) -> int:
    """PR_SCHED_CORE on one thread (0: the caller). Raises OSError."""
    cookie = ctypes.c_uint64()
    address = ctypes.addressof(cookie) if command == GET else 0
    arguments = (ctypes.c_ulong(value) for value in (command, tid, _THREAD, address))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SCHED_CORE, *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return cookie.value


class CoreScheduler:
    """`counters` are totals: core_shared, core_foreign, core_failed. One thread calls `want` and `close`."""

    def __init__(self, state_dir: str, prctl: Prctl = prctl) -> None:
        self._path = os.path.join(state_dir, FILE_NAME)
        self._prctl = prctl
        self._stop = threading.Event()
        self._holders: dict[Tier | None, int] = {}
        self._cookies: dict[Tier, int] = {}
        self._earlier = self._load()
        self.counters: Counter[str] = Counter()

    def want(self, on: bool, threads: Threads) -> list[str]:
        """Give the threads of each tier its cookie, or (not `on`) take ours away; `threads` is asked only if need be.

        Returns sentences about what went wrong.
        """
        if not on and not self._earlier and not self._cookies:
            return []
        try:
            if not self._holders:
                self._hold(on)
            if on and not self._cookies:
                self._make()
        except (OSError, KernelError) as error:
            return [f"no core scheduling: {error}"]
        failed = [
            text for tier, tids in threads().items() if tier in TIERS for text in self._give(tier if on else None, tids)
        ]
        if on:
            return failed
        self._forget()
        return failed

    def close(self) -> None:
        """End the threads that hold cookies. Threads that carry one keep it; `want(False, ...)` takes them away."""
        self._stop.set()

    def _hold(self, on: bool) -> None:
        """Start a thread for each tier (when `on`) and one without a cookie."""
        for tier in (*TIERS, None) if on else (None,):
            ready = threading.Event()
            threading.Thread(target=self._sleep, args=(tier, ready), name="core-cookie", daemon=True).start()
            ready.wait()

    def _sleep(self, tier: Tier | None, ready: threading.Event) -> None:
        self._holders[tier] = threading.get_native_id()
        with contextlib.suppress(OSError):
            if tier is not None:
                self._prctl(CREATE, _SELF)
        ready.set()
        self._stop.wait()

    def _make(self) -> None:
        """Know our cookies, and write them down. Raises OSError, or KernelError where there are none."""
        cookies = {tier: self._prctl(GET, self._holders[tier]) for tier in TIERS}
        if not all(cookies.values()):
            raise KernelError("prctl PR_SCHED_CORE", None, "no cookie could be made")
        write_atomically(self._path, msgspec.json.encode(sorted({*cookies.values(), *self._earlier})))
        self._cookies = cookies

    def _give(self, tier: Tier | None, tids: Iterable[int]) -> list[str]:
        """Hand the cookie of `tier` (None: no cookie) to those that do not have it."""
        target = 0 if tier is None else self._cookies[tier]
        ours = {0, *self._earlier, *self._cookies.values()}
        failed: list[str] = []
        try:
            self._prctl(SHARE_FROM, self._holders[tier])
            for tid in tids:
                self._give_one(tid, target, ours, failed)
        except OSError as error:
            failed.append(f"core scheduling: {translate('prctl PR_SCHED_CORE', error)}")
        finally:
            with contextlib.suppress(OSError):
                self._prctl(SHARE_FROM, self._holders[None])
        return failed

    def _give_one(self, tid: int, target: int, ours: set[int], failed: list[str]) -> None:
        try:
            held = self._prctl(GET, tid)
            if held == target:
                return
            if held not in ours:
                self.counters["core_foreign"] += 1
                return
            self._prctl(SHARE_TO, tid)
            self.counters["core_shared"] += 1
        except ProcessLookupError:
            # It ended: there is nothing to protect.
            return
        except OSError as error:
            self.counters["core_failed"] += 1
            failed.append(f"core scheduling: {translate(f'thread {tid}', error)}")

    def _forget(self) -> None:
        self._cookies, self._earlier = {}, frozenset()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _load(self) -> frozenset[int]:
        """Cookies of an earlier agent; a file that cannot be read is none of ours."""
        try:
            with open(self._path, "rb") as file:
                return frozenset(msgspec.json.decode(file.read(), type=list[int]))
        except (OSError, msgspec.DecodeError):
            return frozenset()
