"""Who is let in where: ask every route of a running server as everybody, and write down what they were told."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from fastapi.routing import iter_route_contexts

TABLE: Final = Path(__file__).with_name("roles.txt")
WHO: Final = (
    "nobody", "viewer", "member", "admin", "operator", "worker", "attempt", "federation", "participant", "campaign",
)  # fmt: skip
PARTICIPANT: Final = "w"
"""The name that the participant's token is for; what it sends is sent under this name."""
REFUSED, OWN, YES = "-", "own", "yes"
_NO: Final = (401, 403, 429)
_numbers = itertools.count()
_SENDING: Final = ("POST", "PUT", "PATCH", "DELETE")
_FILE: Final = re.compile(r"/blobs/|/updates$|/log$")
_UPDATE: Final = b'{"worker": "w", "step": 1, "num_examples": 1, "config": {}, "sha256": "%s"}' % (b"0" * 64)
_FILE_HEADERS: Final = {
    "Update-Length": str(len(_UPDATE)),
    "Upload-Offset": "0", "Upload-Length": str(len(_UPDATE) + 3),
    "Content-Type": "application/octet-stream", "X-Worker": "w",
}  # fmt: skip
_LONG: Final = re.compile(r"/link/|/agent/|/stream$|/live$")
"""Routes that wait for something: they are asked with a body that is wrong, or for their first line only."""


@dataclass(frozen=True)
class Asker:
    """Somebody with a secret.

    Args:
        client: Sends it.
        others: Whether it is asked about what belongs to another owner; not, if that could do harm to it.
        own: Ids of what belongs to it.
    """

    client: httpx.Client
    others: bool = False
    own: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """A route, as the application has it."""

    method: str
    path: str
    example: Any = None

    @property
    def line(self) -> str:
        """How the table begins its line."""
        return f"{self.method:<6} {self.path}"


def routes(app: Any, document: Mapping[str, Any]) -> list[Route]:
    """Return every route that is served, also those that the document does not name."""
    found = {}
    for each in iter_route_contexts(app.routes):
        path = str(getattr(each, "path", None) or getattr(each.original_route, "path", ""))
        named = path.replace(":path}", "}")
        for method in sorted(
            getattr(each, "methods", None) or getattr(each.original_route, "methods", None) or {"GET"}
        ):
            operation = document["paths"].get(named, {}).get(method.lower(), {})
            content = operation.get("requestBody", {}).get("content", {})
            found[method, path] = Route(method, path, content.get("application/json", {}).get("example"))
    return [found[key] for key in sorted(found, key=lambda key: (key[1], key[0]))]


def cells(
    route: Route, base: str, askers: Mapping[str, Asker], theirs: dict[str, str], owner: httpx.Client
) -> Iterator[str]:
    """Return what a route says to each of those who ask, in the order of `WHO`.

    Args:
        route: The route.
        base: The server.
        askers: Who asks.
        theirs: Ids of what another owner has, by the name of the parameter.
        owner: That owner.
    """
    if "/chat" in route.path:
        theirs = theirs | {"task_id": theirs["chat_id"]}
    nothing = {name: _invented(value) for name, value in theirs.items()}
    for who in WHO:
        asker = askers[who]
        if asker.others and _let_in(route, base, asker, theirs, owner=owner):
            yield YES
        elif asker.others and "{" not in route.path:
            yield REFUSED
        elif _let_in(route, base, asker, _known_to(asker, route, nothing, theirs)):
            yield OWN if asker.others else YES
        else:
            yield REFUSED


def _known_to(asker: Asker, route: Route, nothing: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
    """Return what somebody asks about who may not ask about everything: what is its own, else what does not exist."""
    has = any(f"{{{name}}}" in route.path for name in asker.own)
    return theirs | asker.own if has else nothing


def written(route: Route, found: Iterator[str]) -> str:
    """Return the line of a route."""
    return f"{route.line:<78}" + " ".join(f"{cell:<10}" for cell in found).rstrip()


def lines_of(table: Path) -> list[str]:
    """Return the lines of the table, its heading first, without what is said about it."""
    return [line for line in table.read_text().splitlines() if not line.startswith("#")]


def _let_in(
    route: Route, base: str, asker: Asker, ids: Mapping[str, str], *, owner: httpx.Client | None = None
) -> bool:
    """Whether a route does not refuse; what its owner finds, and the asker does not, is refused too."""
    url = re.sub(r"\{(\w+)(?::path)?\}", lambda name: ids[name[1]], route.path)
    if url != "/" and route.path.startswith("/docs/assets"):
        url += "/swagger-ui.css"
    body = {} if _LONG.search(route.path) else _naming(route.example, ids)
    content: dict[str, Any] = {"json": body} if route.method in _SENDING and body is not None else {}
    if route.method == "PUT" and _FILE.search(route.path):
        content = {"content": _UPDATE + b"abc", "headers": _FILE_HEADERS}
    with asker.client.stream(route.method, f"{base}{url}", **content) as reply:
        assert reply.status_code < 500 or reply.status_code == 507, (route, reply.status_code, reply.read())
        login = reply.status_code in {302, 303, 307} and reply.headers["location"].endswith("/login")
        if reply.status_code == 404 and owner is not None:
            return route.method == "GET" and owner.get(f"{base}{url}").status_code == 404
        return reply.status_code not in _NO and not login


def _naming(body: Any, ids: Mapping[str, str], name: str = "") -> Any:
    if isinstance(body, dict):
        return {key: _naming(value, ids, key) for key, value in body.items()}
    if isinstance(body, list):
        return [_naming(each, ids, name) for each in body]
    if name in {"worker", "workerId"} and "participant" in ids:
        return ids["participant"]
    same = {"ids": "task_id", "task_ids": "task_id", "taskId": "task_id", "job_id": "task_id", "jobId": "task_id"}
    wanted = same.get(name, name)
    return ids[wanted] if wanted.endswith("_id") and wanted in ids and wanted != "worker_id" else body


def _invented(value: str) -> str:
    """Return a value of the same form that names nothing."""
    if len(value) in {32, 64}:
        return "f" * len(value)
    return (
        str(int(value) + 7000)
        if value.isdecimal()
        else f"{value[:5]}0{value[6:]}none{next(_numbers)}"
        if len(value) > 6
        else value
    )
