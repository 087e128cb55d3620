"""A pod as people and programs see it: status, reason, exit, age. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

import msgspec

from cli.output import MISSING
from cli.podspec import CONTAINER
from slacktide import quantity
from slacktide.errors import QuantityError
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from slacktide.objects import ContainerStatus, Pod, is_terminal, is_terminating
from slacktide.status import PodReport
from slacktide.tier import tier_of

SCHEDULED: Final = "PodScheduled"


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a pod ended. `exit_code` is None where no process of it ended by itself or by a signal (evicted, lost)."""

    exit_code: int | None
    reason: str
    message: str


class PodLine(msgspec.Struct, frozen=True, kw_only=True):
    """One pod in `ps` and `top`. CPU in millicores, memory in bytes; None is not known or not asked for."""

    namespace: str
    name: str
    uid: str
    tier: str
    status: str
    reason: str
    node: str
    cpu_request_millis: int | None
    cpu_used_millis: int | None
    memory_request_bytes: int | None
    memory_used_bytes: int | None
    restarts: int
    age_seconds: float | None
    exit_code: int | None
    throttled_ratio: float | None = None
    quota_millis: int | None = None


class Pods(msgspec.Struct, frozen=True, kw_only=True):
    """What `ps` prints for programs."""

    pods: list[PodLine]


def line(pod: Pod, used: PodReport | None, now: float) -> PodLine:
    """Everything that `ps` shows of a pod; `used` is what the agent measured, `now` seconds since the epoch."""
    end = ending(pod)
    return PodLine(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        tier=tier_of(pod).value,
        status=status(pod),
        reason=reason(pod),
        node=pod.spec.node_name,
        cpu_request_millis=_requested(pod, (BATCH_CPU, quantity.memory_bytes), ("cpu", quantity.cpu_millis)),
        cpu_used_millis=used.usage.cpu_millis if used else None,
        memory_request_bytes=_requested(pod, (BATCH_MEMORY, quantity.memory_bytes), ("memory", quantity.memory_bytes)),
        memory_used_bytes=used.usage.memory_bytes if used else None,
        restarts=sum(container.restart_count for container in pod.status.container_statuses),
        age_seconds=age(pod.metadata.creation_timestamp, now),
        exit_code=end.exit_code if end else None,
        throttled_ratio=used.throttled_ratio if used else None,
        quota_millis=used.quota_millis if used else None,
    )


def main_container(pod: Pod) -> ContainerStatus | None:
    """Status of the container that decides: `main`, or the first one of a pod that somebody else made."""
    statuses = pod.status.container_statuses
    named = [container for container in statuses if container.name == CONTAINER]
    return next(iter(named or statuses), None)


def has_output(pod: Pod) -> bool:
    """Whether the container runs or ran, so that there is a log to read."""
    container = main_container(pod)
    return container is not None and (
        container.state.running is not None or container.state.terminated is not None or container.restart_count > 0
    )


def status(pod: Pod) -> str:
    """Phase of the pod, or Terminating."""
    if is_terminating(pod) and not is_terminal(pod):
        return "Terminating"
    return pod.status.phase or "Pending"


def reason(pod: Pod) -> str:
    """Why the pod is in that status, in as few words as there are; "" where nothing needs saying."""
    if pod.status.reason:
        return _joined(pod.status.reason, pod.status.message)
    container = main_container(pod)
    if container is not None:
        ended, waiting = container.state.terminated, container.state.waiting
        if ended is not None and (ended.exit_code != 0 or ended.reason not in {"", "Completed"}):
            text = _joined(ended.reason or "Error", ended.message)
            return f"{text} (exit code {ended.exit_code})"
        if waiting is not None:
            return _joined(waiting.reason, waiting.message)
    return "" if is_terminal(pod) else waiting_for(pod)


def waiting_for(pod: Pod) -> str:
    """What the scheduler says about a pod that it cannot place; "" when it is placed or was not looked at yet."""
    for condition in pod.status.conditions:
        if condition.type == SCHEDULED and condition.status == "False":
            return _joined(condition.reason, condition.message)
    return ""


