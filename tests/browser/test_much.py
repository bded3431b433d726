"""Ten thousand tasks and a hundred thousand points in a real browser: all is reachable, and nothing stands still.

How long each input takes to its picture is measured by `bench/page.py`; the limits here only tell whether it stutters.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from playwright.sync_api import Page, expect

from bench._filled import fill
from tests.browser.conftest import ENVIRONMENT
from tests.integration.api.support import HandWorker, until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
TASKS, POINTS = 10_000, 100_000
STUTTER_MS = 3000.0
"""No answer to an input takes so long, on a machine that is busy with other tests too."""
ROW = ".rows .line[aria-rowindex]"
JUMP = 331
"""Rows from one look to the next."""
LOOK = """
async ([number, longest]) => {
  const box = document.querySelector(".grid .scroll");
  const rows = () => [...document.querySelectorAll(".rows .line[aria-rowindex]")];
  const wanted = () => rows().find((row) => Number(row.ariaRowIndex) === number + 2);
  const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const end = performance.now() + longest;
  const height = rows()[0].offsetHeight;
  let slowest = 0;
  while (!wanted() && performance.now() < end) {
    const began = performance.now();
    box.scrollTop = Math.max(0, (number - 2) * height);
    await drawn();
    slowest = Math.max(slowest, performance.now() - began);
  }
  return [slowest, rows().map((row) => [Number(row.ariaRowIndex) - 2, row.querySelector("a").textContent])];
}
"""
"""Scroll to a row, whose page may have to be fetched; what stands there then."""


PICTURES = """
window.pictures = [];
let before = performance.now();
const picture = (now) => {
  window.pictures.push(now - before);
  before = now;
  requestAnimationFrame(picture);
};
requestAnimationFrame(picture);
"""
"""How many milliseconds pass from one picture to the next."""


@pytest.fixture(scope="module")
def filled() -> dict[str, str]:
    """What the fleet's store was filled with."""
    return {}


@pytest.fixture(scope="module")
def fleet(
    built: None, filled: dict[str, str], tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[LocalFleet]:
    data = tmp_path_factory.mktemp("much")
    with ThreadPoolExecutor(1) as aside:  # the browser's loop runs in this thread
        made = aside.submit(fill, data, count=TASKS, points=POINTS, wide_points=POINTS).result()
    filled.update(training=made.training, wide=made.wide or "")
    environment = {**ENVIRONMENT, "ENABLE_ELASTIC_SCALING": "true"}
    with LocalFleet(data, port=free_port(), workers=0, environment=environment, save_client=False) as started:
        yield started


def test_every_row_of_ten_thousand_is_reached_and_found(entered: Page) -> None:
    entered.goto("/ui/tasks?sort=name&up=true")
    expect(entered.locator("h1")).to_contain_text(f"{TASKS:,}")
    expect(entered.locator(ROW).first).to_contain_text("rate-00000")
    for number in [*range(0, TASKS - 1, JUMP), TASKS - 1]:
        slowest, rows = entered.evaluate(LOOK, [number, 60_000])
        assert number in {at for at, _ in rows}
        assert [name for _, name in rows] == [f"rate-{at:05}" for at, _ in rows]
        assert slowest < STUTTER_MS
    entered.get_by_label("Search").fill("rate-07654")
    expect(entered.locator(ROW)).to_have_count(1)
    expect(entered.locator(ROW)).to_contain_text("rate-07654")


def losses(page: Page) -> dict[int, float]:
    """Return step → loss of what is drawn."""
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    with download.value.path().open(encoding="utf-8") as lines:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(lines) if row["loss"]}


def test_a_hundred_thousand_points_are_drawn_thinned_and_a_zoom_has_each_of_them(
    entered: Page, client: Client, filled: dict[str, str]
) -> None:
    training = filled["training"]
    entered.goto(f"/ui/tasks/{training}?tab=charts")
    over = entered.locator("figure.chart .u-over").first
    box = over.bounding_box()
    assert box is not None
    thinned = losses(entered)
    assert client.tasks.metrics(training, names=["loss"], max_points=2).total == POINTS
    assert (min(thinned), max(thinned)) == (1, POINTS)
    assert len(thinned) < POINTS / 10

    began = entered.evaluate("performance.now()")
    entered.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    with entered.expect_response(lambda answer: "to_step=" in answer.url):
        entered.mouse.down()
        entered.mouse.move(box["x"] + box["width"] * 0.51, box["y"] + 50, steps=4)
        entered.mouse.up()
    entered.wait_for_url("**zoom=**")
    assert entered.evaluate("performance.now()") - began < 10 * STUTTER_MS
    low, high = map(float, entered.evaluate("new URL(location).searchParams.get('zoom')").split("~"))
    window = {"names": "loss", "after_step": int(low), "to_step": int(high)}
    known = entered.request.get(f"/api/v1/tasks/{training}/metrics", params=window).json()["points"]
    expected = {point["step"]: point["values"]["loss"] for point in known}
    assert 500 < len(expected) < 2000
    until(lambda: expected.items() <= losses(entered).items())


def test_more_than_twenty_charts_follow_the_pointer_and_keep_the_extremes_of_each(
    entered: Page, client: Client, filled: dict[str, str]
) -> None:
    wide = filled["wide"]
    entered.goto(f"/ui/tasks/{wide}?tab=charts")
    over = entered.locator("figure.chart .u-over").first
    over.wait_for()
    assert entered.locator("figure.chart").count() > 20
    box = over.bounding_box()
    assert box is not None
    entered.evaluate(PICTURES)
    for at in range(60):
        entered.mouse.move(box["x"] + box["width"] * at / 60, box["y"] + 50)
    pictures = entered.evaluate("window.pictures")
    assert len(pictures) > 20
    assert max(pictures) < STUTTER_MS

    chart = entered.locator("figure.chart", has=entered.get_by_role("heading", name="Entropy (nats)", exact=True))
    chart.get_by_label("Actions: Entropy").click()
    with entered.expect_download() as download:
        chart.get_by_role("button", name="Download CSV").click()
    with download.value.path().open(encoding="utf-8") as lines:
        drawn = {float(row["Entropy"]) for row in csv.DictReader(lines)}
    known = [point.values["entropy"] for point in client.tasks.metrics(wide, names=["entropy"]).points]
    assert len(known) == POINTS
    assert len(drawn) < POINTS / 10
    assert {max(map(float, known)), min(map(float, known))} <= drawn


def test_a_worker_is_sent_to_rest_and_called_back(entered: Page, fleet: LocalFleet, client: Client) -> None:
    headers = {"Authorization": f"Bearer {client.keys.create('spare', 'worker').secret}"}
    with httpx.Client(base_url=f"{fleet.url}/api/v1", headers=headers, timeout=60) as link:
        HandWorker(link, "spare").register()
        entered.goto("/ui/workers/spare")
        # Scaling may have let it rest before somebody looked.
        for _ in range(2):
            resting = client.workers.get("spare").elastic_disabled
            entered.get_by_role("button", name="Wake up" if resting else "Standby").click()
            until(lambda before=resting: client.workers.get("spare").elastic_disabled is not before)  # type: ignore[misc]
            other = entered.get_by_role("button", name="Standby" if resting else "Wake up")
            expect(other).to_be_visible()
