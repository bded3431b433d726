"""A task's own page in a real browser: log, predictions, charts, files and spec, of trainings that a test writes."""

from __future__ import annotations

import io
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import looks
from tests.browser.byhand import GIB, WORKER, Attempt, Hand, begin
from tests.browser.conftest import PATIENCE_MS
from tests.integration.api.support import until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
TRAINING = f"""apiVersion: tunefleet/v1
kind: LoRASFTTask
metadata: {{name: written}}
spec:
  taskType: lora_sft
  resources: {{tags: [{WORKER}]}}
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{path: rows.jsonl}}
"""
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in step\nValueError: the loss is no number'
PROMPTS = ("How many are 2 dozen eggs?", "How many are 3 dozen eggs?")
STEPS_S = 1000.0
"""The points of a training lie so far apart that all that happens in a test is between two of them."""


@pytest.fixture(scope="module")
def fleet(lone_server: LocalFleet) -> LocalFleet:
    return lone_server


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with a file that comes along."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "rows.jsonl").write_text('{"text": "a row"}\n', encoding="utf-8")
    (folder / "training.yaml").write_text(TRAINING, encoding="utf-8")
    return folder / "training.yaml"


@pytest.fixture
def attempt(client: Client, worker: Hand, document: Path) -> Iterator[Attempt]:
    made = begin(client, worker, document)
    yield made
    if made.token in worker.holding:
        made.finish("completed", "finished", result={"ok": True})


def below(box: Locator) -> int:
    """Return how many pixels of a box are below what is seen of it."""
    return int(box.evaluate("box => Math.round(box.scrollHeight - box.scrollTop - box.clientHeight)"))


def test_a_log_is_followed_searched_and_sorted_by_level(entered: Page, attempt: Attempt) -> None:
    attempt.log("INFO begins\nWARNING the disk is nearly full\nERROR no such row\n")
    entered.goto(f"/ui/tasks/{attempt.task_id}?tab=log")
    log = entered.get_by_role("log")
    lines = log.locator("> div")
    expect(lines).to_have_count(3)
    attempt.log("".join(f"INFO step {step}\n" for step in range(200)))
    expect(lines).to_have_count(203)
    expect(lines.last).to_have_text("INFO step 199")
    until(lambda: below(log) <= 1)

    # Who looks back is left there.
    log.hover()
    entered.mouse.wheel(0, -2000)
    follow = entered.get_by_role("button", name="Follow")
    expect(follow).to_have_attribute("aria-pressed", "false")
    attempt.log("INFO and more\n")
    expect(lines).to_have_count(204)
    assert below(log) > 500
    follow.click()
    until(lambda: below(log) <= 1)

    entered.get_by_label("Search the log").fill("DISK")
    expect(lines).to_have_text(["WARNING the disk is nearly full"])
    expect(log.locator("mark")).to_have_text("disk")
    expect(entered.get_by_text("1 of 204 lines")).to_be_visible()
    entered.get_by_label("Search the log").fill("")
    entered.get_by_label("Level").select_option("warning")
    expect(lines).to_have_text(["WARNING the disk is nearly full", "ERROR no such row"])
    entered.get_by_label("Level").select_option("error")
    expect(lines).to_have_text(["ERROR no such row"])


def test_the_last_error_stands_on_top_with_its_traceback(entered: Page, client: Client, attempt: Attempt) -> None:
    attempt.log(f"INFO step 1\n{TRACEBACK}\n")
    entered.goto(f"/ui/tasks/{attempt.task_id}")
    attempt.finish("failed", "diverged", error="The loss is no number.", detail=TRACEBACK)
    until(lambda: client.tasks.get(attempt.task_id).status == "failed")
    known = client.tasks.get(attempt.task_id)
    fault = entered.get_by_label("Error", exact=True)
    expect(fault).to_contain_text(known.error or "?")
    expect(fault.locator("pre")).to_have_text(known.detail or "?")
    expect(fault.locator("pre")).to_contain_text("line 7, in step")
    (top, tabs) = (fault.bounding_box(), entered.get_by_role("tablist").bounding_box())
    assert top is not None
    assert tabs is not None
    assert top["y"] + top["height"] <= tabs["y"]


def test_what_became_of_a_command_stands_beside_it(
    entered: Page, client: Client, worker: Hand, attempt: Attempt
) -> None:
    entered.goto(f"/ui/tasks/{attempt.task_id}")
    entered.get_by_role("button", name="Evaluate", exact=True).click()
    until(lambda: any(each["token"] == attempt.token for each in worker.told.values()))
    (told,) = (each for each in worker.told.values() if each["token"] == attempt.token)
    assert told["command"] == "evaluate"
    worker.exchange(outcomes=[{"command_id": told["command_id"], "state": "applied", "step": 30}])
    row = entered.get_by_role("list", name="Commands").locator(f"li[title^='{told['command_id']}']")
    expect(row).to_contain_text("applied at step 30")
    (known,) = client.tasks.commands(attempt.task_id)
    assert (known.id, known.state, known.step) == (told["command_id"], "applied", 30)


