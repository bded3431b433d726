"""Pages for a browser: login and API documentation. No page loads anything from another host."""

from __future__ import annotations

import asyncio
import html
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import fastapi_offline
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles

from tunefleet.api import static_ui
from tunefleet.api.auth import CoreDep, address_of, identify, refuse_foreign_page, set_session
from tunefleet.errors import AuthError, TooManyError, TunefleetError
from tunefleet.orchestrator.access import api_keys

router = APIRouter(include_in_schema=False)

ASSETS_PATH: Final = "/docs/assets"
OPENAPI_PATH: Final = "/api/v1/openapi.json"
_PLAIN_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; frame-ancestors 'none'"
)
_LOGIN_HEADERS: Final = {
    "Content-Security-Policy": f"{_PLAIN_POLICY}; script-src 'self'; connect-src 'self'",
}
_DOCS_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'"
)
_STYLE: Final = "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}"


def _start_page() -> str:
    """Return the page to open after login."""
    return static_ui.PREFIX if static_ui.built() else "/docs"


def assets() -> StaticFiles:
    """Return the files of Swagger UI; they are public, and the same in every installation."""
    return StaticFiles(directory=Path(fastapi_offline.__file__).parent / "static")


@router.get("/")
async def root() -> Response:
    """Redirect to the start page."""
    return RedirectResponse(_start_page())


@router.get("/login")
async def login() -> Response:
    """Show the login form; a script of the page redeems the code of a login link, which is in the fragment."""
    return _form(None)


@router.get("/login/start.js")
async def login_start() -> Response:
    """Return the script that redeems the code of a login link, and shows the error if that fails."""
    script = (
        'const code = new URLSearchParams(location.hash.slice(1)).get("code");'
        'if (code) { history.replaceState(null, "", "/login"); fetch("/api/v1/session", {method: "POST", '
        'headers: {"Content-Type": "application/json"}, body: JSON.stringify({code})}).then(async (reply) => { '
        f'if (reply.ok) {{ location.replace("{_start_page()}"); return; }} const fault = await reply.json(); '
        'document.getElementById("fault").textContent = [fault.detail, fault.hint].join(" "); }); }'
    )
    return Response(script, media_type="text/javascript")


@router.post("/login")
async def login_with_key(request: Request, core: CoreDep) -> Response:
    """Open a session with a key from the form."""
    refuse_foreign_page(request)
    secret = parse_qs((await request.body()).decode("utf-8", "replace")).get("key", [""])[0].strip()
    try:
        session, _ = await api_keys.open_session(core, address_of(request), key=secret)
    except (AuthError, TooManyError) as error:
        return _form(error)
    return _enter(request, session)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Show the API documentation; without a session, redirect to the login."""
    try:
        await identify(request)
    except TunefleetError:
        return RedirectResponse("/login")
    text = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tunefleet API</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="{ASSETS_PATH}/swagger-ui.css"></head>
<body><div id="swagger-ui"></div><script src="{ASSETS_PATH}/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script></body></html>"""
    return HTMLResponse(text, headers={"Content-Security-Policy": _DOCS_POLICY})


@router.get("/docs/start.js")
async def docs_start() -> Response:
    """Return the script that starts Swagger UI; a file of its own, so that the page needs no inline script."""
    script = (
        f'SwaggerUIBundle({{url: "{OPENAPI_PATH}", dom_id: "#swagger-ui", deepLinking: true, '
        "presets: [SwaggerUIBundle.presets.apis], tryItOutEnabled: true});"
    )
    return Response(script, media_type="text/javascript")


@router.get(OPENAPI_PATH)
async def openapi_document(request: Request) -> Response:
    """Return the OpenAPI document."""
    await identify(request)
    # The first request builds it in a thread, which takes one to four seconds of CPU time; the app caches it.
    document: dict[str, Any] = await asyncio.to_thread(request.app.openapi)
    return JSONResponse(document)


def _enter(request: Request, session: str) -> Response:
    # Not a redirect: browsers withhold a Strict cookie from a redirect of a navigation that another site (a chat, an
    # e-mail) started. A page of ours that refreshes automatically starts a navigation of its own.
    text = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tunefleet</title>
<meta http-equiv="refresh" content="0;url={_start_page()}"><style>{_STYLE}</style></head>
<body><p>You are logged in. <a href="{_start_page()}">Continue</a></p></body></html>"""
    response = HTMLResponse(text, headers={"Content-Security-Policy": _PLAIN_POLICY})
    set_session(response, request, session)
    return response


def _form(error: TunefleetError | None) -> Response:
    fault = f'<p role="alert"><strong id="fault">{html.escape(str(error or ""))}</strong></p>'
    text = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Log in to Tunefleet</title>
<link rel="icon" href="data:,"><style>{_STYLE}</style></head><body><h1>Log in to Tunefleet</h1>{fault}
<form method="post" action="/login"><label>API key <input name="key" type="password" autocomplete="off" required
autofocus></label> <button>Log in</button></form>
<p>Or open the login link that <code>tunefleet up</code> printed; each link works once.</p>
<script src="/login/start.js"></script></body></html>"""
    if isinstance(error, TooManyError):
        return HTMLResponse(text, 429, headers={"Retry-After": str(error.retry_after_s), **_LOGIN_HEADERS})
    return HTMLResponse(text, 401 if error else 200, headers=_LOGIN_HEADERS)
