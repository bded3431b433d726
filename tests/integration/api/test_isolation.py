"""A key of one project finds nothing of another: every route of the API is asked for what the other one has."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from tests.integration.api.support import HandWorker, Running, submit
from tests.integration.api.test_campaigns import Engine, apply
from tests.integration.api.test_projects import member  # noqa: F401 - a fixture
from tunefleet.api.openapi import SWEEP
from tunefleet.artifacts import manifest_digest
from tunefleet.db.tables.core import metadata
from tunefleet.schemas.api import FileEntry

MARK = "zebra"
DOCUMENT = f"""apiVersion: tunefleet/v1
metadata: {{name: {MARK}-flow}}
spec: {{taskType: echo, data: {{type: list, items: [{MARK}]}}}}
"""
DATA = f"{MARK} rows".encode()
STREAMS = ("/stream", "/live")
TOKENS_ONLY = re.compile(r"/(journal|log|chat/turns|chat/turns/\{turn_id\})$|/link/|/local/|/agent/|/predictions$")
"""Routes that a person's key is no good for, or that take a job's id in the body."""
HELD = re.compile(r"/link/|/agent/poll$")
"""Routes that wait, or that register a worker; a worker's id is the same in all projects."""
ABOUT_NOBODY = ("/schema", "/examples", "/healthz")
OURS = (
    "workflows",
    "tasks",
    "artifacts",
    "federations",
    "campaigns",
    "sweeps",
    "model_versions",
    "notification_channels",
    "invitations",
)


@dataclass(frozen=True)
class Known:
    """What there is in the first project: values of path parameters by name, and the requests that were examined."""

    ids: dict[str, str]


@pytest.fixture(scope="module")
def running(start: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("isolation"), lost_after_s=600)
    yield running
    running.stop()
    running.core.close()


def _push(client: httpx.Client) -> tuple[str, str]:
    digest = hashlib.sha256(DATA).hexdigest()
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(DATA)), "Content-Type": "application/octet-stream"}
    assert client.put(f"/blobs/{digest}", content=DATA, headers=headers).status_code == 201
    entry = FileEntry(path=f"{MARK}.jsonl", digest=digest, size_bytes=len(DATA))
    body = {
        "name": f"{MARK}-data",
        "kind": "dataset",
        "files": [entry.model_dump()],
        "digest": manifest_digest([entry]),
    }
    made = client.post("/artifacts", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["id"]), digest


@pytest.fixture(scope="module")
def made() -> list[Known]:
    return []


@pytest.fixture
def first(running: Running, member: Callable[..., httpx.Client], made: list[Known]) -> Known:  # noqa: F811
    """Something of everything, in a project of its own, with a worker that serves it alone; made once."""
    if not made:
        made.append(_everything(running, member))
    return made[0]


def _everything(running: Running, member: Callable[..., httpx.Client]) -> Known:  # noqa: F811
    owner = member(MARK, role="admin")
    hand = HandWorker(member(MARK, role="worker"), f"{MARK}-box")
    hand.register()
    task_id = submit(owner, DOCUMENT)
    hand.take(task_id)
    artifact, digest = _push(owner)
    federation = owner.post("/federations", json={"name": f"{MARK}-fed"})
    assert federation.status_code == 201, federation.text
    campaign = apply(owner, f"{MARK}-camp")
    Engine(running).cycle(campaign)
    sweep = _sweep(owner)
    channel = owner.post("/notifications/channels", json={"name": f"{MARK}-chn", "to": "https://example.org/x"})
    assert channel.status_code == 201, channel.text
    key = owner.post("/keys", json={"name": f"{MARK}-more"}).json()["id"]
    invitation = owner.post("/invitations", json={"worker_id": f"{MARK}-next"})
    assert invitation.status_code == 201, invitation.text
    task = owner.get(f"/tasks/{task_id}").json()
    return Known(
        {
            "task_id": task_id, "workflow_id": task["workflow_id"], "artifact_id": artifact, "digest": digest,
            "federation_id": federation.json()["id"], "job_id": str(federation.json()["number"]), "campaign": campaign,
            "name": f"{MARK}-camp", "channel_id": channel.json()["id"], "key_id": key, "worker_id": f"{MARK}-box",
            "project": MARK, "agent_id": f"{MARK}-box", "path": f"{MARK}.jsonl", "version": "1", "command_id": "cmd-0",
            "number": "0", "step": "1", "worker": "w", "turn_id": "turn-0", "invitation_id": invitation.json()["id"],
            "upload": "0" * 32, "sweep_id": sweep,
        }
    )  # fmt: skip


