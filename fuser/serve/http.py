"""The protocol's paths over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from fuser.serve.access_log import write
from fuser.serve.index_page import POLICY, index_page
from fuser.serve.protocol import BINARY_HEADER, read_request, write_answer
from fuser.serve.service import Service, internal
from fuser.serve.tensors import RequestError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(service: Service) -> web.Application:
    """The application that answers for a service."""
    paths = Paths(service)
    app = web.Application(middlewares=[paths.errors], client_max_size=service.limits.request_bytes)
    routes = [web.get("/", paths.index), web.get("/metrics", paths.metrics)]
    routes += [web.get("/v2", paths.server)]
    routes += [web.get(f"/v2/health/{kind}", paths.health) for kind in ("live", "ready")]
    for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            web.get(model, paths.model), web.get(f"{model}/ready", paths.model_ready),
            web.post(f"{model}/infer", paths.infer),
        ]  # fmt: skip
    app.add_routes(routes)
    return app


class Paths:
    """What each path does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @web.middleware
    async def errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Whatever goes wrong is an object of JSON with one string, as the protocol has it."""
        began, status = time.monotonic(), 500
        try:
            try:
                response = await handler(request)
            except RequestError as error:
                response = _json({"error": str(error)}, error.status)
            except web.HTTPException as error:
                response = _json({"error": error.reason}, error.status)
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
            except asyncio.CancelledError:
                status = 499  # the client is gone
                raise
            status = response.status
        finally:
            asked = f"{request.method} {request.rel_url.raw_path}"
            write(self._service.access_log, request.remote or "-", "http", asked, status, began)
        if self._service.draining:
            response.force_close()
        return response

    async def index(self, request: web.Request) -> web.Response:
        return web.Response(
            text=index_page(self._service.models, request.host), content_type="text/html",
            headers={"Content-Security-Policy": POLICY},
        )  # fmt: skip

    async def server(self, request: web.Request) -> web.Response:
        return _json(self._service.metadata())

    async def health(self, request: web.Request) -> web.Response:
        ready = not self._service.draining or request.path.endswith("/live")
        return web.Response(status=200 if ready else 503)

    async def model(self, request: web.Request) -> web.Response:
        return _json(self._service.model(**_names(request)).metadata())

    async def model_ready(self, request: web.Request) -> web.Response:
        self._service.model(**_names(request))
        return await self.health(request)

    async def metrics(self, request: web.Request) -> web.Response:
        text = self._service.metrics.text()
        return web.Response(body=text, headers={"Content-Type": self._service.metrics.content_type})

    async def infer(self, request: web.Request) -> web.Response:
        began, status = time.monotonic(), 500
        try:
            with self._service.accepted():
                response = await self._infer(request)
            status = response.status
            return response
        except (RequestError, web.HTTPException) as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = 499  # the client is gone
            raise
        except Exception as error:
            raise internal(error) from error
        finally:
            self._service.answered(request.match_info["model"], "http", status, began)

    async def _infer(self, request: web.Request) -> web.Response:
        model = self._service.model(**_names(request))
        header = request.headers.get(BINARY_HEADER)
        if header is not None and not (header.isascii() and header.isdigit() and len(header) < 20):
            raise RequestError(f"{BINARY_HEADER} is no number of bytes")
        asked = read_request(model, await self._body(request), int(header) if header else None)
        outputs = await self._service.infer(model, asked.feeds)
        body, json_bytes = write_answer(model, asked, outputs)
        if json_bytes is None:
            return web.Response(body=body, content_type="application/json")
        return web.Response(
            body=body, content_type="application/octet-stream",
            headers={BINARY_HEADER: str(json_bytes)},
        )  # fmt: skip

    async def _body(self, request: web.Request) -> bytes:
        limits = self._service.limits
        if (request.content_length or 0) > limits.request_bytes:  # before it is sent
            raise RequestError(f"the request has more than {limits.request_bytes} bytes", 413)
        try:
            if request.content.is_eof():  # all of it is here
                return await request.read()
            async with asyncio.timeout(limits.seconds):
                return await request.read()
        except TimeoutError as error:
            what = f"the request did not arrive within {limits.seconds:g} s"
            raise RequestError(what, 408) from error
        except web.RequestPayloadError as error:  # its encoding or its chunks are broken
            raise RequestError(f"the body cannot be read: {error}") from error
        except ConnectionError as error:
            raise RequestError("the connection ended before the body", 499) from error


def _names(request: web.Request) -> dict[str, str]:
    found = request.match_info
    return {"name": found["model"], "version": found.get("version", "")}


def _json(fields: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(fields), status=status, content_type="application/json")
