"""Who may do what with a federation: its token, workers' keys, its owner, everybody else; and links without a key."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integration.api.federated import Worker, arrays, create, tarred, workers
from tests.integration.api.support import Running, is_problem
from tunefleet.client import Client
from tunefleet.orchestrator.context import Clock


def headers_of(kind: str, secret: str) -> dict[str, str]:
    if kind == "basic password":
        return {"Authorization": "Basic " + base64.b64encode(f":{secret}".encode()).decode()}
    if kind == "basic user":
        return {"Authorization": "Basic " + base64.b64encode(f"{secret}:".encode()).decode()}
    return {"X-API-Key": secret} if kind == "x-api-key" else {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("kind", ["bearer", "x-api-key", "basic password", "basic user"])
def test_the_token_comes_as_any_of_these(running: Running, admin: httpx.Client, kind: str) -> None:
    made = create(admin)
    headers = headers_of(kind, made["token"])
    with httpx.Client(base_url=f"{running.url}/api", headers=headers, timeout=60) as worker:
        assert worker.get(f"/v1/federations/{made['id']}").status_code == 200
        shown = worker.get(f"/training/jobs/{made['number']}")
    assert shown.json()["job"]["jobId"] == made["id"]


def test_requests_sends_a_token_that_stands_in_the_url(running: Running, admin: httpx.Client) -> None:
    requests = pytest.importorskip("requests")
    made = create(admin)
    url = running.url.replace("://", f"://:{made['token']}@")
    assert requests.get(f"{url}/api/training/jobs/{made['id']}", timeout=30).json()["job"]["id"] == made["number"]


def test_a_token_reaches_its_federation_and_nothing_else(running: Running, admin: httpx.Client) -> None:
    mine, other = create(admin, name="mine"), create(admin, name="other")
    with running.client(mine["token"]) as token:
        assert token.get(f"/federations/{mine['id']}").json()["name"] == "mine"
        is_problem(token.get(f"/federations/{other['id']}"), 403, "forbidden")
        for method, path in (
            ("GET", "/federations"), ("GET", "/tasks"), ("GET", "/workers"), ("GET", "/artifacts"), ("POST", "/keys"),
            ("POST", "/federations"), ("POST", f"/federations/{mine['id']}/pause"),
            ("POST", f"/federations/{mine['id']}/cancel"), ("DELETE", f"/federations/{mine['id']}"),
            ("GET", f"/federations/{mine['id']}/token"), ("GET", "/events"), ("POST", "/blobs/missing"),
        ):  # fmt: skip
            is_problem(token.request(method, path, json={}), 403, "forbidden")
        where = f"{running.url}/api/training/jobs"
        refused = token.post(f"{where}/{mine['id']}/pause")
        assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        assert token.post(where, json={"name": "x"}).status_code == 403
    forged = mine["token"][:-1] + ("0" if mine["token"][-1] != "0" else "1")
    swapped = f"{other['id']}.{mine['token'].partition('.')[2]}"
    for wrong in (forged, swapped, f"{mine['id']}.", "fed-.", "fed-x.é"):
        with running.client(headers=headers_of("basic password", wrong)) as stranger:
            reply = stranger.get(f"/federations/{mine['id']}")
            assert reply.status_code == 401, wrong
            assert "message" in httpx.get(f"{where}/{mine['id']}", headers=headers_of("basic user", wrong)).json()


def test_who_sends_no_token_at_all_is_told_where_the_federations_is(running: Running, admin: httpx.Client) -> None:
    made = create(admin)
    with running.client(headers=headers_of("basic password", "not-a-token")) as stranger:
        reply = stranger.get(f"/federations/{made['id']}")
    assert (reply.status_code, "tunefleet federation token ID" in reply.json()["hint"]) == (401, True)


def test_a_worker_with_a_token_of_its_own_is_one_worker_whatever_it_calls_itself(
    running: Running, admin: httpx.Client, tmp_path: Path
) -> None:
    made = create(admin, own_tokens=True)
    own = admin.get(f"/federations/{made['id']}/token", params={"worker": "lab-3"}).json()
    assert own["worker"] == "lab-3"
    mine = Worker(running, own["token"], made["id"], "lab-3", tmp_path)
    other = Worker(running, own["token"], made["id"], "lab-4", tmp_path)
    nobody = Worker(running, made["token"], made["id"], "lab-3", tmp_path)
    try:
        assert mine.upload(arrays(1))["round"] == 1
        archive = tarred(mine.members(arrays(2)))
        for worker, words in ((other, "valid for worker lab-3 only"), (nobody, "needs its own token")):
            reply = worker.send(archive)
            assert (reply.status_code, words in reply.json()["message"]) == (403, True), reply.text
            joined = worker.client.put(f"/api/v1/federations/{made['id']}/members/{worker.name}", json={})
            is_problem(joined, 403, "forbidden")
        members = admin.get(f"/federations/{made['id']}").json()["member_list"]
        assert [each["worker"] for each in members] == ["lab-3"]
        admin.post(f"/federations/{made['id']}/token", json={}).raise_for_status()
        assert mine.send(archive).status_code == 401, "with the federation's token those of its workers end"
    finally:
        for each in (mine, other, nobody):
            each.client.close()


def test_the_token_of_one_worker_closes_no_round_and_reads_nothing_that_others_sent(
    running: Running, admin: httpx.Client, tmp_path: Path
) -> None:
    with Client(running.url, running.admin_key) as client:
        (tmp_path / "rows.jsonl").write_text('{"row": 1}\n{"row": 2}\n')
        data = client.data.push(tmp_path / "rows.jsonl", name=tmp_path.name).name
    made = create(admin, own_tokens=True, min_workers=3, dataset=data, chunk_size=1)
    where, guide = f"/federations/{made['id']}", f"{running.url}/api/training"
    own = {name: admin.get(f"{where}/token", params={"worker": name}).json()["token"] for name in ("lab-3", "lab-4")}
    found = [Worker(running, own[name], made["id"], name, tmp_path) for name in own]
    try:
        for number, each in enumerate(found):
            each.upload(arrays(number))
            claimed = each.client.post(f"/api/training/jobs/{made['id']}/claim-chunk", json={"workerId": each.name})
            assert claimed.json()["chunkIndex"] == number
        with running.client(own["lab-3"]) as mine:
            for route in (f"{guide}/adapters/{made['id']}/100/aggregate", f"{where}/aggregate"):
                assert mine.post(route).status_code == 403, route
            chunks = f"{running.url}/api/datasets/chunks/{made['id']}"
            assert [mine.get(f"{chunks}/{number}/download").status_code for number in (0, 1)] == [200, 403]
            assert [each["worker"] for each in mine.get(f"{where}/updates").json()["items"]] == ["lab-3"]
            is_problem(mine.get(f"{where}/updates", params={"worker": "lab-4"}), 403, "forbidden")
            assert mine.get(where).json()["round"] == 1
        assert admin.post(f"{where}/aggregate").json()["version"] == 1, "its owner may"
    finally:
        for each in found:
            each.client.close()


def test_basic_is_good_on_these_routes_only(running: Running, admin: httpx.Client) -> None:
    with running.client(headers=headers_of("basic password", running.admin_key)) as basic:
        is_problem(basic.get("/tasks"), 401, "unauthenticated")
        assert basic.get(f"/federations/{create(admin)['id']}").status_code == 200
    broken = httpx.get(f"{running.url}/api/v1/federations/1", headers={"Authorization": "Basic %%%"})
    is_problem(broken, 401, "unauthenticated")


def test_a_page_of_another_site_cannot_use_what_the_browser_keeps(running: Running, admin: httpx.Client) -> None:
    made = create(admin)
    headers = headers_of("basic password", made["token"])
    where = f"{running.url}/api/training/jobs/{made['id']}/claim-chunk"
    for page in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert httpx.post(where, json={"workerId": 1}, headers={**headers, **page}).status_code == 403
    assert httpx.post(where, json={"workerId": 1}, headers=headers).status_code == 404, "there are no chunks"


@pytest.mark.parametrize(("role", "part", "look"), [("member", 403, 200), ("viewer", 403, 200), ("worker", 200, 200)])
def test_who_else_may_take_part_or_look(
    running: Running, admin: httpx.Client, as_role: Callable[[str], httpx.Client], tmp_path: Path,
    role: str, part: int, look: int,
) -> None:  # fmt: skip
    made = create(admin)
    client = as_role(role)
    with workers(running, made, tmp_path, "1") as (one,):
        reply = client.post(
            f"{running.url}/api/training/adapters/{made['id']}/1/100",
            files={"adapter": ("a.tar.gz", tarred(one.members(arrays(1))))},
            data={"numExamples": 1},
        )
    assert reply.status_code == part, reply.text
    assert client.get(f"/federations/{made['id']}").status_code == look
    is_problem(client.post(f"/federations/{made['id']}/pause"), 403, "forbidden")
    is_problem(client.get(f"/federations/{made['id']}/token"), 403, "forbidden")


def test_a_member_runs_federations_of_its_own(running: Running, as_role: Callable[[str], httpx.Client]) -> None:
    member = as_role("member")
    made = create(member)
    assert member.get(f"/federations/{made['id']}/token").json()["token"] == made["token"]
    assert member.post(f"/federations/{made['id']}/pause").json()["status"] == "paused"
    is_problem(as_role("viewer").post("/federations", json={}), 403, "forbidden")
    is_problem(as_role("worker").post("/federations", json={}), 403, "forbidden")
    with running.client() as nobody:
        is_problem(nobody.get(f"/federations/{made['id']}"), 401, "unauthenticated")


def test_a_link_is_good_for_its_version_and_for_a_while(running: Running, admin: httpx.Client, tmp_path: Path) -> None:
    made, other = create(admin, min_workers=1), create(admin, min_workers=1)
    links: list[str] = []
    for federation in (made, other):
        with workers(running, federation, tmp_path, "1") as (one,):
            one.upload(arrays(1))
            links.append(one.await_version(1)["downloadUrl"])
            one.upload(arrays(2))
            one.await_version(2)
    assert httpx.get(links[0]).status_code == 200
    assert httpx.head(links[0]).status_code == 200
    parts = urlsplit(links[0])
    assert parts.username is None, "the token is not in it"
    assert made["token"] not in links[0]
    assert httpx.get(links[0].split("?")[0]).status_code == 401
    last = "0" if links[0][-1] != "0" else "1"
    for wrong in (
        links[0][:-1] + last,
        links[0].replace("version=1", "version=2"),
        links[0].replace("expires=", "expires=9"),
        links[1].replace(other["id"], made["id"]),
    ):
        reply = httpx.get(wrong)
        assert reply.status_code == 403, wrong
        assert "checkpoints" in reply.json()["message"], "it says where a fresh one is"
    behind = httpx.get(links[0], headers={"Host": "lab.example.org:9000"})
    assert behind.status_code == 200


def test_a_link_that_has_expired_says_so(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(tmp_path / "data", links_last_s=1.0, public_base_url="https://lab.example.org/")
    try:
        with running.client(running.admin_key) as admin:
            made = create(admin, min_workers=1)
            with workers(running, made, tmp_path, "1") as (one,):
                one.upload(arrays(1))
                said: dict[str, Any] = one.await_version(1)
        assert said["downloadUrl"].startswith("https://lab.example.org/api/training/checkpoints/")
        here = said["downloadUrl"].replace("https://lab.example.org", running.url)
        now = running.core.clock.wall()
        monkeypatch.setattr(running.core, "clock", Clock(lambda: now + 10))
        assert "expired" in httpx.get(here).json()["message"]
    finally:
        running.stop()
        running.core.close()


def test_a_token_that_leaked_is_taken_back_and_the_federation_goes_on(
    running: Running, admin: httpx.Client, tmp_path: Path
) -> None:
    made = create(admin, min_workers=1)
    where = f"/federations/{made['id']}"
    assert admin.get(f"{where}/token").json()["token"] == made["token"]
    with workers(running, made, tmp_path, "1") as (thief,):
        thief.upload(arrays(1))
        thief.await_version(1)
        good = admin.post(f"{where}/token", json={}).json()
        assert good["token"] != made["token"]
        assert good["old_until"] is None
        for refused in (
            thief.send(tarred(thief.members(arrays(2)))),
            thief.poll(),
            thief.client.get(f"/api/v1{where}"),
            httpx.get(f"{running.url}/api/v1/tasks", headers=headers_of("bearer", made["token"])),
        ):
            assert refused.status_code == 401, refused.text
            assert "was revoked" in refused.json()["detail"]
    assert admin.get(f"{where}/token").json() == good
    with workers(running, {**made, "token": good["token"]}, tmp_path, "1") as (one,):
        assert one.upload(arrays(3))["round"] == 2
        one.await_version(2)
        is_problem(one.client.post(f"/api/v1{where}/token", json={}), 403, "forbidden")
    is_problem(admin.post(f"{where}/token", json={"old_for_s": -1}), 422, "request_invalid")
    shown = admin.get("/events", params={"limit": 1000}).text
    assert "federation.token_replaced" in shown
    assert good["token"] not in shown


def test_a_token_that_is_replaced_may_stay_good_for_a_while(
    running: Running, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(admin)
    where = f"/federations/{made['id']}"

    def status(token: str) -> int:
        with running.client(token) as client:
            return client.get(where).status_code

    second = admin.post(f"{where}/token", json={"old_for_s": 60}).json()
    assert second["old_until"] is not None
    assert (status(made["token"]), status(second["token"])) == (200, 200)
    now = running.core.clock.wall()
    with monkeypatch.context() as later:
        later.setattr(running.core, "clock", Clock(lambda: now + 61))
        assert (status(made["token"]), status(second["token"])) == (401, 200)
        assert admin.get(f"{where}/token").json()["old_until"] is None
    third = admin.post(f"{where}/token", json={"old_for_s": 60}).json()
    assert [status(each["token"]) for each in (made, second, third)] == [401, 200, 200], "the one before, and no other"
    assert admin.post(f"{where}/cancel").status_code == 200
    assert admin.delete(where).status_code == 204
    assert status(third["token"]) in {401, 404}


def test_whose_token_is_taken_back_hears_no_more(running: Running, admin: httpx.Client) -> None:
    made = create(admin)
    where = f"/federations/{made['id']}"
    with (
        running.client(made["token"]) as thief,
        thief.stream("GET", f"{where}/events", params={"after": 0}) as stream,
    ):
        heard = stream.iter_text()
        assert "federation.created" in next(heard)
        admin.post(f"{where}/token", json={})
        admin.post(f"{where}/pause")
        assert "federation.paused" not in "".join(heard), "the stream ends"
