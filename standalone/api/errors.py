"""Failures of the API as Status bodies, worded as kube-apiserver words them.

Source: apimachinery pkg/api/errors and pkg/util/validation/field (messages, reasons, causes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

OPTIMISTIC_LOCK: Final = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(frozen=True)
class Target:
    """What a failure is about: `pods` (resource) or `Pod` (kind) of `group`, and its name."""

    group: str
    kind: str
    name: str = ""

    @property
    def qualified(self) -> str:
        """`leases.coordination.k8s.io`; without a group just `pods`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


@dataclass(frozen=True)
class Cause:
    """One entry of details.causes: a machine-readable reason, a sentence, and the path of the field."""

    reason: str
    message: str
    field: str = ""

    def body(self) -> dict[str, str]:
        """As JSON; what is empty is left out."""
        found = {"reason": self.reason, "message": self.message, "field": self.field}
        return {key: value for key, value in found.items() if value}


class ApiError(Exception):
    """A request that is answered with a Status of `code` (HTTP), `reason` and `message`."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        target: Target | None = None,
        causes: tuple[Cause, ...] = (),
        retry_after_seconds: int | None = None,
        uid: str = "",
        continue_token: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.target = target
        self.causes = causes
        self.retry_after_seconds = retry_after_seconds
        self.uid = uid
        self.continue_token = continue_token

    def status(self) -> dict[str, Any]:
        """The Status object that goes out as body (or as an ERROR event of a watch)."""
        details: dict[str, Any] = {}
        if self.target is not None:
            details = {"name": self.target.name, "group": self.target.group, "kind": self.target.kind, "uid": self.uid}
            details = {key: value for key, value in details.items() if value}
        if self.causes:
            details["causes"] = [cause.body() for cause in self.causes]
        if self.retry_after_seconds:
            details["retryAfterSeconds"] = self.retry_after_seconds
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.continue_token} if self.continue_token else {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if details:
            body["details"] = details
        return body | {"code": self.code}


def success(target: Target | None = None, uid: str = "", code: int | None = None) -> dict[str, Any]:
    """The Status of a request that worked and has no object to show."""
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if target is not None:
        details = {"name": target.name, "group": target.group, "kind": target.kind, "uid": uid}
        body["details"] = {key: value for key, value in details.items() if value}
    if code is not None:
        body["code"] = code
    return body


def bad_request(message: str, causes: tuple[Cause, ...] = ()) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(400, "BadRequest", message, causes=causes)


def unauthorized() -> ApiError:
    """401: no token, or not ours."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(target: Target | None, why: str, causes: tuple[Cause, ...] = ()) -> ApiError:
    """403: understood, and never allowed as it stands."""
    if target is None:
        return ApiError(403, "Forbidden", f"forbidden: {why}", causes=causes)
    if not target.name:
        return ApiError(403, "Forbidden", f"{target.qualified} is forbidden: {why}", target=target, causes=causes)
    message = f'{target.qualified} "{target.name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", message, target=target, causes=causes)


def not_found(target: Target) -> ApiError:
    """404 for an object that is not there."""
    return ApiError(404, "NotFound", f'{target.qualified} "{target.name}" not found', target=target)


def no_such_path() -> ApiError:
    """404 for a resource or path that is not served."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed() -> ApiError:
    """405: the resource is served, this verb is not."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def already_exists(target: Target) -> ApiError:
    """409 for a name that is taken."""
    return ApiError(409, "AlreadyExists", f'{target.qualified} "{target.name}" already exists', target=target)


def conflict(target: Target, why: str = OPTIMISTIC_LOCK) -> ApiError:
    """409 for a precondition (version, uid, state) that does not hold."""
    message = f'Operation cannot be fulfilled on {target.qualified} "{target.name}": {why}'
    return ApiError(409, "Conflict", message, target=target)


def expired(message: str, continue_token: str = "") -> ApiError:
    """410: the version asked for is no longer in the history."""
    return ApiError(410, "Expired", message, continue_token=continue_token)


def too_large(limit: int) -> ApiError:
    """413: body above the limit (bytes)."""
    message = f"Request entity is too large: limit is {limit}"
    return ApiError(413, "RequestEntityTooLarge", message)


def unsupported_media_type(message: str) -> ApiError:
    """415: a body in a form that is not read."""
    return ApiError(415, "UnsupportedMediaType", message)


def not_acceptable(accepted: str) -> ApiError:
    """406: an answer in a form that is not written."""
    message = f"only the following media types are accepted: {accepted}"
    return ApiError(406, "NotAcceptable", message)


def invalid(target: Target, causes: list[Cause]) -> ApiError:
    """422 with one cause for each field that is wrong."""
    said = [f"{cause.field}: {cause.message}" for cause in causes]
    what = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    kind = f"{target.kind}.{target.group}" if target.group else target.kind
    message = f'{kind} "{target.name}" is invalid: {what}'
    return ApiError(422, "Invalid", message, target=target, causes=tuple(causes))


def too_many_requests(message: str, retry_after_seconds: int, causes: tuple[Cause, ...] = ()) -> ApiError:
    """429: try again, after so many seconds or (0) when something has changed."""
    return ApiError(429, "TooManyRequests", message, causes=causes, retry_after_seconds=retry_after_seconds)


def internal(message: str) -> ApiError:
    """500: the server could not do it."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}", causes=(Cause("", message),))


def too_large_version(wanted: int, current: int) -> ApiError:
    """504 for a version that this server has not reached."""
    message = f"Too large resource version: {wanted}, current: {current}"
    cause = Cause("ResourceVersionTooLarge", "Too large resource version")
    return ApiError(504, "Timeout", message, causes=(cause,), retry_after_seconds=1)


def invalid_value(field: str, value: object, detail: str) -> Cause:
    """Cause for a value that is there and wrong."""
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {detail}", field)


def required(field: str, detail: str = "") -> Cause:
    """Cause for a value that is missing."""
    return Cause("FieldValueRequired", f"Required value: {detail}" if detail else "Required value", field)


def duplicate(field: str, value: object) -> Cause:
    """Cause for a value that must be unique."""
    return Cause("FieldValueDuplicate", f"Duplicate value: {_shown(value)}", field)


def unsupported(field: str, value: object, allowed: tuple[str, ...]) -> Cause:
    """Cause for a value outside an enumeration."""
    names = ", ".join(f'"{name}"' for name in sorted(allowed))
    return Cause("FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {names}", field)


def forbidden_field(field: str, detail: str) -> Cause:
    """Cause for a field that may not be set or changed here."""
    return Cause("FieldValueForbidden", f"Forbidden: {detail}", field)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
