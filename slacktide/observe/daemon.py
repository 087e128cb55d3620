"""The frame of every daemon's `main()`: settings, logs, metrics, endpoint, signals, body, exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter

from slacktide import __version__
from slacktide.errors import SettingsError, SlacktideError
from slacktide.observe.health import Health
from slacktide.observe.logger import get_logger
from slacktide.observe.logs import flush_logs, setup_logging
from slacktide.observe.metrics import build_info
from slacktide.observe.otel import start as start_traces
from slacktide.observe.server import ObserveServer, Queried, Route
from slacktide.observe.signals import StopSignals
from slacktide.settings import DaemonSettings, Loaded, load, reloaded

S = TypeVar("S", bound=DaemonSettings)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_SETTINGS: Final = 2

PRIVATE: Final = 0o077
"""umask of a daemon: histories, spools and sockets say who uses what on this node."""


class Daemon(Generic[S]):
    """What `run_daemon` hands to a daemon's body.

    `stop` is the one event to watch, `health` and `routes` may be added to at any time, metrics go to `registry`.
    `settings` is always the one in force; `on_reload(callback)` tells of a change.
    """

    def __init__(self, component: str, loaded: Loaded[S], stop: StopSignals, argv: Sequence[str]) -> None:
        self.component = component
        self.stop = stop
        self.registry = CollectorRegistry()
        self.health = Health()
        self.routes: dict[str, Route | Queried] = {}
        self.address = ""
        """Where the observe endpoint listens; empty when it does not."""
        self._loaded = loaded
        self._argv = argv
        self._on_reload: Callable[[S], None] | None = None
        self._log = get_logger(component)
        self._reloads = Counter(
            "slacktide_settings_reloads",
            "Reloads of the settings on SIGHUP, by result: applied, restart_needed, refused.",
            ["result"],
            registry=self.registry,
        )

    @property
    def settings(self) -> S:
        """Settings in force."""
        return self._loaded.settings

    @property
    def loaded(self) -> Loaded[S]:
        """Settings in force and their sources."""
        return self._loaded

    def on_reload(self, callback: Callable[[S], None]) -> None:
        """Call `callback` with the new settings after a reload, on the thread that waits on `stop`."""
        self._on_reload = callback

    def reload(self, environ: Mapping[str, str] | None = None) -> None:
        """Read the settings again: apply what can be applied, log what cannot, keep the old ones when they are bad."""
        try:
            outcome = reloaded(self._loaded, self._argv, environ)
        except SettingsError as error:
            self._reloads.labels("refused").inc()
            for problem in error.problems:
                self._log.warning("settings not reloaded: the old ones stay in force", problem=problem)
            return
        self._loaded = outcome.loaded
        self._reloads.labels("restart_needed" if outcome.needs_restart else "applied").inc()
        setup_logging(self.component, self.settings.observe, self.registry, queued=True)
        self._log.info("settings reloaded", applied=outcome.applied)
        if outcome.needs_restart:
            self._log.warning("settings changed that need a restart", keys=outcome.needs_restart)
        if outcome.applied and self._on_reload is not None:
            self._on_reload(self.settings)


def run_daemon(
    component: str,
    settings_type: type[S],
    body: Callable[[Daemon[S]], int | None],
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    about: str = "",
) -> int:
    """Run `body` until it returns; returns the exit code. Call it from the main thread, before any other starts.

    Exit codes: what `body` returns (None is 0); 1 when it fails, with the reason logged; 2 for settings that cannot
    be used, each problem a line on standard error. `body` returns soon after `daemon.stop` is set: after 8 s the
    process leaves by itself. The endpoint serves before `body` starts, so a daemon that waits for its peers is
    live but not ready. What it writes is for its own user only.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    variables = os.environ if environ is None else environ
    inherited = os.umask(PRIVATE)
    try:
        # Signals first: a SIGHUP that comes while the settings are read must lead to a second reading.
        with StopSignals() as stop:
            loaded = load(settings_type, component, arguments, variables, about)
            return _run(Daemon(component, loaded, stop, arguments), body, variables)
    except SettingsError as error:
        sys.stderr.write("".join(f"slacktide {component}: {problem}\n" for problem in error.problems))
        return EXIT_SETTINGS
    finally:
        os.umask(inherited)


def _run(daemon: Daemon[S], body: Callable[[Daemon[S]], int | None], environ: Mapping[str, str]) -> int:
    log = get_logger(daemon.component)
    setup_logging(daemon.component, daemon.settings.observe, daemon.registry, queued=True)
    build_info(daemon.registry, daemon.component)
    daemon.health.add_ready("stopping", lambda: daemon.stop.reason or None, part=False)
    daemon.stop.on_reload(lambda: daemon.reload(environ))
    end_traces = start_traces(daemon.component, daemon.settings.observe)
    server = ObserveServer(daemon.settings.observe.listen, daemon.registry, daemon.health, daemon.routes)
    server.start()
    daemon.address = server.address
    log.info("started", version=__version__, observe=server.address)
    try:
        code = body(daemon) or EXIT_OK
    except SettingsError:
        raise
    except SlacktideError as error:
        log.error("failed", error=str(error), kind=type(error).__name__)  # noqa: TRY400 - the sentence says it all
        code = EXIT_FAILED
    except Exception:
        log.exception("failed on an unexpected error")
        code = EXIT_FAILED
    finally:
        server.stop()
        end_traces()
        flush_logs()
    log.info("stopped", code=code)
    flush_logs()
    return code
