"""The overview in a real browser, and what is on every page: keys, the connection, the documentation."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import looks
from tests.browser.conftest import PATIENCE_S, SMALL
from tests.browser.test_day import status_of
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]

NEVER = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: nowhere}
spec:
  stages:
    - {name: first, spec: {taskType: echo, resources: {tags: [moon]}, data: {type: list, items: [a]}}}
    - {name: second, dependsOn: [first], spec: {taskType: echo, data: {type: list, items: [b]}}}
"""
SOON_MS = 60_000
LONG = {**SMALL, "training.max_steps": 100_000, "training.save_steps": 50_000}


@pytest.fixture(scope="module")
def fleet(own_fleet: LocalFleet) -> LocalFleet:
    return own_fleet


def panel(page: Page, title: str) -> Locator:
    return page.locator("section.panel", has=page.get_by_role("heading", name=re.compile(f"^{title}")))


def test_first_steps_are_ticked_once_they_are_done_and_can_be_dismissed(
    entered: Page, client: Client, repository: Path, axe: str
) -> None:
    steps = entered.get_by_role("region", name="First steps")
    expect(steps).to_contain_text("1 of 4")
    expect(steps.locator("li.done")).to_contain_text("Start a worker")
    looks.check(entered, axe)
    run = client.submit(repository / "examples/lora_sft.yaml", overrides=SMALL)
    client.tasks.wait(run.task_id, timeout_s=PATIENCE_S)
    expect(steps).to_contain_text("3 of 4", timeout=SOON_MS)
    expect(steps.get_by_role("link")).to_have_text("Playground")
    entered.get_by_role("button", name="Dismiss first steps").click()
    expect(steps).to_have_count(0)
    entered.reload()
    expect(panel(entered, "Recent results")).to_be_visible()
    expect(steps).to_have_count(0)


def test_the_overview_shows_what_runs_waits_and_ended_with_the_next_action(
    entered: Page, client: Client, trained: str, repository: Path, axe: str
) -> None:
    example = repository / "examples/lora_sft.yaml"
    name = client.tasks.get(trained).name
    wrong = client.submit(example, overrides={"model.source.identifier": "example/no-such-model"})
    client.tasks.wait(wrong.task_id, timeout_s=PATIENCE_S)
    paused = client.submit(example, overrides=LONG).task_id
    status_of(client, paused, "running")
    for point in client.tasks.follow_metrics(paused):
        if point.step >= 2:
            break

    strip = panel(entered, "Running").locator(".strips > li", has_text=client.tasks.get(paused).name)
    expect(strip).to_contain_text("Loss", timeout=SOON_MS)
    expect(strip).to_contain_text(re.compile(r"\d+% · \d+ / 100,000"))
    client.tasks.pause(paused)
    status_of(client, paused, "paused")
    expect(panel(entered, "Paused")).to_contain_text(re.compile("step [0-9,]+ of 100,000"), timeout=SOON_MS)

    client.submit(NEVER)
    queue = panel(entered, "Queue")
    expect(queue.get_by_role("heading")).to_have_text("Queue 1")
    expect(queue.locator("tbody tr")).to_have_count(1)
    expect(queue).to_contain_text("moon")
    expect(queue).to_contain_text("1 waiting for earlier tasks")

    result = panel(entered, "Recent results").locator("li", has_text=name).first
    expect(result).to_contain_text(re.compile(r"Eval loss [\d.]+ → [\d.]+ [−+]\d+\.\d%"))
    expect(result.get_by_role("link", name="Chat")).to_have_attribute("href", re.compile("playground.*task-"))
    failure = panel(entered, "Recent failures").locator("li").first
    expect(failure).to_contain_text("no-such-model")
    expect(failure).to_contain_text("Fix the input and run it again.")
    looks.check(entered, axe)
    failure.get_by_role("link", name="Edit and rerun").click()
    entered.wait_for_url(f"**/ui/train?from={wrong.task_id}")
    entered.go_back()
    panel(entered, "Paused").get_by_role("button", name="Resume").click()
    entered.wait_for_url(f"**/ui/tasks/{paused}")

    # The history has one section for each attempt.
    status_of(client, paused, "running")
    entered.get_by_role("tab", name="History").click()
    expect(panel(entered, "Attempt 2")).to_contain_text("on ", timeout=SOON_MS)
    expect(panel(entered, "Attempt 1")).to_contain_text("paused")
    client.tasks.cancel(paused)


def test_keys_move_through_rows_and_are_listed(entered: Page, trained: str, axe: str) -> None:
    entered.goto("/ui/tasks")
    entered.locator("main a.strong").first.wait_for()
    entered.keyboard.press("j")
    first = entered.locator("main a.strong").first
    expect(first).to_be_focused()
    entered.keyboard.press("k")
    expect(first).to_be_focused()
    entered.keyboard.press("?")
    keys = entered.get_by_role("dialog", name="Keyboard shortcuts")
    expect(keys).to_contain_text("Next and previous row")
    expect(keys).to_contain_text("g r")
    looks.check(entered, axe)
    entered.keyboard.press("Escape")
    expect(keys).to_have_count(0)
    entered.keyboard.press("j")
    entered.keyboard.press("Enter")
    entered.wait_for_url("**/ui/tasks/task-*")


def kill_server(fleet: LocalFleet) -> None:
    pid = fleet.pid("server")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_the_page_says_that_the_connection_is_lost_and_that_it_is_back(entered: Page, fleet: LocalFleet) -> None:
    kill_server(fleet)
    expect(entered.get_by_role("alert")).to_contain_text("Connection to the server lost")
    expect(entered.get_by_role("button", name="Reconnect now")).to_be_visible()
    back = entered.get_by_text("Connected again")
    expect(back).to_be_visible(timeout=SOON_MS)
    expect(back).to_have_count(0)


def test_a_page_opened_without_a_server_appears_once_it_is_back(entered: Page, fleet: LocalFleet) -> None:
    kill_server(fleet)
    expect(entered.get_by_role("alert")).to_contain_text("Connection to the server lost")
    entered.get_by_role("link", name="Settings").click()
    failed = entered.get_by_text("Loading failed")
    expect(entered.get_by_role("heading", name="Settings").or_(failed)).to_be_visible(timeout=SOON_MS)
    expect(failed).to_have_count(0)
    expect(entered.get_by_role("alert")).to_have_count(0)


def test_the_documentation_is_a_part_of_the_page(entered: Page, axe: str) -> None:
    entered.goto("/ui/workers?join=true")
    entered.get_by_role("link", name="Learn more").click()
    expect(entered.get_by_role("heading", level=1)).to_have_text("Join a worker")
    looks.check(entered, axe)
    entered.get_by_role("link", name="All topics").click()
    entered.get_by_role("link", name="Pause and resume").click()
    expect(entered.get_by_role("heading", level=1)).to_contain_text("Pause and resume")
    expect(entered).to_have_title(re.compile("^Pause and resume"))


def test_tabs_that_do_not_fit_show_that_there_are_more(entered: Page, trained: str) -> None:
    entered.set_viewport_size({"width": 390, "height": 780})
    entered.goto(f"/ui/tasks/{trained}")
    box = entered.locator(".tabs-box")
    expect(box).to_have_class(re.compile("more-right"))
    entered.get_by_role("tab", name="History").click()
    expect(box).to_have_class(re.compile("more-left"))
