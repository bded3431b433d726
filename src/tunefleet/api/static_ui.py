"""The web UI under `/ui/`: the files that the wheel's build made of `web/`, and their headers.

The UI calls the API like any other client. Files are looked up by name in a list, so that no path can leave the folder.
"""

from __future__ import annotations

import mimetypes
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse

router = APIRouter(include_in_schema=False)

PREFIX: Final = "/ui/"
FOLDER: Final = Path(__file__).parent / "ui"
_INDEX: Final = "index.html"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Inline styles are allowed: the editor and the workflow graph position their elements with them."""
_FOREVER: Final = "public, max-age=31536000, immutable"
_ASK_AGAIN: Final = "no-cache"
_MISSING: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Tunefleet: no web page</title>
<body style="font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem">
<h1>The web page is not built</h1>
<p>The server is running, but this installation has no web page. In a clone, build it and reload this page:</p>
<pre>make ui</pre>
<p>A wheel contains the page. Without it, use the command line (<code>tunefleet --help</code>) or the
<a href="/docs">HTTP API</a>.</p>"""


class _File(NamedTuple):
    path: Path
    media_type: str
    compressed: Path | None


def _files() -> dict[str, _File]:
    """Return the built files: path below `/ui/` → file."""
    try:
        return _files_of(FOLDER, (FOLDER / _INDEX).stat().st_mtime_ns)
    except FileNotFoundError:
        return {}


@lru_cache(maxsize=1)
def _files_of(folder: Path, _: int) -> dict[str, _File]:
    """Scan the folder once per build, identified by the time of its index."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".gz":
            gzipped = path.with_name(f"{path.name}.gz")
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            name = path.relative_to(folder).as_posix()
            found[name] = _File(path, kind, gzipped if gzipped.is_file() else None)
    return found


def built() -> bool:
    """Return whether this installation has the web UI."""
    return _INDEX in _files()


@router.get("/ui")
async def without_slash() -> Response:
    """Redirect to the URL that the page's relative links need."""
    return RedirectResponse(PREFIX, 308)


@router.api_route("/ui/{path:path}", methods=["GET", "HEAD"])
async def page(request: Request, path: str) -> Response:
    """Send a file of the web UI; every other path returns the index, which does its own routing."""
    files = _files()
    if _INDEX not in files:
        return HTMLResponse(_MISSING, 404, headers={"Content-Security-Policy": _POLICY})
    if path.startswith("assets/") and path not in files:
        # An open page of an earlier version requests a replaced asset: the index would be the wrong answer.
        return HTMLResponse("There is no such file.", 404, headers={"Cache-Control": _ASK_AGAIN})
    name = path if path in files else _INDEX
    return _send(request, files[name], forever=name.startswith("assets/"))


def _send(request: Request, file: _File, *, forever: bool) -> Response:
    headers = {"Cache-Control": _FOREVER if forever else _ASK_AGAIN, "Vary": "Accept-Encoding"}
    if file.media_type == "text/html":
        headers["Content-Security-Policy"] = _POLICY
    if file.compressed is None or "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(file.path, media_type=file.media_type, headers=headers)
    headers["Content-Encoding"] = "gzip"
    return FileResponse(file.compressed, media_type=file.media_type, headers=headers)
