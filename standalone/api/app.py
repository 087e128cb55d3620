"""The web application: access, discovery, resources, and one Status for everything that fails."""

from __future__ import annotations

import time
from typing import Final

from aiohttp import web

from slacktide.observe import get_logger
from standalone.api import discovery, errors, negotiation, openapi, paths, reviews
from standalone.api.access import Access
from standalone.api.handlers import Handlers
from standalone.api.metrics import Metrics
from standalone.api.negotiation import Form
from standalone.api.replies import reply_error, reply_json

BODY_LIMIT_BYTES: Final = 3 * 1024 * 1024
"""Largest body that is read, as in kube-apiserver."""

_HEALTH: Final = frozenset({"/healthz", "/livez", "/readyz"})
_LOG = get_logger("api.app")


class App:
    """Answers every request."""

    def __init__(self, handlers: Handlers, access: Access, metrics: Metrics) -> None:
        self._handlers = handlers
        self._access = access
        self._metrics = metrics

    def application(self) -> web.Application:
        """The aiohttp application."""
        application = web.Application(client_max_size=BODY_LIMIT_BYTES)
        application.router.add_route("*", "/{path:.*}", self._handle)
        return application

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        began = time.monotonic()
        target = paths.parse(request.path)
        try:
            response = await self._answer(target, request)
        except errors.ApiError as problem:
            response = reply_error(problem)
        except web.HTTPRequestEntityTooLarge:
            response = reply_error(errors.too_large(BODY_LIMIT_BYTES))
        except RecursionError:
            response = reply_error(errors.bad_request("the body is nested too deeply"))
        except ConnectionError:
            # The client went away in the middle of its answer.
            raise
        except Exception as problem:  # noqa: BLE001 - one request that fails must not end the others; it is logged
            _LOG.exception("request failed", method=request.method, path=request.path)
            response = reply_error(errors.internal(f"{type(problem).__name__}: {problem}"))
        seconds = time.monotonic() - began if isinstance(response, web.Response) else None
        self._metrics.answered(request.method, _name(target), response.status, seconds)
        return response

    async def _answer(self, target: paths.Target | None, request: web.Request) -> web.StreamResponse:
        self._access.check(request)
        if target is not None:
            return await self._handlers.answer(target, request)
        if request.path == reviews.PATH:
            return await reviews.answer(request)
        if request.method not in {"GET", "HEAD"}:
            raise errors.no_such_path()
        return self._document(request)

    def _document(self, request: web.Request) -> web.Response:
        path = "/" + request.path.strip("/")
        if path in _HEALTH:
            return web.Response(text="ok")
        if path == "/version":
            return reply_json(discovery.version())
        if path.startswith("/openapi/v3"):
            found = openapi.document(path)
            if found is None:
                raise errors.no_such_path()
            return reply_json(found)
        form, _ = negotiation.accepted(request.headers.get("Accept", ""))
        body = discovery.document(path, form if path in {"/api", "/apis"} else Form.PLAIN)
        if body is None:
            raise errors.no_such_path()
        response = reply_json(body)
        if body.get("kind") == Form.DISCOVERY.value:
            response.headers["Content-Type"] = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        return response


def _name(target: paths.Target | None) -> str:
    if target is None:
        return ""
    return f"{target.kind.resource}/{target.subresource}" if target.subresource else target.kind.resource
