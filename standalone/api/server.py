"""The server: database, sockets and the event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import threading
import uuid
from concurrent.futures import Future
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from slacktide.errors import SettingsError
from slacktide.observe import get_logger
from slacktide.sockets import parse_listen, remove_socket, remove_stale_socket
from standalone.api import bootstrap, settle, times
from standalone.api.access import Access, load_token, write_kubeconfig
from standalone.api.app import App
from standalone.api.database import Database
from standalone.api.errors import ApiError
from standalone.api.handlers import Handlers
from standalone.api.listing import Listing
from standalone.api.logservice import LogService
from standalone.api.metrics import Metrics
from standalone.api.settings import ApiSettings, check
from standalone.api.store import Store
from standalone.api.watchhub import WatchHub
from standalone.api.writes import World

NAME_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of generated names: no vowels, nothing that looks like another."""

EXPIRY_SECONDS: Final = 60.0
"""How often old events are looked for."""

_SHUTDOWN_SECONDS: Final = 2.0
_LOG = get_logger("api.server")


def real_world() -> World:
    """Decisions with the machine's clock and chance."""
    chance = random.SystemRandom()
    return World(times.now, lambda: str(uuid.uuid4()), lambda: "".join(chance.choices(NAME_ALPHABET, k=5)))


class ApiServer:
    """Embedded API server. `start` returns when it serves; use from one thread."""

    def __init__(self, settings: ApiSettings, registry: CollectorRegistry, world: World | None = None) -> None:
        """SettingsError when the settings do not fit together; nothing is opened yet."""
        self._settings = check(settings)
        self._world = world or real_world()
        self._metrics = Metrics(registry)
        self._hub = WatchHub(self._metrics.cut_off)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._store: Store | None = None
        self.address = ""
        """HOST:PORT of the TCP listener, "" without one."""

    def start(self) -> None:
        """Open and serve; StateError for the database, SettingsError for sockets and token."""
        database = Database(self._settings.database, self._settings.database_limit_bytes)
        sockets: list[socket.socket] = []
        try:
            store = Store(database, settle=lambda transaction: settle.settle(transaction, self._world))
            self._store = store
            sockets.append(_unix_socket(self._settings.socket))
            token = ""
            if self._settings.listen:
                token = load_token(self._settings.token_file)
                sockets.append(_tcp_socket(self._settings.listen))
                self.address = _shown(sockets[-1])
                if self._settings.kubeconfig_file:
                    write_kubeconfig(self._settings.kubeconfig_file, self.address, token)
        except BaseException:
            database.close()
            self._close(sockets)
            raise
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(store, sockets, token, started)), name="api", daemon=True
        )
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._thread.join()
            store.close()
            self._close(sockets)
            raise

    def stop(self) -> None:
        """End watches and requests, commit what is queued, close everything. May be called again."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def alive(self) -> str | None:
        """What is wrong, or None: the event loop must be running."""
        return None if self._thread is not None and self._thread.is_alive() else "the event loop has ended"

    def _close(self, sockets: list[socket.socket]) -> None:
        for item in sockets:
            if item.family == socket.AF_UNIX:
                remove_socket(self._settings.socket)
            item.close()

    async def _serve(self, store: Store, sockets: list[socket.socket], token: str, started: Future[None]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        logs = LogService(store, self._settings.log_dir)
        handlers = Handlers(store, Listing(store, self._hub), logs, self._world)
        application = App(handlers, Access(token), self._metrics).application()
        runner = web.AppRunner(
            application, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS
        )
        try:
            store.start(self._loop)
            store.listen(self._hub.publish)
            self._metrics.observe(store, self._hub)
            await store.decide(lambda transaction: bootstrap.first_objects(transaction, self._world))
            await runner.setup()
            for item in sockets:
                await web.SockSite(runner, item, backlog=128).start()
        except BaseException as problem:  # noqa: BLE001 - it is raised again in the thread that waits in start()
            await runner.cleanup()
            started.set_exception(problem)
            return
        started.set_result(None)
        expiry = asyncio.create_task(self._expire(store))
        await self._stop.wait()
        self._hub.close()
        logs.close()
        expiry.cancel()
        remove_socket(self._settings.socket)
        await runner.cleanup()
        await asyncio.to_thread(store.close)

    async def _expire(self, store: Store) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            try:
                await store.decide(lambda transaction: bootstrap.expire_events(transaction, self._world.now()))
            except ApiError as problem:
                _LOG.warning("old events not removed", error=problem.message)


def _unix_socket(path: str) -> socket.socket:
    remove_stale_socket(path)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(path)
        # Nobody can connect before listen(), which comes later.
        os.chmod(path, 0o600)
    except OSError as problem:
        found.close()
        raise SettingsError([f"socket {path!r} cannot be made: {problem.strerror}"]) from problem
    return found


def _tcp_socket(listen: str) -> socket.socket:
    where = parse_listen(listen)
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((where.host, where.port))
    except OSError as problem:
        found.close()
        raise SettingsError([f"listen {listen!r} cannot be had: {problem.strerror}"]) from problem
    return found


def _shown(found: socket.socket) -> str:
    host, port = found.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
