"""Pure: command line and environment of a container, as Kubernetes defines them.

There are no images here, so what an image would bring (PATH and a few more) comes from the runner's own environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from slacktide.errors import ManifestError
from slacktide.objects import Container, EnvVar, Pod
from standalone.runner.attempts import ContainerId
from standalone.runner.shim.proc import CONTAINER_VARIABLE

INHERITED: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "TZ", "TMPDIR")
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_REFERENCE: Final = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_KEYED: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; `$$` is a literal `$`, and what names no variable stays as it is."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return values.get(match[1], match[0])

    return _REFERENCE.sub(replaced, text)


def environment(
    pod: Pod, container: Container, container_id: ContainerId, inherited: Mapping[str, str], address: str
) -> dict[str, str]:
    """Whole environment of a container's payload. Raises ManifestError for a source that cannot be served."""
    values = {name: inherited[name] for name in INHERITED if name in inherited}
    values.setdefault("PATH", DEFAULT_PATH)
    values["HOSTNAME"] = pod.metadata.name
    for variable in container.env:
        values[variable.name] = _value(pod, container, variable, values, address)
    values[CONTAINER_VARIABLE] = container_id
    return values


def command_line(container: Container, values: Mapping[str, str]) -> list[str]:
    """command and args with references replaced; empty when the container names neither."""
    return [expand(word, values) for word in (*container.command, *container.args)]


def _value(pod: Pod, container: Container, variable: EnvVar, values: Mapping[str, str], address: str) -> str:
    if variable.value_from is None:
        return expand(variable.value, values)
    source = variable.value_from.get("fieldRef")
    if isinstance(source, dict):
        return _field(pod, container, str(source.get("fieldPath", "")), address)
    raise ManifestError(
        f"container {container.name}: env {variable.name} takes its value from "
        f"{', '.join(variable.value_from) or 'nothing'}, which a standalone node has not: "
        "give a plain value or a fieldRef"
    )


def _field(pod: Pod, container: Container, path: str, address: str) -> str:
    meta = pod.metadata
    plain: dict[str, Any] = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
        "status.hostIP": address,
        "status.podIP": address,
    }
    if path in plain:
        return str(plain[path])
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return (meta.labels if keyed[1] == "labels" else meta.annotations).get(keyed[2], "")
    raise ManifestError(
        f"container {container.name}: fieldPath {path!r} is not known here; known: {', '.join(plain)},"
        " metadata.labels['KEY'], metadata.annotations['KEY']"
    )