def test_predictions_of_two_evaluations_stand_beside_each_other(
    entered: Page, client: Client, attempt: Attempt, axe: str
) -> None:
    attempt.write(
        *(
            {
                "type": "prediction", "step": step, "index": index, "prompt": prompt, "reference": str(12 * index),
                "output": f"at {step}: {index} <b>dozen</b>",
            }
            for step in (10, 20)
            for index, prompt in enumerate(PROMPTS, 2)
        )
    )  # fmt: skip
    entered.goto(f"/ui/tasks/{attempt.task_id}?tab=predictions")
    panels = entered.get_by_role("tabpanel").locator(".panel")
    expect(panels).to_have_count(len(PROMPTS))
    for index, (panel, prompt) in enumerate(zip(panels.all(), PROMPTS, strict=True), 2):
        expect(panel.get_by_role("heading")).to_have_text(prompt)
        said = panel.locator("pre")
        expect(said).to_have_text([f"at 10: {index} <b>dozen</b>", f"at 20: {index} <b>dozen</b>", str(12 * index)])
        places = [each.bounding_box() or {} for each in said.all()]
        assert len({place["y"] for place in places}) == 1
        assert places[0]["x"] < places[1]["x"] < places[2]["x"]
    looks.check(entered, axe)


def test_a_checkpoint_is_downloaded_and_what_the_spec_has_taken_leads_to_it(
    entered: Page, client: Client, attempt: Attempt, axe: str
) -> None:
    digest = "sha256:" + "0" * 64
    record = {"type": "checkpoint", "digest": digest, "size_bytes": 5}
    attempt.write(*({**record, "step": step, "name": f"checkpoint-{step}"} for step in (10, 20)))
    about = {"digest": digest, "step": 20}
    attempt.publish("checkpoint-20", "checkpoint", "adapter_model.safetensors", b"state", about)
    entered.goto(f"/ui/tasks/{attempt.task_id}?tab=files")
    rows = entered.locator(".panel", has=entered.get_by_role("heading", name="Checkpoints")).locator("tbody tr")
    expect(rows).to_have_count(2)
    assert [each.artifact for each in client.tasks.checkpoints(attempt.task_id)] == [None, "checkpoint-20"]
    expect(rows.last.get_by_role("link", name="Download")).to_have_count(0)
    with entered.expect_download() as download:
        rows.first.get_by_role("link", name="Download").click()
    with tarfile.open(fileobj=io.BytesIO(download.value.path().read_bytes())) as archive:
        (file,) = (each for each in archive.getmembers() if each.name.endswith("adapter_model.safetensors"))
        found = archive.extractfile(file)
        assert found is not None
        assert found.read() == b"state"

    entered.get_by_role("tab", name="Spec").click()
    (taken,) = client.tasks.get(attempt.task_id).inputs.values()
    source = client.artifacts.get(taken)
    entered.get_by_role("link", name=source.name).click()
    entered.wait_for_url(f"**/ui/datasets?id={source.id}")
    expect(entered.get_by_role("heading", name=source.name)).to_be_visible()
    looks.check(entered, axe)


def history(fleet: LocalFleet) -> list[dict[str, Any]]:
    """Return what the server has kept of the worker's load."""
    asked = httpx.get(f"{fleet.url}/api/v1/workers/{WORKER}/history", headers={"Authorization": f"Bearer {fleet.key}"})
    samples: list[dict[str, Any]] = asked.raise_for_status().json()["samples"]
    return samples


def test_every_series_of_a_task_is_drawn_and_its_machine_beside_the_steps(
    entered: Page, fleet: LocalFleet, attempt: Attempt, axe: str
) -> None:
    began = time.time() - 1.0
    taken = {"type": "progress", "phase": "training", "max_steps": 900, "gpu_bytes": 3 * GIB, "rss_bytes": GIB}
    attempt.write(
        *(
            {"type": "metric", "step": step, "at": began + step * STEPS_S / 100, "values": {"loss": 3 - step / 100}}
            for step in (0, 100)
        ),
        *({"type": "metric", "series": "train-2", "step": s, "values": {"loss": 7 - s}} for s in range(1, 4)),
        *({"type": "metric", "series": "dice", "step": s, "values": {"luck": 40 + s}} for s in range(3)),
        *({**taken, "step": step, "at": began + 20 * step} for step in range(3)),
    )
    until(lambda: len(history(fleet)) >= 2)
    entered.goto(f"/ui/tasks/{attempt.task_id}")
    shown = {
        "Loss": "2", "Loss · train-2": "4", "Luck · dice": "42", "GPU memory of the run (GiB)": "3",
        "Memory of the run (GiB)": "1", "GPU memory (GiB)": "60", "GPU utilization (%)": "97",
    }  # fmt: skip
    for title, last in shown.items():
        chart = entered.locator("figure.chart", has=entered.get_by_role("heading", name=title, exact=True))
        expect(chart.locator(".legend b").first).to_have_text(last, timeout=PATIENCE_MS)
    entered.get_by_role("button", name=re.compile("^Time")).click()
    for title in shown:
        expect(entered.get_by_role("heading", name=title, exact=True)).to_be_visible()
    looks.check(entered, axe)
