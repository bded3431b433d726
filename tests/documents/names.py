"""Holds what the text of a page names against the code: variables, routes, and methods of the client."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from scripts import write_reference
from tests.documents.blocks import ROOT
from tests.documents.samples import client_faults
from tunefleet.agent import routes

_VARIABLE: Final = re.compile(r"\b(TUNEFLEET_[A-Z0-9_]+)\b")
_OUTSIDE: Final = {
    "TUNEFLEET_LISTEN": "deploy/compose.yaml",
    "TUNEFLEET_INSIDE_URL": "deploy/compose.yaml",
    "TUNEFLEET_WITHOUT_PAGE": "hatch_build.py",
}
"""Variables that no process of ours reads, and what does."""
_ROUTE: Final = re.compile(
    r"(?:(?P<method>GET|POST|PUT|DELETE|PATCH|curl(?: -X (?P<asked>[A-Z]+))?)[^`\n]*?)?"
    r"(?P<path>(?<![\w.-])/(?:api/|healthz|metrics|health\b|jobs/)[^\s`\"'<>|,)]*)"
)
_CONTROL: Final = {("get", "/jobs/{}/status"), ("post", "/jobs/{}/control"), ("get", "/jobs/{}/commands/{}")}
_CALL: Final = re.compile(r"`(client\.[^`]+)`")


def unknown_variables(text: str) -> Iterator[str]:
    """Yield variables of ours that a text names and nothing reads."""
    known = {name for _, own in write_reference.variables() for each in own for name in (each.name, *each.aliases)}
    for name in sorted(set(_VARIABLE.findall(text))):
        if name in known or name.startswith("TUNEFLEET_SECRET_"):
            continue
        reader = _OUTSIDE.get(name)
        if reader is None or name not in (ROOT / reader).read_text(encoding="utf-8"):
            yield f"{name} is no variable of Tunefleet's"


@cache
def _routes() -> frozenset[tuple[str, str]]:
    """Return method and path of every route of the server, the agent and the control port, fields as `{}`."""
    paths = json.loads((ROOT / "web/openapi.json").read_text(encoding="utf-8"))["paths"]
    found = {(method, path) for path, methods in paths.items() for method in methods}
    found |= {(method.lower(), route.path) for route in routes.router.routes for method in route.methods}
    return frozenset({(method, re.sub(r"{[^}]*}", "{}", path)) for method, path in found} | _CONTROL)


def unknown_routes(text: str) -> Iterator[str]:
    """Yield routes that a text names and no process of ours answers."""
    for match in _ROUTE.finditer(text.replace("\\\n", " ")):
        path = re.split(r"[?#]", match["path"])[0].rstrip("/.:")
        before = text[max(0, match.start("path") - 60) : match.start("path")]
        host = re.search(r"https?://([\w.-]+)[^\s]*$", before)
        if host and host[1] not in {"127.0.0.1", "localhost", "server", "tunefleet.example.org"}:
            continue  # somebody else's
        method = match["asked"] or (match["method"] or "").replace("curl", "GET")
        if not any(
            _fits(path, route, deeper=not method) for asked, route in _routes() if method.lower() in ("", asked)
        ):
            yield f"{method} {path} is no route of ours".strip()


@cache
def _pages() -> frozenset[str]:
    """Return the paths of the web page's router, fields as `{}`, and its files."""
    router = (ROOT / "web/src/router.tsx").read_text(encoding="utf-8")
    written = re.findall(r'path: "([^"]+)"', router)
    # `$` alone stands for any rest, also for none.
    written += [path.removesuffix("/$") for path in written if path.endswith("/$")]
    paths = {re.sub(r"\$\w*", "{}", path) for path in written}
    files = {f"/{path.name}" for path in (ROOT / "web/public").iterdir()}
    return frozenset(f"/ui{path}".rstrip("/") for path in paths | files)


def unknown_pages(text: str) -> Iterator[str]:
    """Yield paths below `/ui/` that a text names and the web page does not have."""
    for path in re.findall(r"(?<![\w.-])(?:https?://[\w.:-]+)?(/ui/[^\s`\"'<>|,)?#]*)", text):
        plain = path.rstrip("/.:")
        if "{path" not in plain and not any(_fits(plain, route, deeper=False) for route in _pages()):
            yield f"{plain} is no page of the web page"


def _fits(path: str, route: str, *, deeper: bool) -> bool:
    """Whether a path is one of a route; without a method it may be the beginning of one."""
    shown, real = path.split("/"), route.split("/")
    if len(shown) > len(real) or (len(shown) < len(real) and not deeper):
        return False
    return all(one == two or two == "{}" for one, two in zip(shown, real, strict=False))


def unknown_calls(text: str) -> Iterator[str]:
    """Yield what the prose says of the client and the client does not have."""
    for call in _CALL.findall(text):
        try:
            tree = ast.parse(call)
        except SyntaxError:
            continue  # words, with an ellipsis for instance
        yield from client_faults(tree)
