"""Pages in a real browser: what they say, whom they offer what, on a phone, to assistive tools, and after a break."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import FloatRect, Locator, Page, Route, TimeoutError, ViewportSize, expect

from tests.browser import looks
from tests.browser.addresses import PAGES, Looked
from tests.browser.conftest import PATIENCE_S
from tests.integration.api.support import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

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
TRAINING = """apiVersion: tunefleet/v1
kind: LoRASFTTask
metadata: {name: drawn}
spec:
  taskType: lora_sft
  resources: {tags: [moon]}
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:gsm8k", prompt_column: question, response_column: answer}
"""
MANY = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: crowd}
spec:
  stages:
"""
STAGE = (
    "    - {{name: one-{number}, spec: {{taskType: echo, resources: {{tags: [moon]}}, "
    "data: {{type: list, items: [a]}}}}}}\n"
)
DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 780}
REFUSALS = [
    pytest.param(500, "Loading failed", id="500"),
    pytest.param(403, "Your key has no access to this", id="403"),
    pytest.param(404, "Not found", id="404"),
]


@pytest.fixture(scope="module")
def fleet(own_fleet: LocalFleet) -> LocalFleet:
    return own_fleet


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
    entered.get_by_label("Select all shown").check()
    entered.get_by_role("button", name="Cancel 3").click()
    entered.get_by_role("button", name="Cancel runs").click()
    expect(rows).to_have_count(0)
    assert {client.tasks.get(task_id).status for task_id in ids} == {"cancelled"}
    entered.get_by_role("button", name=re.compile("^cancelled")).click()
    entered.get_by_role("button", name=re.compile("^queued")).click()
    expect(rows).to_have_count(3)
    entered.reload()
    expect(rows).to_have_count(3)
    assert "status=cancelled" in entered.url


def test_why_a_task_waits_is_said_worker_by_worker(entered: Page, client: Client) -> None:
    task_id = client.submit(NEVER).task_id
    entered.goto(f"/ui/tasks/{task_id}")
    panel = entered.locator(".panel", has=entered.get_by_role("heading", name="Pending reason"))
    expect(panel).to_contain_text(re.compile("moon"))
    expect(panel.locator("tbody tr")).to_have_count(len(client.workers.list().items))
    client.tasks.cancel(task_id)
    expect(entered.locator(".status.cancelled").first).to_be_visible()


def test_faults_of_a_document_are_shown_and_nothing_is_submitted(entered: Page, client: Client) -> None:
    entered.goto("/ui/new?template=lora_sft")
    entered.get_by_label("LoRA rank").fill("-3")
    entered.get_by_label("LoRA rank").press("Enter")
    expect(entered.get_by_label("Errors")).to_contain_text("lora.r")
    expect(entered.get_by_role("button", name="Submit", exact=True)).to_be_disabled()


def test_a_viewer_is_offered_nothing_that_changes(page: Page, fleet: LocalFleet, client: Client, diamond: str) -> None:
    key = page.request.post(
        "/api/v1/keys", headers={"Authorization": f"Bearer {fleet.key}"}, data={"name": "looker", "role": "viewer"}
    ).json()["secret"]
    page.goto("/ui/")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    expect(page.get_by_role("link", name="New workflow")).to_have_count(0)
    page.goto("/ui/new")
    expect(page.get_by_text("Your key is read-only")).to_be_visible()
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
    banner = entered.get_by_text("Connection to the server lost")
    os.kill(pid, signal.SIGKILL)
    expect(banner).to_be_visible()
    until(lambda: fleet.pid("server") not in {None, pid})
    expect(banner).to_have_count(0, timeout=PATIENCE_S * 1000)
    with Client(fleet.url, fleet.key) as client:
        client.submit(NEVER.replace("nowhere", "after the break"))
    expect(entered.get_by_role("link", name="after the break")).to_be_visible()


@pytest.fixture
def addresses(client: Client, diamond: str) -> list[str]:
    """The addresses of `PAGES`."""
    return [path_of(looked, client, diamond) for looked in PAGES]


def path_of(looked: Looked, client: Client, workflow: str) -> str:
    task, worker = client.workflows.get(workflow).tasks[0].id, client.workers.list().items[0].id
    return looked.path.format(task=task, workflow=workflow, worker=worker)


WAYS = [
    pytest.param("light", DESKTOP, id="light-desktop"),
    *(
        pytest.param(scheme, size, id=f"{scheme}-{name}")
        for scheme, size, name in (
            ("dark", DESKTOP, "desktop"),
            ("light", PHONE, "phone"),
            ("dark", PHONE, "phone"),
        )
    ),
]


@pytest.mark.parametrize(("scheme", "size"), WAYS)
def test_every_page_is_accessible(
    entered: Page, addresses: list[str], scheme: str, size: ViewportSize, axe: str
) -> None:
    entered.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    entered.set_viewport_size(size)
    found = {}
    for path in addresses:
        entered.goto(path)
        found.update({f"{path} {rule}": where for rule, where in looks.violations(entered, axe).items()})
    assert found == {}


def test_nothing_is_wider_than_a_phone(entered: Page, addresses: list[str]) -> None:
    entered.set_viewport_size(PHONE)
    for path in addresses:
        entered.goto(path)
        assert looks.width(entered) <= PHONE["width"], path


