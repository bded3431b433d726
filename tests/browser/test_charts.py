"""The charts of a run in a real browser: what they show of it, how they are looked at, and the files of them."""

from __future__ import annotations

import csv
import io
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import looks
from tests.browser.byhand import WORKER, Attempt, Hand, begin
from tests.browser.conftest import PATIENCE_MS
from tests.integration.api.support import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
TRAINING = f"""apiVersion: tunefleet/v1
kind: LoRASFTTask
metadata: {{name: charted}}
spec:
  taskType: lora_sft
  resources: {{tags: [{WORKER}]}}
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{path: builtin:gsm8k}}
"""
MORE = {"grad_norm": 1.0, "learning_rate": 1e-4, "entropy": 2.0, "mean_token_accuracy": 0.5, "rewards/margins": 0.1}
FIRST_LOSS = 300.0
"""A first step that would flatten the rest of the curve."""


@pytest.fixture(scope="module")
def fleet(lone_server: LocalFleet) -> LocalFleet:
    return lone_server


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("charted") / "training.yaml"
    path.write_text(TRAINING, encoding="utf-8")
    return path


def log(attempt: Attempt, steps: range) -> None:
    """Log a loss for each step, and the eval loss of each hundredth."""
    now = time.time()
    attempt.write(
        *(
            {
                "type": "metric", "step": step, "epoch": step / 200, "at": now + step / 1e5,
                "values": {"loss": 2 + 2 / step if step > 1 else FIRST_LOSS, "num_tokens": 64 * step, **MORE},
            }
            for step in steps
        ),
        *(
            {"type": "metric", "step": step, "at": now + step / 1e5, "values": {"eval_loss": 3 - step / 200}}
            for step in steps
            if step % 100 == 0
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def charted(fleet: LocalFleet, worker: Hand, document: Path) -> str:
    """A run that was evaluated before, during and after training, paused once, and restarted once."""
    with Client(fleet.url, fleet.key) as client:
        attempt = begin(client, worker, document)
        attempt.write({"type": "metric", "step": 0, "values": {"held_out_loss": 3.5}})
        log(attempt, range(1, 151))
        attempt.write({"type": "checkpoint", "step": 150, "name": "checkpoint-150", "digest": f"sha256:{'0' * 64}"})
        client.tasks.pause(attempt.task_id)
        attempt.finish("paused", "paused")
        until(lambda: client.tasks.get(attempt.task_id).status == "paused")
        client.tasks.resume(attempt.task_id)
        again = Attempt(worker, attempt.task_id, launch="L2", from_step=150)
        log(again, range(151, 301))
        again.finish("failed", "killed", error="The process was killed.")
        last = Attempt(worker, attempt.task_id, launch="L3", from_step=150)
        log(last, range(151, 401))
        last.write({"type": "metric", "step": 400, "values": {"held_out_loss": 1.5}})
        last.finish("completed", "finished", result={"ok": True})
        until(lambda: client.tasks.get(attempt.task_id).status == "completed")
    return attempt.task_id


def chart(page: Page, title: str) -> Locator:
    return page.locator("figure.chart", has=page.get_by_role("heading", name=title, exact=True))


def act(page: Page, title: str, action: str) -> None:
    """Choose an item of a chart's menu."""
    chart(page, title).get_by_label(f"Actions: {title.partition(' (')[0]}").click()
    chart(page, title).get_by_role("button", name=action, exact=True).click()


def saved(page: Page, title: str, kind: str) -> bytes:
    """Return the file of a chart."""
    with page.expect_download() as download:
        act(page, title, f"Download {kind}")
    assert download.value.suggested_filename == f"{title}.{kind.lower()}"
    return download.value.path().read_bytes()


def opened(page: Page, task_id: str) -> Locator:
    """Open the charts of a run, and return the plot of the loss."""
    page.goto(f"/ui/tasks/{task_id}?tab=charts")
    plot = chart(page, "Loss").locator(".u-over")
    plot.wait_for()
    return plot


def test_evaluations_before_during_and_after_training_are_one_line(entered: Page, charted: str) -> None:
    opened(entered, charted)
    expect(chart(entered, "Loss").locator(".legend > span")).to_have_text(["Training 2.005", "Eval 1"])
    rows = list(csv.DictReader(io.StringIO(saved(entered, "Loss", "CSV").decode())))
    evaluated = {row["Step"]: row["Eval loss"] for row in rows if row["Eval loss"]}
    # At the last step, the evaluation during training counts: the one after it may be of another checkpoint.
    assert evaluated == {"0": "3.5", "100": "2.5", "200": "2", "300": "1.5", "400": "1"}
    assert len(rows) == 401
    expect(entered.get_by_text("Best eval loss 1", exact=False)).to_be_visible()


def test_what_happened_to_a_run_is_marked_and_named(entered: Page, charted: str, axe: str) -> None:
    plot = opened(entered, charted)
    for name in ("▲ Checkpoints 1", "Ⅱ Pauses 1", "▶ Resumes 1", "↻ Restarts 1"):
        expect(entered.get_by_role("button", name=name.partition(" ")[2])).to_have_attribute("aria-pressed", "true")
    box = plot.bounding_box()
    assert box is not None
    plot.hover(position={"x": box["width"] * 150 / 400, "y": 60})
    tooltip = entered.locator(".tooltip")
    expect(tooltip).to_contain_text("Checkpoint at step 150")
    expect(tooltip).to_contain_text("Paused at step 150")
    expect(tooltip).to_contain_text("Resumed at step 150")
    expect(tooltip).to_contain_text(f"Attempt 3 after killed, on {WORKER}")
    expect(tooltip.locator("code")).to_have_text(["loss", "eval_loss, held_out_loss"])
    # The others follow the cursor.
    expect(chart(entered, "Perplexity").locator(".position")).to_have_text("Step 150")
    entered.mouse.move(0, 0)
    expect(tooltip).to_have_count(0)
    entered.get_by_role("button", name="Pauses 1").click()
    entered.reload()
    expect(entered.get_by_role("button", name="Pauses 1")).to_have_attribute("aria-pressed", "false")
    entered.get_by_role("button", name="Pauses 1").click()
    looks.check(entered, axe)


def test_an_outlier_does_not_flatten_a_curve_and_is_told(entered: Page, charted: str) -> None:
    opened(entered, charted)
    outside = chart(entered, "Loss").get_by_role("button", name="1 above · Show all")
    outside.click()
    expect(outside).to_have_count(0)
    act(entered, "Loss", "Fit y axis without outliers")
    expect(outside).to_be_visible()
    entered.get_by_role("button", name="Log scale").click()
    expect(outside).to_have_count(0)


def test_charts_are_drawn_by_tokens_epochs_and_time(entered: Page, charted: str) -> None:
    plot = opened(entered, charted)
    for axis, shown in (("Tokens", "Tokens 25,"), ("Epochs", "Epoch "), ("Time", "Elapsed time")):
        entered.get_by_role("group", name="X axis").get_by_role("button", name=axis).click()
        plot.wait_for()
        box = plot.bounding_box()
        assert box is not None
        plot.hover(position={"x": box["width"] / 2, "y": 60})
        plot.hover(position={"x": box["width"] - 1, "y": 60})
        expect(entered.locator(".tooltip strong")).to_have_text(re.compile(f"^{shown}"))


def test_keys_move_the_cursor_and_zoom(entered: Page, charted: str) -> None:
    opened(entered, charted)
    canvas = chart(entered, "Loss").get_by_role("group", name=re.compile("^Loss by Step"))
    entered.get_by_label("Actions: Loss").focus()
    entered.keyboard.press("Tab")
    expect(canvas).to_be_focused()
    entered.keyboard.press("ArrowRight")
    entered.keyboard.press("ArrowRight")
    expect(entered.locator(".tooltip strong")).to_have_text(re.compile("^Step 20[0-4]$"))
    entered.keyboard.press("+")
    entered.wait_for_url("**zoom=101%7E301")
    entered.keyboard.press("Shift+ArrowRight")
    entered.wait_for_url("**zoom=141%7E341")
    entered.keyboard.press("0")
    entered.wait_for_url(lambda url: "zoom" not in url)


def test_what_a_user_arranges_is_kept(entered: Page, charted: str, fleet: LocalFleet, document: Path) -> None:
    opened(entered, charted)
    entered.get_by_role("slider").fill("0.6")
    entered.wait_for_url("**smooth=0.6*")
    act(entered, "Gradient norm", "Pin to the top")
    act(entered, "Perplexity", "Hide")
    entered.get_by_role("button", name="Optimization").click()
    entered.goto(f"/ui/tasks/{charted}?tab=charts")
    expect(entered.get_by_role("slider")).to_have_value("0.6")
    pinned = entered.get_by_role("region", name="Pinned")
    expect(pinned.get_by_role("heading", name="Gradient norm")).to_be_visible()
    expect(entered.get_by_role("heading", name="Perplexity")).to_have_count(0)
    expect(entered.get_by_role("button", name="Optimization")).to_have_attribute("aria-expanded", "false")
    entered.get_by_role("button", name="Optimization").click()
    entered.get_by_role("button", name="Perplexity").click()
    expect(entered.get_by_role("heading", name="Perplexity")).to_be_visible()
    act(entered, "Gradient norm", "Unpin")
    expect(pinned).to_have_count(0)
    entered.get_by_role("slider").fill("0")


def test_charts_are_filtered_by_name_and_metric(entered: Page, charted: str) -> None:
    opened(entered, charted)
    search = entered.get_by_label("Filter charts")
    search.fill("grad_norm")
    expect(entered.locator("figure.chart")).to_have_count(1)
    search.fill("no such metric")
    entered.get_by_role("button", name="Clear filter").click()
    expect(chart(entered, "Loss")).to_be_visible()


def test_a_chart_fills_the_window_and_is_saved_as_a_file(entered: Page, charted: str, axe: str) -> None:
    opened(entered, charted)
    entered.get_by_role("button", name="Full screen: Loss").click()
    dialog = entered.get_by_role("dialog", name="Loss")
    dialog.locator(".u-over").wait_for()
    box = dialog.locator(".canvas").bounding_box()
    assert box is not None
    assert box["height"] > 500
    assert looks.violations(entered, axe) == {}
    entered.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert saved(entered, "Loss", "PNG").startswith(b"\x89PNG")
    picture = saved(entered, "Loss", "SVG").decode()
    for text in (">Loss<", ">Step<", ">Training loss<", ">Eval loss<", "Paused at step 150"):
        assert text in picture


def test_new_points_move_nothing_and_keep_the_zoom(entered: Page, client: Client, worker: Hand, document: Path) -> None:
    attempt = begin(client, worker, document)
    log(attempt, range(1, 201))
    plot = opened(entered, attempt.task_id)
    expect(chart(entered, "Loss").locator(".legend b").first).to_have_text("2.01")
    box = plot.bounding_box()
    assert box is not None
    entered.mouse.move(box["x"] + box["width"] / 4, box["y"] + 60)
    entered.mouse.down()
    entered.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=4)
    entered.mouse.up()
    entered.wait_for_url("**zoom=**")
    entered.mouse.move(0, 0)
    zoom = entered.url
    plot.evaluate("plot => { plot.dataset.same = 'yes'; }")
    before = [each.bounding_box() for each in entered.locator("figure.chart").all()]
    log(attempt, range(201, 301))
    expect(chart(entered, "Loss").locator(".legend b").first).to_have_text("2.007", timeout=PATIENCE_MS)
    assert entered.url == zoom
    assert plot.evaluate("plot => plot.dataset.same") == "yes"
    assert [each.bounding_box() for each in entered.locator("figure.chart").all()] == before
    attempt.finish("completed", "finished", result={"ok": True})
