"""Record docs/img/run.gif from the real page: a run whose trainer is killed, and whose curve continues (`make ui-gif`).

A server and a worker are started for it. The run is real, so is the kill: SIGKILL to the trainer's process.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import sync_playwright

from scripts.web_pictures import ENVIRONMENT, chromium
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.lifecycle.task import FINAL, TaskStatus

ROOT: Final = Path(__file__).resolve().parent.parent
INTO: Final = ROOT / "docs/img/run.gif"
SIZE: Final = (960, 640)
CAPTION_PX: Final = 34
FRAMES: Final = 80
FRAME_MS: Final = 120
LAST_MS: Final = 2500
COLOURS: Final = 96
CHANGES: Final = {"training.max_steps": 160, "training.save_steps": 40, "data.eval.max_samples": 40}
KILL_AT_STEP: Final = 70


class Shot(NamedTuple):
    """A picture of the page, with what happens in it."""

    caption: str
    png: bytes


def trainer_pid(results: Path, task_id: str) -> int:
    """Return the process of a task's trainer, as its job folder names it."""
    (process,) = results.rglob(f"{task_id}/process.json")
    return int(json.loads(process.read_text(encoding="utf-8"))["pid"])


def record(fleet: LocalFleet, client: Client) -> list[Shot]:
    """Train, kill the trainer in the middle, and take pictures until the run has ended."""
    run = client.submit(ROOT / "examples/lora_sft.yaml", overrides=CHANGES)
    shots: list[Shot] = []
    caption, killed_at = "LoRA fine-tune on one machine", 0.0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(
            base_url=fleet.url, viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light"
        )
        page.goto("/ui/")
        page.get_by_label("API key").fill(fleet.key)
        page.get_by_role("button", name="Log in").click()
        page.locator(".shell").wait_for()
        page.goto(f"/ui/tasks/{run.task_id}")
        page.locator("h1").first.wait_for()
        while True:
            task = client.tasks.get(run.task_id)
            step = task.progress.step if task.progress else 0
            if not killed_at and step >= KILL_AT_STEP:
                os.kill(trainer_pid(fleet.results_dir(), run.task_id), signal.SIGKILL)
                caption, killed_at = f"kill -9 of the trainer at step {step}", time.monotonic()
            elif killed_at and time.monotonic() - killed_at > 2.5 and TaskStatus(task.status) not in FINAL:
                caption = "A new trainer resumes from the last checkpoint; the curve continues"
            if TaskStatus(task.status) in FINAL:
                break
            shots.append(Shot(caption, page.screenshot(animations="disabled")))
            page.wait_for_timeout(200)
        page.wait_for_timeout(1500)
        shots.append(Shot("Done: the adapter is ready to download", page.screenshot(animations="disabled")))
        browser.close()
    return shots


def drawn(shot: Shot) -> Image.Image:
    """Return a picture with its caption below."""
    page = Image.open(io.BytesIO(shot.png)).convert("RGB")
    whole = Image.new("RGB", (page.width, page.height + CAPTION_PX), "#1b2230")
    whole.paste(page)
    font = ImageFont.load_default(17)
    ImageDraw.Draw(whole).text((14, page.height + 7), shot.caption, "#ffffff", font)
    return whole


def main() -> int:
    """Record it; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="tunefleet-gif-") as folder:
        fleet = LocalFleet(Path(folder), environment=ENVIRONMENT, save_client=False)
        with fleet, Client(fleet.url, fleet.key) as client:
            shots = record(fleet, client)
    chosen = [shots[round(at * (len(shots) - 1) / (FRAMES - 1))] for at in range(FRAMES)]
    pictures = [drawn(shot) for shot in chosen]
    palette = pictures[-1].quantize(COLOURS, Image.Quantize.MEDIANCUT)
    frames = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    durations = [FRAME_MS] * (FRAMES - 1) + [LAST_MS]
    frames[0].save(INTO, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    print(f"wrote {INTO.relative_to(ROOT)}: {INTO.stat().st_size / 1e6:.1f} MB from {len(shots)} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
