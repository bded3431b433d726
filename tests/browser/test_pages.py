"""Pages in a real browser: what they say, whom they offer what, on a phone, to assistive tools, and after a break."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_S
from tests.integration.server.support import until
from tunefleet.cli.fleet import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DIAMOND = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: diamond}
spec:
  stages:
    - {name: first, spec: {taskType: echo, data: {type: list, items: [a]}}}
    - {name: left, dependsOn: [first], spec: {taskType: echo, data: {type: list, items: [b]}}}
    - {name: right, dependsOn: [first], spec: {taskType: echo, data: {type: list, items: [c]}}}
    - {name: last, dependsOn: [left, right], spec: {taskType: echo, data: {type: list, items: [d]}}}
"""
NEVER = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: nowhere}
spec:
  taskType: echo
  resources: {tags: [moon]}
  data: {type: list, items: [a]}
"""


@pytest.fixture(scope="module")
def diamond(fleet: LocalFleet) -> str:
    with Client(fleet.url, fleet.key) as client:
        run = client.submit(DIAMOND)
        return client.workflows.wait(run.workflow.id, timeout_s=PATIENCE_S).id


def test_a_workflow_is_drawn_and_leads_to_its_tasks(entered: Page, client: Client, diamond: str) -> None:
    entered.goto(f"/ui/workflows/{diamond}")
    expect(entered.locator(".stage")).to_have_count(4)
    expect(entered.locator(".react-flow__edge")).to_have_count(4)
    entered.locator(".stage", has_text="right").click()
    expect(entered.get_by_role("heading", name="right")).to_be_visible()
    right = next(task for task in client.workflows.get(diamond).tasks if task.name == "right")
    assert entered.url.endswith(f"/ui/tasks/{right.id}")


def test_filters_stand_in_the_address_and_several_are_cancelled_at_once(entered: Page, client: Client) -> None:
    ids = [client.submit(NEVER).task_id for _ in range(3)]
    entered.goto("/ui/tasks?q=nowhere&status=queued")
    rows = entered.locator(".rows .line")
    expect(rows).to_have_count(3)
    entered.get_by_label("Choose all that are shown").check()
    entered.get_by_role("button", name="Cancel 3").click()
    entered.get_by_role("button", name="Cancel them").click()
    expect(rows).to_have_count(0)
    assert {client.tasks.get(task_id).status for task_id in ids} == {"cancelled"}
    entered.get_by_role("button", name="cancelled", exact=True).click()
    entered.get_by_role("button", name="queued", exact=True).click()
    expect(rows).to_have_count(3)
    entered.reload()
    expect(rows).to_have_count(3)
    assert "status=cancelled" in entered.url


def test_why_a_task_waits_is_said_worker_by_worker(entered: Page, client: Client) -> None:
    task_id = client.submit(NEVER).task_id
    entered.goto(f"/ui/tasks/{task_id}")
    panel = entered.locator(".panel", has=entered.get_by_role("heading", name="Why it waits"))
    expect(panel).to_contain_text(re.compile("moon"))
    expect(panel.locator("tbody tr")).to_have_count(len(client.workers.list().items))
    client.tasks.cancel(task_id)
    expect(entered.locator(".status.cancelled").first).to_be_visible()


def test_faults_of_a_document_are_shown_and_nothing_is_submitted(entered: Page, client: Client) -> None:
    entered.goto("/ui/new?template=lora_sft")
    entered.get_by_label("LoRA rank").fill("-3")
    entered.get_by_label("LoRA rank").press("Enter")
    expect(entered.get_by_label("Faults")).to_contain_text("lora.r")
    expect(entered.get_by_role("button", name="Submit", exact=True)).to_be_disabled()


def test_a_viewer_is_offered_nothing_that_changes(page: Page, fleet: LocalFleet, client: Client, diamond: str) -> None:
    key = page.request.post(
        "/api/v1/keys", headers={"Authorization": f"Bearer {fleet.key}"}, data={"name": "looker", "role": "viewer"}
    ).json()["secret"]
    page.goto("/ui/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    expect(page.get_by_role("link", name="New task")).to_have_count(0)
    page.goto("/ui/new")
    expect(page.get_by_text("Your key may only look")).to_be_visible()
    page.goto(f"/ui/tasks/{client.workflows.get(diamond).tasks[0].id}")
    page.get_by_role("tab", name="Log").wait_for()
    expect(page.get_by_role("toolbar", name="Controls")).to_have_count(0)


def test_a_login_link_opens_the_page_and_leaves_no_code_behind(page: Page, client: Client) -> None:
    code = client.login_code().code
    page.goto(f"/ui/workers#code={code}")
    page.get_by_role("heading", name="Workers").wait_for()
    assert "code" not in page.url
    cookie = next(each for each in page.context.cookies() if each["name"].startswith("tunefleet_"))
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_the_page_goes_on_by_itself_after_the_server_was_killed(entered: Page, fleet: LocalFleet) -> None:
    pid = fleet.pid("server")
    assert pid is not None
    banner = entered.get_by_text("The connection to the server is lost")
    os.kill(pid, signal.SIGKILL)
    expect(banner).to_be_visible()
    until(lambda: fleet.pid("server") not in {None, pid})
    expect(banner).to_have_count(0, timeout=PATIENCE_S * 1000)
    with Client(fleet.url, fleet.key) as client:
        client.submit(NEVER.replace("nowhere", "after the break"))
    expect(entered.get_by_role("link", name="after the break")).to_be_visible()


def addresses(task: str, workflow: str) -> list[str]:
    more = ["/ui/new?template=lora_sft", "/ui/compare", "/ui/workers"]
    return ["/ui/", "/ui/tasks", f"/ui/tasks/{task}", f"/ui/workflows/{workflow}", *more]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_every_page_is_accessible(entered: Page, repository: Path, client: Client, diamond: str, scheme: str) -> None:
    script = repository / "web/node_modules/axe-core/axe.min.js"
    entered.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    task = client.workflows.get(diamond).tasks[0].id
    tabs = [f"/ui/tasks/{task}?tab={tab}" for tab in ("log", "files", "spec", "history")]
    paths = [
        "/ui/",
        "/ui/tasks",
        *tabs,
        "/ui/new",
        "/ui/new?template=lora_sft",
        f"/ui/workflows/{diamond}",
        "/ui/workers",
        "/ui/datasets",
        "/ui/playground",
    ]
    found = {}
    for path in paths:
        entered.goto(path)
        entered.wait_for_load_state("domcontentloaded")
        entered.locator("h1").first.wait_for()
        expect(entered.locator(".loading")).to_have_count(0)
        entered.evaluate(script.read_text(encoding="utf-8"))
        rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
        answer = entered.evaluate(f"axe.run(document, {json.dumps(rules)})")
        for violation in answer["violations"]:
            found[f"{path} {violation['id']}"] = [node["html"][:160] for node in violation["nodes"]][:3]
    assert found == {}


def test_nothing_is_wider_than_a_phone(entered: Page, client: Client, diamond: str) -> None:
    entered.set_viewport_size({"width": 390, "height": 780})
    task = client.workflows.get(diamond).tasks[0].id
    for path in (
        "/ui/",
        "/ui/tasks",
        f"/ui/tasks/{task}",
        "/ui/new?template=lora_sft",
        f"/ui/workflows/{diamond}",
        "/ui/workers",
        "/ui/datasets",
        "/ui/playground",
    ):
        entered.goto(path)
        entered.locator("h1").first.wait_for()
        wide = entered.evaluate(
            "document.documentElement.scrollWidth + ' ' + document.getElementById('main').scrollWidth"
        )
        assert max(map(int, wide.split())) <= 390, (path, wide)