@pytest.mark.parametrize(("status", "words"), REFUSALS)
def test_a_page_says_what_it_cannot_have(entered: Page, client: Client, diamond: str, status: int, words: str) -> None:
    problem = {"type": "urn:tunefleet:error:test", "title": "No", "status": status, "detail": "It is so on purpose."}
    opened = []
    for looked in PAGES:
        if looked.asks is None:
            continue
        asks = replace(looked, path=looked.asks)
        page = aside(entered, {path_of(asks, client, diamond): problem}, status)
        page.goto(path_of(looked, client, diamond), wait_until="commit")
        opened.append(page)
    for page in opened:
        expect(page.get_by_role("alert").filter(has_text=words).first).to_contain_text(problem["detail"])
        expect(page.locator("h1").first).to_be_visible()
        expect(page.locator(".loading")).to_have_count(0)
        page.close()


def test_a_page_says_that_there_is_nothing(entered: Page, client: Client, diamond: str) -> None:
    opened = []
    for looked in PAGES:
        if looked.words:
            page = aside(entered, looked.empty)
            page.goto(path_of(looked, client, diamond), wait_until="commit")
            opened.append((page, looked.words))
    for page, words in opened:
        for word in words:
            expect(page.get_by_text(word)).to_be_visible()
        page.close()


def test_what_could_not_be_loaded_is_tried_again(entered: Page, client: Client, diamond: str) -> None:
    page = aside(entered, {"/tasks?*": {"detail": "Not now."}}, 400)
    page.goto("/ui/tasks?q=diamond")
    again = page.get_by_role("button", name="Try again")
    expect(again).to_be_visible()
    page.unroute_all()
    again.click()
    expect(page.get_by_role("link", name="left")).to_be_visible()


def answer(route: Route, *, status: int, body: object) -> None:
    route.fulfill(status=status, json=body)


def aside(page: Page, answers: Mapping[str, Any], status: int = 200) -> Page:
    """Open a window in which some of the API answers so; it follows nothing, as a browser has six connections."""
    made = page.context.new_page()
    made.route("**/api/v1/live*", lambda route: route.abort())
    for path, body in answers.items():
        made.route(f"**/api/v1{path}", partial(answer, status=status, body=body))
    return made


def _zoomed(page: Page, over: Locator) -> FloatRect:
    """Drag over the second quarter of a chart; again, if the page has moved below the pointer meanwhile."""
    for _ in range(5):
        over.hover()  # it stands still
        box = over.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50, steps=4)
        page.mouse.up()
        try:
            page.wait_for_url(re.compile("zoom="), timeout=5000)
        except TimeoutError:
            continue
        return box
    raise AssertionError("dragging over the chart does not zoom it")


def test_a_time_tells_utc_on_hover_and_an_address_restores_what_was_looked_at(
    entered: Page, client: Client, diamond: str
) -> None:
    task = client.workflows.get(diamond).tasks[0]
    entered.goto(f"/ui/tasks/{task.id}?tab=history")
    times = entered.locator("#main time")
    expect(times.nth(2)).to_be_visible()
    for each in times.all():
        at = datetime.fromisoformat(str(each.get_attribute("datetime")))
        assert each.get_attribute("title") == f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    assert f"{task.created_at:%Y-%m-%d %H:%M:%S} UTC" in {each.get_attribute("title") for each in times.all()}

    # A training's charts, of points that nobody has to log for it.
    points = [{"step": step, "at": "2026-01-01T00:00:00Z", "values": {"loss": 1 / (step + 1)}} for step in range(400)]
    view = {"task_id": task.id, "series": "train", "names": ["loss"], "total": 400, "points": points}
    entered.route("**/metrics?*", lambda route: route.fulfill(json=view))
    training = client.submit(TRAINING).task_id
    entered.goto(f"/ui/tasks/{training}?tab=charts")
    over = entered.locator("figure.chart .u-over").first
    box = _zoomed(entered, over)
    entered.get_by_role("button", name="Log scale").click()
    entered.get_by_role("slider").fill("0.5")
    entered.wait_for_url(re.compile("zoom=.*smooth=|smooth=.*zoom="))
    entered.reload()
    expect(entered.get_by_role("slider")).to_have_value("0.5")
    expect(entered.get_by_role("button", name="Log scale")).to_have_attribute("aria-pressed", "true")
    low, high = map(float, entered.evaluate("new URL(location).searchParams.get('zoom')").split("~"))
    assert low == pytest.approx(100, abs=8)
    assert high == pytest.approx(200, abs=8)
    # The last point that is drawn is at the right edge of the zoom.
    over.hover(position={"x": box["width"] - 2, "y": 50})
    step = entered.locator(".tooltip strong")
    expect(step).to_be_visible()
    assert float(step.inner_text().removeprefix("Step ")) == pytest.approx(high, abs=4)
    entered.get_by_role("button", name="Reset zoom").click()
    entered.wait_for_url(lambda url: "zoom" not in url)
    client.tasks.cancel(training)


def test_all_that_match_are_chosen_when_it_is_asked_for(entered: Page, client: Client) -> None:
    stages = "".join(STAGE.format(number=number) for number in range(130))
    workflow = client.submit(f"{MANY}{stages}").workflow
    entered.goto("/ui/tasks?q=crowd&status=pending,queued")
    expect(entered.locator("h1")).to_contain_text("130")
    entered.get_by_label("Select all shown").check()
    choose = entered.get_by_role("button", name="Select all 130")
    expect(entered.get_by_role("button", name="Cancel 100")).to_be_visible()
    choose.click()
    entered.get_by_role("button", name="Cancel 130").click()
    entered.get_by_role("button", name="Cancel runs").click()
    expect(entered.get_by_text("No matching runs")).to_be_visible()
    assert {task.status for task in client.workflows.get(workflow.id).tasks} == {"cancelled"}
