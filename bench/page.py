"""How soon the web page is there, and whether it keeps up with a long training and a long list.

    python bench/page.py            # about two minutes
    python bench/page.py --quick    # a tenth of the points and the tasks

A server on this machine, its store filled before it starts, and a real Chromium (`scripts/browser.sh`):

1. What the browser loads before it can show the overview, compressed as it travels (budget 400 kB), and when it paints
   first (budget 1 s).
2. A training of 100,000 points with five values each: from the browser's receipt of an input to the picture that
   answers it, for the pointer over a chart, a zoom, its end, and the smoothing (budget 100 ms each); and how long the
   finer points of a zoom take, which come after.
3. A training with more than twenty charts of 100,000 points: how long it takes from one picture to the next while the
   pointer moves over them, and while they are moved together (budget 60 a second).
4. The server's health, asked at every moment while points are thinned and windows of them are zoomed into (budget
   50 ms for the slowest answer): what holds up its event loop holds up everybody.
5. A list of 10,000 tasks: its first rows, the tasks of the browser's main thread over 50 ms while it scrolls to the
   end, and a key in the search to the rows that it leaves.

It is measured in the page itself (`performance`), and the interval is of the median over repetitions. Times are wall
clock, so a busy machine doubles them; what the page's main thread had of the processor is named beside them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
from _common import Verdict, answers_s, free_port, interval, status, verdict
from _filled import Filled, fill
from _report import Figure, Report
from playwright.sync_api import Browser, Page, sync_playwright

from tunefleet.api import static_ui as served
from tunefleet.cli.local_cluster.supervisor import LocalFleet

BUNDLE_BUDGET: Final = 400_000
PAINT_BUDGET_MS: Final = 1000.0
INPUT_BUDGET_MS: Final = 100.0
ANSWER_BUDGET_MS: Final = 50.0
FRAME_BUDGET_MS: Final = 1000 / 60 + 1
"""60 pictures a second, and what the clock of a picture wavers."""
SMOOTH_MS: Final = 20.0
STROKES, STROKE_MOVES = 6, 120
ROW_PX, TURN_PX = 34, 3400
LOADS, MOVES, ZOOMS, KEYS, SEARCHES = 7, 60, 8, 24, 6
WATCH: Final = """
window.taken = {};
const note = (kind, since) => requestAnimationFrame(() => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => (window.taken[kind] ??= []).push(performance.now() - since);
  port2.postMessage(null);
});
for (const kind of ["mousemove", "mouseup", "dblclick", "input"])
  addEventListener(kind, (event) => note(kind, event.timeStamp), { capture: true });
window.pictures = [];
let before = performance.now();
const picture = (now) => {
  pictures.push(now - before);
  before = now;
  requestAnimationFrame(picture);
};
requestAnimationFrame(picture);
window.long = [];
new PerformanceObserver((list) => window.long.push(...list.getEntries().map((each) => each.duration)))
  .observe({ type: "longtask", buffered: true });
window.once = (found) => new Promise((done) => {
  const look = () => (found() ? done(performance.now()) : requestAnimationFrame(look));
  look();
});
"""
"""From the moment an input reached the browser to the one after its picture."""
PAINTED: Final = """
once(() => performance.getEntriesByName("first-contentful-paint").length)
  .then(() => performance.getEntriesByName("first-contentful-paint")[0].startTime)