def ending(pod: Pod) -> Ending | None:
    """How the pod ended; None while it has not."""
    if not is_terminal(pod):
        return None
    container = main_container(pod)
    ended = container.state.terminated if container else None
    if ended is None:
        success = pod.status.phase == "Succeeded"
        return Ending(
            exit_code=0 if success else None,
            reason=pod.status.reason or pod.status.phase,
            message=pod.status.message,
        )
    code = ended.exit_code
    if ended.signal and code in {0, ended.signal}:
        code = 128 + ended.signal
    return Ending(
        exit_code=code,
        reason=pod.status.reason or ended.reason,
        message=pod.status.message or ended.message,
    )


def age(timestamp: str | None, now: float) -> float | None:
    """Seconds since an API time stamp; None for none, or one that cannot be read."""
    if not timestamp:
        return None
    try:
        then = dt.datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=dt.UTC)
    return max(0.0, now - then.timestamp())


def show_age(seconds: float | None) -> str:
    """Like kubectl: 42s, 5m12s, 3h5m, 8d."""
    if seconds is None:
        return MISSING
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m{whole % 60}s"
    if whole < 3 * 3600:
        return f"{whole // 60}m"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60}m"
    return f"{whole // 86400}d"


def show_cpu(millis: int | None) -> str:
    """Cores with two decimals; '-' when not known."""
    return MISSING if millis is None else f"{millis / 1000:.2f}"


def show_bytes(size: int | None) -> str:
    """Bytes with a binary suffix; '-' when not known."""
    return MISSING if size is None else quantity.format_bytes(size)


def show_share(share: float | None) -> str:
    """A ratio in percent; '-' when not known."""
    return MISSING if share is None else f"{share:.0%}"


def cells(item: PodLine, *, wide: bool = False) -> list[str]:
    """Row of `ps`, as `columns` names it."""
    name = item.name if item.namespace == "default" else f"{item.namespace}/{item.name}"
    return [
        name,
        item.tier,
        item.status,
        f"{show_cpu(item.cpu_request_millis)} / {show_cpu(item.cpu_used_millis)}",
        f"{show_bytes(item.memory_request_bytes)} / {show_bytes(item.memory_used_bytes)}",
        str(item.restarts),
        show_age(item.age_seconds),
        *(_rarely_wanted(item) if wide else ()),
        item.reason,
    ]


def _rarely_wanted(item: PodLine) -> list[str]:
    return [
        item.node or MISSING,
        show_cpu(item.quota_millis),
        show_share(item.throttled_ratio),
        MISSING if item.exit_code is None else str(item.exit_code),
    ]


COLUMNS: Final = ("NAME", "TIER", "STATUS", "CPU REQ/USED", "MEMORY REQ/USED", "RESTARTS", "AGE", "REASON")
WIDE: Final = ("NODE", "QUOTA", "THROTTLED", "EXIT")


def columns(*, wide: bool) -> tuple[str, ...]:
    """Columns of `ps`; with `wide` also those that few need."""
    return (*COLUMNS[:-1], *WIDE, COLUMNS[-1]) if wide else COLUMNS


def by_uid(reports: list[PodReport]) -> Mapping[str, PodReport]:
    """Measured pods by UID; a pod of the same name that came later is another one."""
    return {report.uid: report for report in reports}


def _joined(head: str, tail: str) -> str:
    return f"{head}: {tail}" if head and tail else head or tail


def _requested(pod: Pod, *readers: tuple[str, object]) -> int | None:
    """Sum over the containers of the first resource that any of them asks for; None when none does."""
    for resource, read in readers:
        found = [c.resources.requests[resource] for c in pod.spec.containers if resource in c.resources.requests]
        if found:
            try:
                return sum(read(text) for text in found)  # type: ignore[operator]
            except QuantityError:
                return None
    return None