def _sweep(owner: httpx.Client) -> str:
    """A sweep that no worker can run, once its first trial waits."""
    document = SWEEP.replace("spec:", "spec:\n  resources: {hardware: {gpu: {count: 8}}}", 1)
    made = owner.post("/sweeps", json={"document": document.replace("rates", f"{MARK}-sweep")})
    assert made.status_code == 201, made.text
    deadline = time.monotonic() + 60
    while not owner.get(f"/sweeps/{made.json()['id']}").json()["trial_list"]:
        assert time.monotonic() < deadline, "no trial was started"
        time.sleep(0.05)
    return str(made.json()["id"])


def _rows(running: Running) -> dict[str, list[tuple[Any, ...]]]:
    def read(connection: Any) -> dict[str, list[tuple[Any, ...]]]:
        return {
            name: [tuple(row) for row in connection.execute(select(table).where(table.c.project == MARK))]
            for name in OURS
            if (table := metadata.tables[name]) is not None
        }

    return running.core.db.read(read).result()


def _requests(
    document: dict[str, Any], known: Known, left_out: re.Pattern[str] = TOKENS_ONLY
) -> Iterator[tuple[str, str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.endswith((*STREAMS, *ABOUT_NOBODY)) or left_out.search(path):
                continue
            url = re.sub(r"\{(\w+)\}", lambda found: known.ids[found[1]], path)
            content = operation.get("requestBody", {}).get("content", {})
            yield method, path, url, _naming(known, content.get("application/json", {}).get("example"))


def _naming(known: Known, body: Any, name: str = "") -> Any:
    """Return an example of a body with the ids in it replaced by those of the first project."""
    if isinstance(body, dict):
        return {key: _naming(known, value, key) for key, value in body.items()}
    if isinstance(body, list):
        return [_naming(known, each, name) for each in body]
    single = {"ids": "task_id", "task_ids": "task_id", "taskId": "task_id", "job_id": "task_id", "jobId": "task_id"}
    wanted = single.get(name, name)
    named = wanted.endswith("_id") and wanted in known.ids and wanted != "worker_id"  # a new one may be called so
    return known.ids[wanted] if named else body


def test_no_route_shows_or_changes_what_another_project_has(
    running: Running,
    first: Known,
    admin: httpx.Client,
    member: Callable[..., httpx.Client],  # noqa: F811
) -> None:
    before = _rows(running)
    assert all(before.values()), {name: len(rows) for name, rows in before.items()}
    document = admin.get("/openapi.json").json()
    nobody = Known({name: _invented(value) for name, value in first.ids.items()})
    wrong, asked = [], 0
    for role in ("admin", "member"):
        stranger = member("stranger", role=role)
        for theirs, none in zip(_requests(document, first), _requests(document, nobody), strict=True):
            if role == "member" and theirs[0] != "get":
                continue
            reply = _ask(stranger, running.url, theirs)
            other = reply if theirs[2:] == none[2:] else _ask(stranger, running.url, none)
            asked += 1
            if reply.status_code != other.status_code or _tells(reply, other, theirs, first):
                wrong.append(f"{theirs[0]} {theirs[1]}: {reply.status_code}, {other.status_code} {reply.text[:150]}")
    assert asked > 150
    assert not wrong, "\n".join(wrong)
    assert _rows(running) == before


@pytest.mark.parametrize("who", ["viewer", "worker", "attempt", "federation", "default's member", "default's worker"])
def test_no_other_secret_shows_or_changes_it_either(
    running: Running,
    first: Known,
    admin: httpx.Client,
    member: Callable[..., httpx.Client],  # noqa: F811
    as_role: Callable[[str], httpx.Client],
    who: str,
) -> None:
    before, document = _rows(running), admin.get("/openapi.json").json()
    nobody = Known({name: _invented(value) for name, value in first.ids.items()})
    stranger, wrong, asked = _stranger(running, member, as_role, who), [], 0
    for theirs, none in zip(_requests(document, first, HELD), _requests(document, nobody, HELD), strict=True):
        if who in {"viewer", "default's member"} and theirs[0] != "get":
            continue
        reply, asked = _ask(stranger, running.url, theirs), asked + 1
        other = reply if theirs[2:] == none[2:] else _ask(stranger, running.url, none)
        if reply.status_code != other.status_code or _tells(reply, other, theirs, first):
            wrong.append(f"{theirs[0]} {theirs[1]}: {reply.status_code}, {other.status_code} {reply.text[:150]}")
    assert asked > 80
    assert not wrong, "\n".join(wrong)
    assert _rows(running) == before


def test_no_filter_of_a_list_finds_it(
    running: Running,
    first: Known,
    admin: httpx.Client,
    member: Callable[..., httpx.Client],  # noqa: F811
) -> None:
    owned = {
        "owner": f"{MARK}-admin",
        "name": f"{MARK}-data",
        "q": MARK,
        "actor": f"{MARK}-admin",
        "id": first.ids["task_id"],
    }
    theirs = {**first.ids, **owned, "job_id": first.ids["task_id"], "channel": f"{MARK}-chn"}
    stranger, asked = member("stranger", role="admin"), 0
    for path, methods in admin.get("/openapi.json").json()["paths"].items():
        names = {each["name"] for each in methods.get("get", {}).get("parameters", ()) if each["in"] == "query"}
        if "{" in path or path.endswith(STREAMS):
            continue
        for name in names & theirs.keys():
            reply, asked = stranger.get(f"{running.url}{path}", params={name: theirs[name]}), asked + 1
            assert reply.status_code in {200, 404}, (path, name, reply.text)
            assert reply.status_code == 404 or MARK not in reply.text, (path, name, reply.text)
    assert asked > 15


@pytest.mark.parametrize("path", ["/events/stream?after=0", "/live?after=0", "/live?after=0&points={task_id}"])
@pytest.mark.parametrize("project", ["stranger", None])
def test_no_stream_tells_of_it(
    running: Running,
    first: Known,
    member: Callable[..., httpx.Client],  # noqa: F811
    as_role: Callable[[str], httpx.Client],
    path: str,
    project: str | None,
) -> None:
    who = as_role("member") if project is None else member(project)
    mine, seen = submit(who), []
    with who.stream("GET", path.format(**first.ids)) as told:
        assert told.status_code == 200
        for line in told.iter_lines():
            seen.append(line)
            if mine in line:
                break
    said = "\n".join(seen)
    if "points" in path:
        said = said.replace(first.ids["task_id"], "")  # the hello names what it does not know
    assert MARK not in said, said
    assert not [value for value in first.ids.values() if len(value) > 6 and value in said], said


@pytest.mark.parametrize(
    "path", ["/tasks/{task_id}/log/stream", "/campaigns/{campaign}/log/stream", "/campaigns/{campaign}/live"]
)
def test_no_stream_of_one_thing_of_it_begins(
    running: Running,
    first: Known,
    member: Callable[..., httpx.Client],  # noqa: F811
    path: str,
) -> None:
    with member("stranger", role="viewer").stream("GET", path.format(**first.ids)) as told:
        assert told.status_code == 404


def test_a_file_is_not_had_by_knowing_its_digest(
    running: Running,
    admin: httpx.Client,
    member: Callable[..., httpx.Client],  # noqa: F811
) -> None:
    owner, stranger = member("owners"), member("guessers")
    content = b"only of one project"
    digest = hashlib.sha256(content).hexdigest()
    sent = {"Upload-Length": str(len(content)), "Content-Type": "application/octet-stream"}
    assert owner.put(f"/blobs/{digest}", content=content, headers={**sent, "Upload-Offset": "0"}).status_code == 201
    for offset in (0, len(content)):
        reply = stranger.put(f"/blobs/{digest}", content=b"", headers={**sent, "Upload-Offset": str(offset)})
        assert reply.status_code in {202, 409, 422}, reply.text
    assert stranger.get(f"/blobs/{digest}").status_code == 404
    assert owner.get(f"/blobs/{digest}").content == content


def test_what_one_project_has_sent_of_a_file_no_other_goes_on_with(
    running: Running,
    admin: httpx.Client,
    member: Callable[..., httpx.Client],  # noqa: F811
) -> None:
    content = b"a secret, and its well-known end"
    digest, half = hashlib.sha256(content).hexdigest(), 12
    headers = {"Upload-Length": str(len(content)), "Content-Type": "application/octet-stream"}

    def put(client: httpx.Client, part: bytes, offset: int) -> httpx.Response:
        return client.put(f"/blobs/{digest}", content=part, headers={**headers, "Upload-Offset": str(offset)})

    def left(client: httpx.Client) -> int:
        entry = {"path": "x", "digest": digest, "size_bytes": len(content)}
        return int(client.post("/blobs/missing", json={"blobs": [entry]}).json()["missing"][0]["offset"])

    owner, strangers = member("owners"), (member("guessers"), admin)
    assert put(owner, content[:half], 0).status_code == 202
    for stranger in strangers:
        assert left(stranger) == 0
        assert put(stranger, content[half:], half).status_code == 409
        assert put(stranger, b"#", 0).status_code == 202  # nor does it spoil what the owner has sent
    assert left(owner) == half
    assert put(owner, content[half:], half).status_code == 201
    assert strangers[0].get(f"/blobs/{digest}").status_code == 404


def _stranger(
    running: Running,
    member: Callable[..., httpx.Client],  # noqa: F811
    as_role: Callable[[str], httpx.Client],
    who: str,
) -> httpx.Client:
    """Return a client with a secret that is good, but not in the first project."""
    if who.startswith("default's "):
        return as_role(who.removeprefix("default's "))
    if who in {"viewer", "worker"}:
        return member("stranger", role=who)
    owner = member("stranger")
    if who == "federation":
        token = owner.post("/federations", json={"name": "strange-fed"}).json()["token"]
    else:
        hand = HandWorker(member("stranger", role="worker"), "strange-box")
        hand.register()
        token = hand.take(submit(owner))
    owner.headers["Authorization"] = f"Bearer {token}"
    return owner


def _ask(client: httpx.Client, base: str, request: tuple[str, str, str, Any]) -> httpx.Response:
    method, path, url, body = request
    headers = {"Upload-Offset": "0", "Upload-Length": "3", "Content-Type": "application/octet-stream"}
    sent: dict[str, Any] = {"json": body} if body is not None else {}
    if method == "put" and "digest" in path:
        sent = {"content": b"abc", "headers": headers}
    return client.request(method, f"{base}{url}", **sent)


def _tells(reply: httpx.Response, other: httpx.Response, request: tuple[str, str, str, Any], known: Known) -> bool:
    """Whether a good answer names anything that is there; the log of one's own requests names what one asked for."""
    method, path, _, _ = request
    if reply.status_code >= 400 or path.endswith("/audit"):
        return False
    said = reply.text
    for value in known.ids.values():
        if len(value) > 6 and _invented(value) in other.text:
            said = said.replace(value, "")  # it was asked for, and is named whether it is there or not
    named = [value for value in known.ids.values() if len(value) > 6 and value in said]
    return MARK in said or bool(named) or ("{" in path and method != "get")


def _invented(value: str) -> str:
    """Return a value of the same form that names nothing."""
    if len(value) in {32, 64}:
        return "f" * len(value)
    if value.isdecimal():
        return str(int(value) + 7000)
    return f"{value[:5]}0{value[6:]}none" if len(value) > 6 else value
