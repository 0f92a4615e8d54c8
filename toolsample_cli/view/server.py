"""The web server of `toolsample view`: loopback only, one token, one origin, data never markup."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import jinja2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from toolsample_cli.errors import ToolsampleError
from toolsample_cli.json_types import Row
from toolsample_cli.terminal import json_line, printable
from toolsample_cli.view.pages import Pages

HERE = Path(__file__).resolve().parent
HOSTS = ("127.0.0.1", "localhost", "[::1]")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard(BaseHTTPMiddleware):
    """Lets through only what comes to a loopback name, from our own pages, by whoever holds the token.

    The token in the first address becomes a cookie, so that no later address holds it. A foreign Host is how DNS
    rebinding looks, a foreign Origin how another page's request does.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        super().__init__(app)
        self._token, self._cookie = token, f"toolsample-{port}"
        self._hosts = {f"{name}:{port}" for name in HOSTS}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def dispatch(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """The page, or why there is none."""
        response = self._refusal(request)
        if response is None and "token" in request.query_params:
            response = self._enter(request)
        if response is None:
            response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response

    def _refusal(self, request: Request) -> Response | None:
        origin = request.headers.get("origin")
        if request.headers.get("host") not in self._hosts or (origin is not None and origin not in self._origins):
            return PlainTextResponse("this page answers only at the address that `toolsample view` printed", 403)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("read-only", 405)
        given = request.query_params.get("token") or request.cookies.get(self._cookie) or ""
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return PlainTextResponse("open the address that `toolsample view` printed: it holds a token", 403)
        return None

    def _enter(self, request: Request) -> Response:
        left = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
        address = request.url.replace_query_params(**dict(left)) if left else request.url.replace(query="")
        parts = urlsplit(str(address))
        response = RedirectResponse(parts.path + (f"?{parts.query}" if parts.query else ""), 303)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        return response


def make_app(folders: list[Path], token: str, port: int) -> Starlette:
    """The application over these run folders."""
    pages = Pages(folders)
    environment = templates()

    def route(name: str, make: Callable[[Row], Row]) -> Route:
        def endpoint(request: Request) -> Response:
            try:
                values = make(dict(request.query_params))
                return HTMLResponse(environment.get_template(f"{name}.html").render(**values))
            except ToolsampleError as error:
                page = environment.get_template("error.html").render(message=str(error), hint=error.hint, title="error")
                return HTMLResponse(page, 422)

        return Route("/" if name == "overview" else f"/{name}", endpoint)

    routes = [
        route("overview", pages.overview),
        route("round", pages.round),
        route("task", pages.task),
        route("sample", pages.sample),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token, port=port)])


def templates() -> jinja2.Environment:
    """Templates that escape every value and show every control or invisible character."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = _data
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    return environment


def _data(value: object) -> object:
    """A value as JSON inside a script element that nothing runs; no character of it can end the element."""
    text = json_line(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return jinja2.utils.markupsafe.Markup(text)


def serve(folders: list[Path], port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` gets the address with its token. Port 0 takes a free one."""
    import socket

    import uvicorn

    from toolsample_cli.errors import StageFailure

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise StageFailure(f"port {port}: {error.strerror}", hint="--port takes another, 0 any free one") from None
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    app = make_app(folders, token, port)
    ready(f"http://127.0.0.1:{port}/?token={token}")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
    server.run(sockets=[listener])
