"""Fields that the API does not know, for requests that ask with `fieldValidation=Strict` as `kubectl apply` does.

The known fields come from the models of the kubernetes package. It takes a second to load, so that happens on the
first such request and off the event loop. Without Strict, unknown fields are stored as they came.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from standalone.api.errors import Cause, bad_request, invalid, unsupported
from standalone.api.errors import Target as Subject
from standalone.api.kinds import EVENTS, Kind

LEVELS: Final = ("Ignore", "Strict", "Warn")
_LIST: Final = re.compile(r"[Ll]ist\[(.+)\]")


def is_strict(level: str) -> bool:
    """Whether unknown fields are to be refused; ApiError 422 for a level that does not exist."""
    if level and level not in LEVELS:
        raise invalid(Subject("meta.k8s.io", "CreateOptions"), [unsupported("fieldValidation", level, LEVELS)])
    return level == "Strict"


@cache
def models() -> Any:
    """The module with all models; slow the first time."""
    return importlib.import_module("kubernetes.client.models")


def unknown_fields(kind: Kind, obj: Mapping[str, Any]) -> list[str]:
    """Paths of the fields of a decoded object that its kind does not have, such as `spec.containers[0].imagee`."""
    name = "CoreV1Event" if kind is EVENTS else f"V1{kind.kind}"
    return list(_unknown(name, obj, ""))


def _unknown(type_name: str, value: Any, path: str) -> Iterator[str]:
    inner = _LIST.fullmatch(type_name)
    if inner is not None:
        for number, item in enumerate(value if isinstance(value, list) else ()):
            yield from _unknown(inner[1], item, f"{path}[{number}]")
        return
    model = getattr(models(), type_name, None)
    if model is None or not isinstance(value, dict):
        return
    types = {model.attribute_map[field]: type_ for field, type_ in model.openapi_types.items()}
    for key, item in value.items():
        where = f"{path}.{key}" if path else key
        if key in types:
            yield from _unknown(types[key], item, where)
        else:
            yield where


def refuse(kind: Kind, unknown: list[str]) -> None:
    """ApiError 400 that names the unknown fields, if there are any."""
    if unknown:
        said = ", ".join(f'unknown field "{path}"' for path in unknown)
        text = (
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: strict decoding error: {said}'
        )
        raise bad_request(text, tuple(Cause("FieldValueInvalid", "unknown field", path) for path in unknown))
