"""The runs table and the comparison in a real browser, with runs whose metrics the test reports itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import looks
from tests.browser.byhand import WORKER, Attempt, Hand
from tests.integration.api.support import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
RUN = f"""apiVersion: tunefleet/v1
kind: LoRASFTTask
metadata: {{name: rate-RATE}}
spec:
  taskType: lora_sft
  resources: {{tags: [{WORKER}]}}
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{dataset_name: org/rows}}
  training: {{learning_rate: RATE, max_steps: 40}}
  lora: {{r: RANK}}
"""
STEPS = 30


@dataclass
class Sweep:
    """Runs of several learning rates: the first ones have ended, the last one is running, another one is queued.

    Args:
        ids: In the order of `RATES`; the queued one is last.
        running: The one that is running.
    """

    ids: list[str]
    running: Attempt


@pytest.fixture(scope="module")
def fleet(lone_server: LocalFleet) -> LocalFleet:
    return lone_server


@pytest.fixture(scope="module")
def sweep(fleet: LocalFleet, worker: Hand) -> Iterator[Sweep]:
    with Client(fleet.url, fleet.key) as client:
        ids = []
        for number, rate in enumerate(RATES):
            document = RUN.replace("RATE", str(rate)).replace("RANK", str(8 << number))
            attempt = Attempt(worker, client.submit(document).task_id)
            ids.append(attempt.task_id)
            attempt.write(*_points(floor=1.0 + abs(number - 1)))
            if rate != RATES[-1]:
                attempt.finish("completed", "finished", result={"ok": True})
        attempt.write({"type": "progress", "phase": "training", "step": STEPS, "max_steps": 40, "eta_s": 185.0})
        waiting = RUN.replace("RATE", "1e-2").replace("RANK", "8").replace(WORKER, "moon")
        ids.append(client.submit(waiting).task_id)
    yield Sweep(ids, attempt)
    attempt.finish("completed", "finished", result={"ok": True})


def _points(floor: float) -> list[dict[str, object]]:
    losses = [{"loss": floor + 2.0 / step, "learning_rate": 1e-4} for step in range(1, STEPS + 1)]
    evaluated = {10: {"eval_loss": floor + 0.5}, 20: {"eval_loss": floor}, 30: {"eval_loss": floor + 0.25}}
    return [
        {"type": "metric", "step": step, "values": values | evaluated.get(step, {})}
        for step, values in enumerate(losses, 1)
    ]


def row_of(page: Page, task_id: str) -> Locator:
    return page.get_by_role("row").filter(has=page.locator(f"a[href$='{task_id}']"))


def names(page: Page) -> list[str]:
    return page.locator(".rows a[data-task]").all_inner_texts()


def test_a_row_tells_how_a_run_goes_and_any_metric_is_a_column_and_an_order(
    entered: Page, axe: str, sweep: Sweep
) -> None:
    asked: list[str] = []
    entered.on("request", lambda request: asked.append(request.url) if "/api/v1/tasks" in request.url else None)
    entered.goto("/ui/tasks")
    second = row_of(entered, sweep.ids[1])
    expect(second).to_contain_text("gsm8k-llama-2m")
    expect(second).to_contain_text("SFT · LoRA")
    expect(second.get_by_role("img", name="Loss of rate-0.0003")).to_be_visible()
    cells = second.get_by_role("cell").all_inner_texts()
    assert {"rows", "1.067", "1"} <= {cell.strip() for cell in cells}
    running = row_of(entered, sweep.running.task_id)
    expect(running.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "75")
    expect(running).to_contain_text("3m 5s left")
    expect(row_of(entered, sweep.ids[-1])).to_contain_text("moon")
    # One request for the rows with all their curves, one for the counts.
    assert not [url for url in asked if re.search(r"/tasks/task-", url)]

    entered.get_by_role("button", name="Best eval loss").click()
    expect(entered).to_have_url(re.compile("sort=best.eval_loss"))
    expect(entered.get_by_role("columnheader", name="Best eval loss")).to_have_attribute("aria-sort", "ascending")
    until(lambda: names(entered) == ["rate-0.0003", "rate-0.0001", "rate-0.001", "rate-0.003", "rate-1e-2"])

    entered.get_by_role("button", name="Columns").click()
    entered.get_by_label("Find a column").fill("eval loss")
    entered.get_by_label("Eval loss", exact=True).check()
    looks.check(entered, axe)
    entered.keyboard.press("Escape")
    entered.reload()
    header = entered.get_by_role("columnheader", name="Eval loss", exact=True)
    header.get_by_role("button").click()
    expect(entered).to_have_url(re.compile("sort=latest.eval_loss"))
    entered.get_by_role("button", name="Columns").click()
    entered.get_by_role("button", name="Reset columns").click()
    expect(header).to_have_count(0)


def test_a_run_gets_a_name_tags_and_notes_and_is_found_by_them(entered: Page, client: Client, sweep: Sweep) -> None:
    entered.goto("/ui/tasks")
    row_of(entered, sweep.ids[0]).locator("a").focus()
    entered.keyboard.press("e")
    dialog = entered.get_by_role("dialog", name="Edit run")
    dialog.get_by_label("Name").fill("baseline")
    dialog.get_by_label("Tags", exact=True).fill("good")
    dialog.get_by_label("Tags", exact=True).press("Enter")
    dialog.get_by_label("Notes").fill("The rate of the paper")
    dialog.get_by_role("button", name="Save").click()
    expect(row_of(entered, sweep.ids[0])).to_contain_text("baseline")
    known = client.tasks.get(sweep.ids[0])
    assert (known.name, known.tags, known.notes) == ("baseline", ("good",), "The rate of the paper")
    assert known.original_name == "rate-0.0001"

    entered.get_by_label("Only this tag").select_option("good")
    until(lambda: names(entered) == ["baseline"])
    entered.get_by_role("button", name=re.compile("^View")).click()
    entered.get_by_label("Name of the view").fill("Good ones")
    entered.get_by_role("button", name="Save view").click()
    entered.goto("/ui/tasks")
    entered.get_by_role("button", name="View: All runs").click()
    entered.get_by_role("button", name="Good ones", exact=True).click()
    until(lambda: names(entered) == ["baseline"])
    expect(entered.get_by_role("button", name="View: Good ones")).to_be_visible()
    entered.get_by_role("button", name="Delete the view Good ones").click()
    expect(entered.get_by_role("button", name="Good ones", exact=True)).to_have_count(0)

    entered.goto(f"/ui/tasks/{sweep.ids[0]}")
    expect(entered.get_by_text("The rate of the paper")).to_be_visible()
    entered.get_by_role("button", name="Edit", exact=True).click()
    dialog.get_by_label("Name").fill("")
    dialog.get_by_role("button", name="Remove the tag good").click()
    dialog.get_by_role("button", name="Save").click()
    expect(entered.get_by_role("heading", name="rate-0.0001")).to_be_visible()
    until(lambda: client.tasks.get(sweep.ids[0]).tags == ())


def test_keys_move_select_and_open_and_bulk_actions_count_what_they_change(
    entered: Page, client: Client, axe: str, sweep: Sweep
) -> None:
    doomed = [client.submit(RUN.replace("RATE", "1").replace("RANK", "8").replace(WORKER, "moon")) for _ in range(2)]
    entered.goto("/ui/tasks")
    expect(entered.locator(".rows .line")).to_have_count(len(RATES) + 3)
    entered.keyboard.press("j")
    entered.keyboard.press("x")
    entered.keyboard.press("j")
    entered.keyboard.press("x")
    entered.keyboard.press("j")
    entered.keyboard.press("j")
    entered.keyboard.press("k")
    actions = entered.get_by_role("toolbar", name="Actions on the selected runs")
    expect(actions).to_contain_text("2 selected")
    looks.check(entered, axe)
    expect(actions.get_by_role("button", name="Delete")).to_be_disabled()
    expect(actions.get_by_role("button", name="Delete")).to_have_attribute("title", re.compile("have ended"))
    actions.get_by_role("button", name="Tags").click()
    entered.get_by_label("Tags to add").fill("doomed")
    entered.get_by_label("Tags to add").press("Enter")
    entered.get_by_role("button", name="Add to 2 runs").click()
    until(lambda: all(client.tasks.get(each.task_id).tags == ("doomed",) for each in doomed))
    entered.keyboard.press("Escape")

    row_of(entered, sweep.ids[0]).get_by_role("checkbox").check()
    actions.get_by_role("button", name="Cancel 2").click()
    dialog = entered.get_by_role("dialog", name="Cancel 2 runs?")
    expect(dialog).to_contain_text("2 queued.")
    expect(dialog).to_contain_text("Not affected: 1 run of the selection.")
    dialog.get_by_role("button", name="Cancel runs").click()
    until(lambda: {client.tasks.get(each.task_id).status for each in doomed} == {"cancelled"})

    entered.goto("/ui/tasks?tag=doomed")
    entered.get_by_label("Select all shown").check()
    actions.get_by_role("button", name="Delete 2").click()
    entered.get_by_role("dialog", name="Delete 2 runs?").get_by_role("button", name="Delete").click()
    expect(entered.get_by_text("No matching runs")).to_be_visible()
    entered.get_by_role("button", name="Show all").click()
    expect(entered.locator(".rows .line")).to_have_count(len(RATES) + 1)
    entered.keyboard.press("j")
    entered.keyboard.press("j")
    entered.keyboard.press("Enter")
    entered.wait_for_url(f"**/ui/tasks/{sweep.ids[-2]}")


def test_a_selection_is_compared_by_results_curves_and_hyperparameters(
    entered: Page, client: Client, axe: str, sweep: Sweep
) -> None:
    entered.goto("/ui/tasks")
    entered.get_by_label("Select all shown").check()
    entered.get_by_role("button", name="Compare").click()
    results = entered.get_by_role("region", name="Results")
    best = results.locator("td.best")
    expect(best).to_have_text([re.compile(r"^1 \(best\)"), re.compile(r"^1.067 \(best\)")])
    expect(results.get_by_role("row").filter(has=entered.locator("td.best"))).to_contain_text(["rate-0.0003"])
    results.get_by_role("button", name="Eval loss").click()
    expect(results.locator("tbody tr").first).to_contain_text("rate-0.0003")
    expect(results.locator("tbody tr").last).to_contain_text("rate-1e-2")

    differs = entered.get_by_role("region", name="Configuration")
    rows = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in differs.locator("tbody tr").all()
    }
    assert rows == {
        "LoRA rank": ["8", "64", "32", "16", "8"],
        "Resources tags": ["moon", *[WORKER] * 4],
        "Learning rate": ["0.01", "0.003", "0.001", "3e-4", "1e-4"],
    }
    loss = entered.locator("figure.chart", has=entered.get_by_role("heading", name="Training loss", exact=True))
    expect(loss.locator(".legend")).to_contain_text("rate-0.001")
    results.get_by_label("Show the curves of rate-0.001", exact=True).uncheck()
    expect(loss.locator(".legend")).not_to_contain_text("rate-0.001")
    sweep.running.write({"type": "metric", "step": STEPS + 1, "values": {"loss": 0.125}})
    expect(loss.locator(".legend")).to_contain_text("0.125")

    plot = entered.get_by_role("img", name="5 runs by LoRA rank, Learning rate and Eval loss")
    expect(plot.locator("path.line")).to_have_count(5)
    plot.scroll_into_view_if_needed()
    rank = plot.locator(".handle").first.bounding_box()
    assert rank is not None
    entered.mouse.move(rank["x"] + 12, rank["y"] + 2)
    entered.mouse.down()
    entered.mouse.move(rank["x"] + 12, rank["y"] + rank["height"] * 0.4, steps=4)
    entered.mouse.up()
    expect(entered.get_by_role("button", name="2 of 5 runs · Clear filter")).to_be_visible()
    entered.get_by_label("Metric").select_option("Training loss")
    expect(entered).to_have_url(re.compile("goal=loss"))
    looks.check(entered, axe)
    # The address is all that another person needs.
    address = entered.url
    entered.goto("/ui/")
    entered.goto(address)
    expect(loss.locator(".legend")).not_to_contain_text("rate-0.001")
    expect(entered.get_by_label("Metric")).to_have_value("loss")


def test_a_viewer_sees_the_table_and_no_actions_that_change(looking: Page, sweep: Sweep) -> None:
    looking.goto("/ui/tasks")
    looking.get_by_label("Select all shown").check()
    actions = looking.get_by_role("toolbar", name="Actions on the selected runs")
    assert actions.get_by_role("button").all_inner_texts() == ["Compare", "Clear selection"]
    expect(looking.get_by_role("button", name=re.compile("^Edit"))).to_have_count(0)
