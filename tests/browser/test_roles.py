"""What each role is offered, page by page: nothing that the server would refuse."""

from __future__ import annotations

import re
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from tests.browser.conftest import PATIENCE_S
from tests.browser.logins import key_of, window
from tests.browser.test_pages import DIAMOND, NEVER
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
CHANGES: Final = re.compile(
    r"^(cancel|retry|pause|resume|stop|save|evaluate|abort|set|submit|start|new|upload|push|add|test|enable|disable|discard|publish"
    r"|promote|roll ?back|merge|remove|delete|make|create|revoke|close|reject)\b",
    re.IGNORECASE,
)
ADMINISTERS: Final = re.compile(
    r"^(cordon|uncordon|drain|standby|wake up|revoke|create key|preview|prune)\b", re.IGNORECASE
)
LISTS: Final = ("datasets", "models", "playground", "federations", "campaigns", "settings", "workers")


@pytest.fixture(scope="module")
def paths(fleet: LocalFleet) -> list[str]:
    """Every page, with something to see on it."""
    with Client(fleet.url, fleet.key) as client:
        done = client.workflows.wait(client.submit(DIAMOND).workflow.id, timeout_s=PATIENCE_S)
        waiting = client.submit(NEVER)
        client.notifications.create_channel("team", "https://example.org/hook", everyone=True)
        worker = client.workers.list().items[0].id
    task = f"/ui/tasks/{done.tasks[0].id}"
    tabs = [f"{task}?tab={tab}" for tab in ("log", "files", "predictions", "spec", "history")]
    lists = [f"/ui/{name}" for name in LISTS]
    ones = [f"/ui/workflows/{done.id}", f"/ui/workflows/{waiting.workflow.id}", f"/ui/workers/{worker}"]
    compare = f"/ui/compare?tasks={done.tasks[0].id},{done.tasks[1].id}"
    return ["/ui/", "/ui/tasks", task, *tabs, f"/ui/tasks/{waiting.task_id}", compare, *ones, "/ui/new", *lists]


def offered(page: Page, path: str) -> list[str]:
    """Open a page and return the names of what can be pressed there."""
    page.goto(path)
    page.locator("#main .page").first.wait_for(state="attached")
    expect(page.locator(".loading")).to_have_count(0)
    names = (
        page.locator("#main")
        .locator("button:enabled, a.button, input[type=submit]")
        .evaluate_all(
            "all => all.filter(each => each.offsetParent).map(each => (each.ariaLabel || each.innerText).trim())"
        )
    )
    return [str(name) for name in names]


def is_change(name: str) -> bool:
    return bool(CHANGES.match(name) or ADMINISTERS.match(name))


def noting(page: Page) -> list[str]:
    """Return a list that is told of all that the server refuses a window."""
    refused: list[str] = []

    def note(reply: Response) -> None:
        if reply.status == 403:
            refused.append(f"{reply.request.method} {reply.url}")

    page.on("response", note)
    return refused


def test_a_viewer_is_offered_no_change_on_any_page(
    browser: Browser, fleet: LocalFleet, client: Client, paths: list[str]
) -> None:
    with window(browser, fleet, key_of(client, "viewer").secret) as page:
        refused = noting(page)
        found = {path: offered(page, path) for path in paths}
        change = {path: [name for name in names if is_change(name)] for path, names in found.items()}
        assert {path: names for path, names in change.items() if names} == {}
        assert refused == [], "a page asks for what a viewer may not see"


def test_nothing_that_a_viewer_can_press_is_refused(
    browser: Browser, fleet: LocalFleet, client: Client, paths: list[str]
) -> None:
    with window(browser, fleet, key_of(client, "viewer").secret) as page:
        refused = noting(page)
        for path in paths:
            if "?tab=" not in path:
                press_all(page, path)
        assert refused == []


def press_all(page: Page, path: str) -> None:
    """Press whatever a page offers, one after the other; what opens is closed again."""
    page.goto(path)
    page.locator("#main .page").first.wait_for(state="attached")
    buttons = page.locator("#main button:enabled:visible")
    for at in range(buttons.count()):
        if at >= buttons.count():
            return
        buttons.nth(at).click()
        for action in page.locator("dialog[open] button:enabled").all()[::-1][:1]:
            action.click()
        if not page.url.endswith(path):
            page.goto(path)
            page.locator("#main .page").first.wait_for(state="attached")


def test_a_member_is_offered_no_administration(
    browser: Browser, fleet: LocalFleet, client: Client, paths: list[str]
) -> None:
    with window(browser, fleet, key_of(client, "member").secret) as page:
        refused = noting(page)
        found = {path: offered(page, path) for path in paths}
        assert [name for names in found.values() for name in names if ADMINISTERS.match(name)] == []
        assert refused == [], "a page asks for what a member may not see"
        page.goto("/ui/settings")
        expect(page.locator("#keys")).to_contain_text("Only administrators can create and revoke keys")
        assert "Test" not in found["/ui/settings"], "the channel is somebody else's"
        assert "Add channel" in found["/ui/settings"]
        assert page.request.get("/api/v1/keys").status == 403


def test_a_member_is_offered_no_steering_of_what_belongs_to_others(
    browser: Browser, fleet: LocalFleet, client: Client
) -> None:
    theirs = client.submit(NEVER.replace("nowhere", "theirs"))
    secret = key_of(client, "member", "neighbour").secret
    with Client(fleet.url, secret) as neighbour:
        own = neighbour.submit(NEVER)
    task_id = own.task_id
    with window(browser, fleet, secret) as page:
        assert offered(page, f"/ui/workflows/{own.workflow.id}").count("Cancel all") == 1
        assert "Cancel all" not in offered(page, f"/ui/workflows/{theirs.workflow.id}")
        assert "Cancel" in offered(page, f"/ui/tasks/{task_id}?tab=spec")
        names = offered(page, f"/ui/tasks/{theirs.task_id}?tab=spec")
        assert "Cancel" not in names
        assert "Clone" in names
        page.goto("/ui/tasks?status=queued")
        page.get_by_label("Select all shown").check()
        page.get_by_role("button", name="Cancel 1", exact=True).click()
        page.get_by_role("button", name="Cancel runs").click()
        expect(page.locator(f"a[href$='{task_id}']")).to_have_count(0)
        assert client.tasks.get(theirs.task_id).status == "queued"
    client.tasks.cancel(theirs.task_id)
