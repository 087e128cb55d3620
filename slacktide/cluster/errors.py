"""What can go wrong between us and the Kubernetes API.

ClusterError                    (a SlacktideError)
    CredentialsError            the settings or the kubeconfig cannot be used; nothing was sent
    Unreachable                 no answer: connection, TLS, timeout. Whether the server acted is unknown
        Unreadable              an answer, but not one of the Kubernetes API (a proxy's page, cut JSON)
    ApiError                    the server answered with a Status that says no
        BadRequest 400   Unauthorized 401   Forbidden 403   NotFound 404   Conflict 409   Gone 410
        Invalid 422      TooManyRequests 429                ServerError 5xx
        AlreadyExists           a Conflict of `create`

Source of status codes and reasons: Kubernetes API conventions, "Response Status Kind" and "HTTP Status codes".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from slacktide.errors import SlacktideError


class ClusterError(SlacktideError):
    """Base of everything that the API client raises."""


class CredentialsError(ClusterError):
    """The way to the API is described wrongly: address, kubeconfig, token or certificate."""


class Unreachable(ClusterError):
    """The server gave no answer.

    `dropped` is true where a kept connection ended before any byte of the answer, as happens when the server
    restarts between two calls: a call that may be repeated is then worth one more try at once. `silent` is true where
    a connection stood and nothing came.
    """

    def __init__(self, message: str, *, dropped: bool = False, silent: bool = False) -> None:
        self.dropped = dropped
        self.silent = silent
        super().__init__(message)


class TlsFailed(Unreachable):
    """No connection came to be, because one side does not believe the other's certificate, or speaks no TLS."""


class Unreadable(Unreachable):
    """Something answered that does not speak the Kubernetes API, or the answer was cut short."""


class StatusCause(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of details.causes of a Status."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """details of a Status: which object it is about, and why."""

    name: str = ""
    kind: str = ""
    group: str = ""
    uid: str = ""
    causes: list[StatusCause] | None = None
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is no object (meta/v1 Status)."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int | None = None
    details: StatusDetails | None = None


class ApiError(ClusterError):
    """The server said no.

    status: the HTTP status code. reason: the machine-readable reason of the Status, "" when there was none.
    retry_after: seconds that the server asks us to wait, None when it does not say.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        details: StatusDetails | None = None,
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.details = details if details is not None else StatusDetails()
        super().__init__(f"{message} (HTTP {status}{', ' + reason if reason else ''})")

    @property
    def causes(self) -> list[StatusCause]:
        """details.causes, empty when there are none."""
        return self.details.causes or []

    def has_cause(self, reason: str) -> bool:
        """Whether one of the causes has this reason, for example DisruptionBudget."""
        return any(cause.reason == reason for cause in self.causes)


class BadRequest(ApiError):
    """400: the request makes no sense to the server."""


class Unauthorized(ApiError):
    """401: the server does not know who we are, also after the credentials were read again."""


class Forbidden(ApiError):
    """403: we are known, but lack the right, or the object may not be changed."""


class NotFound(ApiError):
    """404: no such object or resource."""


class Conflict(ApiError):
    """The object is not in the state that the request assumed (resourceVersion, uid, already bound): 409.

    Also a 422 that is about nothing but the uid: so the API server says that a patch meant an older object.
    """


class AlreadyExists(Conflict):
    """409 of a create: an object of that name exists."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object breaks a rule; the message names fields and rules."""


class TooManyRequests(ApiError):
    """429: the server is busy, or a disruption budget has no room; see `retry_after`."""


class ServerError(ApiError):
    """5xx: the server failed."""


_BY_CODE: Final[Mapping[int, type[ApiError]]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}
_MESSAGE_LIMIT: Final = 2000


def from_status(status: Status, code: int, retry_after: float | None = None) -> ApiError:
    """The error for a Status; `code` is the HTTP status, used where the body does not name one."""
    code = status.code or code
    if retry_after is None and status.details is not None and status.details.retry_after_seconds is not None:
        retry_after = float(status.details.retry_after_seconds)
    cls = _BY_CODE.get(code, ServerError if code >= 500 else ApiError)
    if status.reason == "AlreadyExists":
        cls = AlreadyExists
    causes = status.details.causes if status.details is not None else None
    if cls is Invalid and causes and all(cause.field == "metadata.uid" for cause in causes):
        cls = Conflict
    message = status.message or f"the API server answered with HTTP {code} and no message"
    return cls(code, status.reason, message, retry_after, status.details)


def from_response(code: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The error for an HTTP answer of 400 and above.

    A body that is no Status (a proxy's page, "404 page not found") becomes the message, cut at 2,000 characters.
    """
    retry_after = _retry_after(headers.get("Retry-After"))
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:
        status = Status()
    if status.kind != "Status":
        text = body.decode("utf-8", "replace").strip()[:_MESSAGE_LIMIT]
        status = Status(message=text)
    return from_status(status, code, retry_after)


def _retry_after(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        # The other form of the header is a date; the API server never sends it, and clocks may differ.
        return None
    return seconds if 0 <= seconds < float("inf") else None
