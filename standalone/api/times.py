"""Times as the API writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """The wall clock, UTC."""
    return datetime.now(UTC)


def format_time(at: datetime) -> str:
    """RFC 3339 in whole seconds, as metadata and conditions carry it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> datetime | None:
    """A time of an object; None for none and for text that is no time."""
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def age(since: str | None, at: datetime) -> str:
    """Age as kubectl prints it: `45s`, `3m20s`, `5h`, `2d4h`; `<unknown>` without a time."""
    began = parse_time(since)
    if began is None:
        return "<unknown>"
    seconds = int((at - began).total_seconds())
    return "0s" if seconds < 0 else human(seconds)


def human(seconds: int) -> str:
    """A duration in at most two units (apimachinery duration.HumanDuration)."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large}{unit}{small}{small_unit}" if small else f"{large}{unit}"
