"""The pod that `slacktide run` makes. Pure: options in, manifest out."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slacktide import quantity
from slacktide.errors import ManifestError, QuantityError
from slacktide.names import BATCH_CPU, BATCH_MEMORY, HOST_PROCESS_IMAGE, SCHEDULER_NAME, TIER_LABEL

CONTAINER: Final = "main"
LABEL_LENGTH: Final = 63
REQUEST_ANNOTATION: Final = "slacktide.io/request"
"""Names the `slacktide run` that made a pod."""
MEMORY_FLOOR_BYTES: Final = 1 << 20
"""Less memory than this is no process but a forgotten unit."""

PASSED: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TZ", "TMPDIR", "VIRTUAL_ENV")
"""Variables of the caller that a command needs to find its tools. The rest may hold secrets, and a pod is readable."""

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for. Quantities are text as typed; "" is not given."""

    command: Sequence[str]
    tier: str = "be"
    name: str = ""
    namespace: str = "default"
    cpu: str = "1"
    memory: str = "256Mi"
    limit_cpu: str = ""
    limit_memory: str = ""
    grace_seconds: int = 10
    directory: str = "/"
    env: Mapping[str, str]


def manifest(wish: Wish, request: str) -> dict[str, Any]:
    """Body of the pod. Raises ManifestError or QuantityError, naming the option.

    `request` is random hex: it makes the name unique, and tells our own pod from another's of the same name when
    the answer to its creation was lost.
    """
    meta: dict[str, Any] = {"namespace": dns_label(wish.namespace, "--namespace"), "labels": {TIER_LABEL: wish.tier}}
    meta["name"] = dns_label(wish.name, "--name") if wish.name else f"{stem(wish.command[0])}-{request[:5]}"
    meta["annotations"] = {REQUEST_ANNOTATION: request}
    resources = _resources(wish)
    container = {
        "name": CONTAINER,
        "image": HOST_PROCESS_IMAGE,
        "command": [literal(word) for word in wish.command],
        "workingDir": wish.directory,
        "env": [{"name": name, "value": literal(value)} for name, value in sorted(wish.env.items())],
        "resources": resources,
    }
    spec = {
        "schedulerName": SCHEDULER_NAME,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": wish.grace_seconds,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def dns_label(text: str, option: str) -> str:
    """`text` if it is a DNS label (RFC 1123). Raises ManifestError."""
    if len(text) > LABEL_LENGTH or not _LABEL.fullmatch(text):
        raise ManifestError(
            f"{option} {text!r} is no DNS label: use at most {LABEL_LENGTH} of a-z, 0-9 and '-', "
            "with a letter or digit at both ends"
        )
    return text


def stem(program: str) -> str:
    """A name for pods of this program: its file name as a DNS label, short enough for a random end."""
    label = re.sub(r"[^a-z0-9]+", "-", os.path.basename(program).lower()).strip("-")[:40].strip("-")
    return label or "pod"


def literal(text: str) -> str:
    """`text` as it must stand in a pod so that it arrives unchanged.

    Kubernetes reads `$(NAME)` in commands and values as a variable and `$$` as one dollar sign.
    """
    return text.replace("$", "$$") if "$$" in text or "$(" in text else text


def environment(caller: Mapping[str, str], assignments: Sequence[str]) -> dict[str, str]:
    """What the command gets: the tool-finding part of `caller`, `NAME` copied from it, `NAME=VALUE` set.

    Raises ManifestError for something that is no variable name, or a name that the caller does not have.
    """
    chosen = {name: caller[name] for name in PASSED if name in caller}
    chosen |= {name: value for name, value in caller.items() if name.startswith("LC_")}
    for assignment in assignments:
        name, given, value = assignment.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise ManifestError(f"--env {assignment!r}: {name!r} is no variable name; write NAME=VALUE or NAME")
        if not given and name not in caller:
            raise ManifestError(f"--env {name}: there is no such variable here; write {name}=VALUE")
        chosen[name] = value if given else caller[name]
    return chosen


def _resources(wish: Wish) -> dict[str, dict[str, str]]:
    """Batch resources (whole millicores and bytes) for best-effort, plain ones otherwise; limits likewise.

    The kubelet does nothing about limits of batch resources: the agent makes them true.
    """
    advice = "write 500m for half a CPU, 2 for two"
    cpu = _positive("--cpu", wish.cpu, quantity.cpu_millis, 1, advice)
    memory = _memory("--memory", wish.memory)
    limits = {}
    if wish.limit_cpu:
        limits["cpu"] = _positive("--limit-cpu", wish.limit_cpu, quantity.cpu_millis, cpu, f"--cpu is {wish.cpu}")
    if wish.limit_memory:
        limits["memory"] = _memory("--limit-memory", wish.limit_memory)
        if limits["memory"] < memory:
            raise QuantityError(f"--limit-memory {wish.limit_memory} is below --memory {wish.memory}")
    named = _batch if wish.tier == "be" else _plain
    requests = named({"cpu": cpu, "memory": memory})
    return {"requests": requests, "limits": named(limits)} if limits else {"requests": requests}


def _batch(amounts: Mapping[str, int]) -> dict[str, str]:
    return {{"cpu": BATCH_CPU, "memory": BATCH_MEMORY}[name]: str(amount) for name, amount in amounts.items()}


def _plain(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in amounts.items()}


def _memory(option: str, text: str) -> int:
    advice = f"that is less than 1Mi; write a unit, such as {text.rstrip('m')}Mi"
    return _positive(option, text, quantity.memory_bytes, MEMORY_FLOOR_BYTES, advice)


def _positive(option: str, text: str, read: Any, least: int, advice: str) -> int:
    try:
        value = read(text)
    except QuantityError as error:
        raise QuantityError(f"{option}: {error}") from None
    if value < least:
        raise QuantityError(f"{option} {text!r} is too little: {advice}")
    assert isinstance(value, int)
    return value
