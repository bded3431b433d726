"""Everyday use of the page, where it is not as its makers have it: plain HTTP, old addresses, other people's tasks."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, TimeoutError, expect

from tests.browser.conftest import enter
from tests.browser.test_pages import NEVER
from tests.integration.api.support import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
# What a browser leaves out for a page that came over plain HTTP from another machine.
INSECURE = """
delete Crypto.prototype.randomUUID;
Object.defineProperty(Navigator.prototype, 'clipboard', {value: undefined});
"""
ALONG = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: along}
spec:
  taskType: sft
  resources: {tags: [moon]}
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: rows.jsonl}
"""
STAGES = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: taking}
spec:
  stages:
    - {name: first, spec: {taskType: echo, resources: {tags: [moon]}, data: {type: list, items: [a]}}}
    - {name: last, dependsOn: [first], spec: {taskType: echo, data: {type: list, items: ["${first.result.items}"]}}}
"""


def test_over_plain_http_a_task_is_submitted_and_a_text_to_copy_is_selected(
    page: Page, fleet: LocalFleet, client: Client
) -> None:
    page.add_init_script(INSECURE)
    enter(page, fleet.key)
    page.goto("/ui/new?template=echo")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile("/ui/(tasks|workflows)/"))
    task_id = client.submit(NEVER).task_id
    page.goto(f"/ui/tasks/{task_id}")
    page.get_by_role("button", name=task_id).click()
    assert page.evaluate("getSelection().toString()").strip() == task_id
    expect(page.locator(".toast")).to_contain_text("Ctrl+C")
    client.tasks.cancel(task_id)


def test_one_task_that_is_gone_leaves_the_others_of_a_comparison_live(entered: Page, client: Client) -> None:
    task_id = client.submit(NEVER).task_id
    asked: list[str] = []
    entered.on("request", lambda request: asked.append(request.url) if "/live?" in request.url else None)
    # Waited for by the browser: while Python itself sleeps, it hears of no request.
    with entered.expect_request(lambda request: f"points={task_id}" in request.url):
        entered.goto(f"/ui/compare?tasks={task_id},none")
    expect(entered.get_by_role("alert").filter(has_text="Not found")).to_be_visible()
    assert not [url for url in asked if "none" in url]
    expect(entered.get_by_text("Connection to the server lost")).to_have_count(0)
    client.tasks.cancel(task_id)


def test_an_address_with_the_beginning_of_an_id_becomes_the_whole_one_and_is_live(
    entered: Page, client: Client
) -> None:
    task = client.tasks.get(client.submit(NEVER).task_id)
    entered.goto(f"/ui/workflows/{task.workflow_id[:-1]}")
    entered.wait_for_url(f"**/ui/workflows/{task.workflow_id}")
    entered.goto(f"/ui/tasks/{task.id[:-1]}?tab=spec")
    entered.wait_for_url(f"**/ui/tasks/{task.id}?tab=spec")
    expect(entered.locator(".status.queued").first).to_be_visible()
    client.tasks.cancel(task.id)
    expect(entered.locator(".status.cancelled").first).to_be_visible()


def test_a_task_that_is_changed_and_submitted_again_has_the_files_that_came_along(
    entered: Page, client: Client, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n', encoding="utf-8")
    document = tmp_path / "along.yaml"
    document.write_text(ALONG, encoding="utf-8")
    first = client.tasks.get(client.submit(document).task_id)
    assert first.inputs
    entered.goto(f"/ui/new?from={first.id}")
    entered.get_by_role("button", name="Submit", exact=True).click()
    entered.wait_for_url(re.compile("/ui/tasks/"))
    made = client.tasks.get(entered.url.rpartition("/")[2])
    assert made.id != first.id
    assert made.inputs == first.inputs
    for task in (first, made):
        client.tasks.cancel(task.id)


def test_a_stage_that_takes_from_another_opens_the_document_of_its_workflow(entered: Page, client: Client) -> None:
    workflow = client.submit(STAGES).workflow
    last = next(task for task in workflow.tasks if task.name == "last")
    entered.goto(f"/ui/new?from={last.id}")
    expect(entered.locator(".cm-content")).to_contain_text("first")
    expect(entered.get_by_role("button", name="Submit", exact=True)).to_be_enabled()
    client.workflows.cancel(workflow.id)


def test_a_session_that_ends_takes_no_edited_document_away(entered: Page, fleet: LocalFleet) -> None:
    entered.goto("/ui/new?template=echo")
    write(entered, "# mine")
    entered.context.clear_cookies()
    write(entered, " still")
    entered.get_by_label("API key").fill(fleet.key)
    entered.get_by_role("button", name="Log in").click()
    expect(entered.locator(".cm-content")).to_contain_text("# mine still")
    entered.get_by_role("button", name="Discard draft").click()
    expect(entered.locator(".cm-content")).not_to_contain_text("# mine")
    write(entered, "# other")
    entered.get_by_role("button", name="Log out").click()
    entered.get_by_label("API key").wait_for()
    assert entered.evaluate("Object.keys(sessionStorage).filter(key => key.startsWith('tunefleet.kept'))") == []


def write(page: Page, text: str) -> None:
    page.locator(".cm-content").click()
    page.keyboard.press("Control+End")
    page.keyboard.type(text)


def test_the_editor_completes_what_the_schema_knows(entered: Page) -> None:
    entered.goto("/ui/new?template=lora_sft")
    editor = entered.locator(".cm-content")
    expect(editor).to_contain_text("taskType: lora_sft")
    editor.click()
    entered.keyboard.press("Control+A")
    entered.keyboard.insert_text("spec:\n  taskType: lora_sft\n  ")
    entered.keyboard.type("reso")
    offered = entered.locator(".cm-tooltip-autocomplete")

    def taken() -> bool:
        # What was typed before the schema came was not completed; who asks again is answered. The editor ignores a
        # click on what it has offered only just now, and draws it anew with each answer.
        option = offered.get_by_role("option", name="resources")
        if option.count():
            with suppress(TimeoutError):
                option.click(timeout=2_000)
        else:
            entered.keyboard.press("Control+Space")
        return "resources:" in editor.inner_text()

    until(taken)
    expect(offered).to_have_count(0)


def test_an_upload_fetches_nobody_back_from_another_page(entered: Page, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n' * 50, encoding="utf-8")
    held: list[Route] = []
    entered.route(
        "**/api/v1/blobs/*", lambda route: held.append(route) if route.request.method == "PUT" else route.fallback()
    )
    entered.goto("/ui/datasets")
    with entered.expect_request(lambda request: request.method == "PUT"):
        entered.get_by_label("Data file").set_input_files(rows)
    entered.get_by_role("link", name="New workflow").click()
    entered.wait_for_url("**/ui/new")
    for route in held:
        route.continue_()
    expect(entered.locator(".toast", has_text="uploaded")).to_be_visible()
    assert entered.url.endswith("/ui/new")


def test_a_page_of_an_older_version_says_so_and_loads_the_new_one(page: Page, fleet: LocalFleet) -> None:
    older = json.dumps({"version": "0.0.1", "now": "2099-01-01T00:00:00Z", "missed": False})
    first = iter([f"retry: 50\nevent: hello\ndata: {older}\n\n"])

    def hello(route: Route) -> None:
        body = next(first, None)
        if body is None:
            route.continue_()
        else:
            route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/api/v1/live*", hello)
    enter(page, fleet.key)
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_role("button", name="Reload")).to_have_count(0)
