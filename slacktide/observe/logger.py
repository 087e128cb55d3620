"""The logger that modules hold: a name, and structlog behind it from the first line that is really written.

structlog brings half a second of imports with it (rich, for one). A command that logs nothing does not pay for that,
although the modules it stands on have loggers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import structlog


class Logger:
    """Logs events with fields; a level that is not written costs one comparison."""

    def __init__(self, name: str) -> None:
        self._standard = logging.getLogger(name)
        self._bound: structlog.stdlib.BoundLogger | None = None

    def debug(self, event: str, /, **fields: Any) -> None:
        """What only a developer wants to know."""
        if self._standard.isEnabledFor(logging.DEBUG):
            self._real().debug(event, **fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """What happens."""
        if self._standard.isEnabledFor(logging.INFO):
            self._real().info(event, **fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """What somebody should look at."""
        if self._standard.isEnabledFor(logging.WARNING):
            self._real().warning(event, **fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """What went wrong."""
        if self._standard.isEnabledFor(logging.ERROR):
            self._real().error(event, **fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """What went wrong, with the exception that is being handled and its trace."""
        if self._standard.isEnabledFor(logging.ERROR):
            self._real().exception(event, **fields)

    def _real(self) -> structlog.stdlib.BoundLogger:
        if self._bound is None:
            from slacktide.observe.logs import bound_logger

            self._bound = bound_logger(self._standard.name)
        return self._bound


def get_logger(name: str) -> Logger:
    """Logger with a dotted name, such as `agent.loop`: `log.info("throttled", pod="default/job", reason="...")`."""
    return Logger(name)
