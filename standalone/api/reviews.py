"""What may I do: the SelfSubjectAccessReview, which has no object behind it. Whoever gets in here may do everything.

Source: authorization.k8s.io/v1; validation in kubernetes pkg/apis/authorization/validation.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from slacktide.objects import View
from standalone.api import errors
from standalone.api.handlers import read_action
from standalone.api.replies import reply_json

GROUP: Final = "authorization.k8s.io"
KIND: Final = "SelfSubjectAccessReview"
RESOURCE: Final = "selfsubjectaccessreviews"
PATH: Final = f"/apis/{GROUP}/v1/{RESOURCE}"


class _Shape(View, frozen=True):
    """JSON types of the parts that are read."""

    spec: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it for each struct


async def answer(request: web.Request) -> web.Response:
    """Answer a review; ApiError 405, or 400 or 422 for one that asks nothing."""
    if request.method != "POST":
        raise errors.method_not_allowed()
    review = await read_action(request, KIND, f"{GROUP}/v1", "", _Shape)
    spec = review.get("spec") or {}
    if bool(spec.get("resourceAttributes")) == bool(spec.get("nonResourceAttributes")):
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        cause = errors.invalid_value("spec.resourceAttributes", spec.get("resourceAttributes"), detail)
        raise errors.invalid(errors.Target(GROUP, KIND, ""), [cause])
    return reply_json({"kind": KIND, "apiVersion": f"{GROUP}/v1", "metadata": {}, "spec": spec, **_ALLOWED}, 201)


_ALLOWED: Final = {"status": {"allowed": True, "reason": "whoever may use this server may do everything"}}