"""
PRESSED: Final = "addEventListener('keydown', (event) => { window.pressed = event.timeStamp; }, { once: true })"
INPUTS: Final = {"mousemove": "pointer over it", "mouseup": "zoom", "dblclick": "whole range", "input": "smoothing"}
Opened = Callable[[], AbstractContextManager[Page]]
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def session(browser: Browser, fleet: LocalFleet) -> Any:
    """Log in as people do; return what the browser keeps of it."""
    with browser.new_context(base_url=fleet.url) as context:
        page = context.new_page()
        page.goto("/ui/")
        page.get_by_label("API key").fill(fleet.key)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Overview").wait_for()
        return context.storage_state()


@contextmanager
def window(browser: Browser, url: str, kept: Any) -> Iterator[Page]:
    """Open a window with a session, and nothing in its cache."""
    with browser.new_context(base_url=url, viewport={"width": 1280, "height": 800}, storage_state=kept) as context:
        context.set_default_timeout(120_000)
        context.add_init_script(WATCH)
        yield context.new_page()


class Spent:
    """How long the page's main thread had the processor: a busy machine lengthens what is seen, and not this."""

    def __init__(self, page: Page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._before = self._now()

    def ms(self) -> float:
        """Return the milliseconds since the last question."""
        before, self._before = self._before, self._now()
        return 1e3 * (self._before - before)

    def _now(self) -> float:
        found = self._session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))


def first_load(opened: Opened) -> tuple[int, list[float]]:
    """Return the bytes of the files that the overview needs, and when each of several windows painted first."""
    size, paints = 0, []
    for _ in range(LOADS):
        with opened() as page:
            page.goto("/ui/")
            page.get_by_role("heading", name="Overview").wait_for()
            size = page.evaluate(
                """performance.getEntriesByType("navigation")[0].encodedBodySize
                   + performance.getEntriesByType("resource").filter((each) => each.name.includes("/ui/"))
                     .reduce((sum, each) => sum + each.encodedBodySize, 0)"""
            )
            paints.append(page.evaluate(PAINTED))
    return size, paints


