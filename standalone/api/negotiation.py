"""Which form of answer a client accepts. Source: apiserver endpoints/handlers/negotiation."""

from __future__ import annotations

import enum
from typing import Final

from standalone.api.errors import ApiError, not_acceptable

META_GROUP: Final = "meta.k8s.io"
DISCOVERY_GROUP: Final = "apidiscovery.k8s.io"
OFFERED: Final = "application/json"


class Form(enum.Enum):
    """Form of an answer, all of them JSON."""

    PLAIN = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"
    DISCOVERY = "APIGroupDiscoveryList"


def accepted(header: str) -> tuple[Form, str]:
    """The first form in an Accept header that we write, and its meta version; ApiError 406 when there is none."""
    for entry in header.split(",") if header.strip() else ["*/*"]:
        media, *parameters = (part.strip() for part in entry.split(";"))
        if media not in {"application/json", "application/*", "*/*"}:
            continue
        found = dict(part.partition("=")[::2] for part in parameters)
        form = _form(found)
        if form is not None:
            return form, found.get("v", "v1")
    raise refused()


def _form(parameters: dict[str, str]) -> Form | None:
    name, group, version = parameters.get("as", ""), parameters.get("g", ""), parameters.get("v", "")
    if not name:
        return Form.PLAIN
    if group == META_GROUP and version in {"v1", "v1beta1"} and name in {form.value for form in Form}:
        return Form(name)
    if (group, version, name) == (DISCOVERY_GROUP, "v2", Form.DISCOVERY.value):
        return Form.DISCOVERY
    return None


def refused() -> ApiError:
    """406 that names what we write."""
    return not_acceptable(OFFERED)