def chart(opened: Opened, task_id: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Look at a training as people do.

    Returns:
        Input → milliseconds until its picture, and until the finer points are there; input → how many of the processor.
    """
    with opened() as page:
        page.goto(f"/ui/tasks/{task_id}")
        over = page.locator("figure.chart .u-over").first
        over.wait_for()
        page.wait_for_timeout(500)
        page.evaluate("window.taken = {}")
        spent, cost = Spent(page), {}
        box = over.bounding_box()
        assert box is not None
        y = box["y"] + box["height"] / 2
        for at in range(MOVES):
            page.mouse.move(box["x"] + box["width"] * at / MOVES, y)
            page.wait_for_timeout(20)
        cost[INPUTS["mousemove"]] = spent.ms() / MOVES
        finer, zoomed, whole = [], [], []
        for at in range(ZOOMS):
            low = box["x"] + box["width"] * (0.1 + 0.05 * at)
            page.mouse.move(low, y)
            page.mouse.down()
            page.mouse.move(low + box["width"] * 0.2, y)
            spent.ms()
            with page.expect_response(lambda answer: "to_step=" in answer.url):
                began = page.evaluate("performance.now()")
                page.mouse.up()
            finer.append(page.evaluate("once(() => true)") - began)
            page.wait_for_timeout(250)
            zoomed.append(spent.ms())
            page.mouse.dblclick(low, y)
            page.wait_for_timeout(250)
            whole.append(spent.ms())
        cost |= {INPUTS["mouseup"]: statistics.median(zoomed), INPUTS["dblclick"]: statistics.median(whole)}
        page.get_by_role("slider").focus()
        for _ in range(KEYS):
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(30)
        cost[INPUTS["input"]] = spent.ms() / KEYS
        taken: dict[str, list[float]] = page.evaluate("window.taken")
    return {**{INPUTS[kind]: found for kind, found in taken.items()}, "finer points": finer}, cost


def motion(opened: Opened, task_id: str) -> dict[str, tuple[list[float], float]]:
    """Move over and within many charts as people do.

    Returns:
        What moves → milliseconds from each picture to the next, and how many of the processor a picture takes.
    """
    with opened() as page:
        page.set_viewport_size({"width": 1440, "height": 1000})
        page.goto(f"/ui/tasks/{task_id}")
        over = page.locator("figure.chart .u-over").first
        over.wait_for()
        page.wait_for_timeout(1000)
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        assert box is not None
        left, width, y = box["x"], box["width"], box["y"] + box["height"] / 2

        spent = Spent(page)

        def along(start: float, end: float) -> tuple[list[float], float]:
            page.evaluate("pictures.length = 0")
            spent.ms()
            for at in range(STROKES * STROKE_MOVES):
                share = abs(at / STROKE_MOVES % 2 - 1)
                page.mouse.move(left + width * (start + (end - start) * share), y)
            found: list[float] = page.evaluate("[...pictures]")
            return found, spent.ms() / len(found)

        found = {"pointer over 20 charts": along(0.05, 0.95)}
        page.mouse.move(left + width * 0.3, y)
        page.mouse.down()
        page.mouse.move(left + width * 0.7, y)
        page.mouse.up()
        page.wait_for_timeout(1000)
        page.keyboard.down("Shift")
        page.mouse.down()
        found["moving 20 charts"] = along(0.3, 0.7)
        page.mouse.up()
        page.keyboard.up("Shift")
    return found


def health(fleet: LocalFleet, task_id: str, points: int) -> list[float]:
    """Return how many milliseconds each question for the server's health took while points were thinned."""

    def work() -> None:
        with httpx.Client(base_url=fleet.url, headers={"X-API-Key": fleet.key}, timeout=120) as client:
            for at in range(ZOOMS):
                window = {"after_step": points // 20 * at, "to_step": points // 20 * at + points // 5}
                for wanted in ({"max_points": 2000, **window}, {"max_points": 5000}):
                    client.get(f"/api/v1/tasks/{task_id}/metrics", params=wanted).raise_for_status()

    return [1e3 * taken for taken in answers_s(fleet.url, work)]


def rows(opened: Opened, count: int) -> dict[str, Any]:
    """Open the list, scroll it to its end, search it."""
    with opened() as page:
        page.goto("/ui/tasks", wait_until="commit")
        first = page.evaluate("once(() => document.querySelector('.rows .line[aria-rowindex]'))")
        page.wait_for_timeout(1000)
        page.evaluate("window.long.length = 0")
        box = page.locator(".grid .scroll").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 200, box["y"] + 200)
        end = "document.querySelector('.grid .scroll').scrollTop + 900 > document.querySelector('.rows').offsetHeight"
        wheels, spent = 0, Spent(page)
        while not page.evaluate(end):
            page.mouse.wheel(0, TURN_PX)
            page.wait_for_timeout(16)
            wheels += 1
        page.evaluate(f"once(() => document.querySelector('.line[aria-rowindex=\"{count + 1}\"]'))")
        long, cost = page.evaluate("window.long"), spent.ms() / wheels
        page.evaluate("document.querySelector('.grid .scroll').scrollTop = 0")
        searches = []
        for at in range(SEARCHES):
            name = f"rate-{at * 7:05}"
            page.get_by_label("Search").fill(name[:-1])
            page.evaluate("once(() => document.querySelectorAll('.rows .line').length === 10)")
            page.get_by_label("Search").focus()
            page.keyboard.press("End")
            page.evaluate(
                "addEventListener('keydown', (event) => { window.pressed = event.timeStamp; }, { once: true })"
            )
            page.keyboard.press(name[-1])
            shown = "once(() => document.querySelectorAll('.rows .line').length === 1)"
            searches.append(page.evaluate(shown) - page.evaluate("window.pressed"))
    return {"first": first, "long": long, "wheels": wheels, "cost": cost, "searches": searches}


def say(report: Report, what: str, taken: Sequence[float], budget_ms: float | None) -> Verdict:
    """Print a row of times, and return whether it keeps its budget."""
    low, high = interval(taken)
    told = verdict(low, high, budget_ms) if budget_ms else "kept"
    line = f"  {what:<26} median {statistics.median(taken):6.0f} ms [{low:.0f}–{high:.0f}], worst {max(taken):.0f}"
    print(line + (f" (budget {budget_ms:.0f}: {told})" if budget_ms else ""), flush=True)
    note = f"worst {max(taken):.0f} ms" + (f"; our own limit {budget_ms:.0f} ms: {told}" if budget_ms else "")
    report.row(f"page: {what}", Figure.of(taken, "ms"), samples=len(taken), note=note)
    return told


def main() -> int:
    """Measure, print, and return 1 if a budget is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the points and the tasks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    told = Report("page", quick=options.quick)
    divisor = 10 if options.quick else 1
    points, count = 100_000 // divisor, 10_000 // divisor
    executable = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if executable is None:
        sys.exit("There is no Chromium on PATH: scripts/browser.sh")
    if not served.built():
        sys.exit("The page is not built: make ui")
    with tempfile.TemporaryDirectory(prefix="tunefleet-bench-") as name:
        folder = Path(name) / "data"
        filled = fill(folder, count=count, points=points, wide_points=points)
        fleet = LocalFleet(folder, port=free_port(), workers=0, save_client=False)
        with fleet, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            verdicts = measured(browser, fleet, filled, points, count, told)
            browser.close()
    told.write(options.json)
    return status(*verdicts)


def measured(
    browser: Browser, fleet: LocalFleet, filled: Filled, points: int, count: int, told: Report
) -> list[Verdict]:
    """Measure all, print it, and return which budgets are kept."""
    task_id, wide = filled
    assert wide is not None
    print(f"{points:,} points, {count:,} tasks; load average {os.getloadavg()[0]:.1f}")
    opened = partial(window, browser, fleet.url, session(browser, fleet))
    size, paints = first_load(opened)
    print("first load, the overview:")
    verdicts: list[Verdict] = ["kept" if size <= BUNDLE_BUDGET else "BROKEN"]
    print(f"  {'compressed':<26} {size / 1e3:.0f} kB (budget {BUNDLE_BUDGET / 1e3:.0f}: {verdicts[0]})")
    verdicts.append(say(told, "first paint", paints, PAINT_BUDGET_MS))
    print("a training, from an input to its picture:")
    pictures, cost = chart(opened, task_id)
    for what, taken in pictures.items():
        verdicts.append(say(told, what, taken, None if what == "finer points" else INPUT_BUDGET_MS))
    costs = ", ".join(f"{what} {ms:.0f}" for what, ms in cost.items())
    print(f"  of the processor, ms each: {costs}; zooms with the finer points and the address that says so")
    print("a training with more than twenty charts of as many points, from one picture to the next:")
    for what, (taken, spent) in motion(opened, wide).items():
        smooth = sum(each < SMOOTH_MS for each in taken) / len(taken)
        verdicts.append(say(told, what, taken, FRAME_BUDGET_MS))
        print(f"  {'':<26} {len(taken)} pictures, {100 * smooth:.0f} % of them within {SMOOTH_MS:.0f} ms,", end=" ")
        print(f"{spent:.1f} ms of the processor each")
    print("the server's health meanwhile:")
    verdicts.append(say(told, "thinning and zooming", health(fleet, task_id, points), ANSWER_BUDGET_MS))
    print("the list of tasks:")
    found = rows(opened, count)
    print(f"  {'first rows':<26} {found['first']:6.0f} ms after the address was entered")
    long = found["long"]
    worst = f", the worst {max(long):.0f} ms" if long else ""
    print(f"  {'scrolled to the end':<26} {len(long)} main-thread tasks over 50 ms in {found['wheels']} turns{worst};")
    print(f"  {'':<26} {found['cost']:.0f} ms of the processor each turn of {TURN_PX // ROW_PX} rows")
    say(told, "key to rows", found["searches"], None)
    print(f"load average {os.getloadavg()[0]:.1f}")
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
