"""Draw every page of the web page, light and dark, on a desktop and a phone, into docs/img: `make ui-pictures`.

A server and a worker are started for it, two trainings and a workflow run first, and a third one while it draws.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from scripts import web_pictures_data, web_pictures_fed, web_pictures_set
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

ROOT = Path(__file__).resolve().parent.parent
INTO = ROOT / "docs/img"
ENVIRONMENT = {
    "TUNEFLEET_ELASTIC": "false",
    "HF_HUB_OFFLINE": "1",
    "TUNEFLEET_LOG_FILE": "",
    "TUNEFLEET_JOB_SLOTS": "2",
}
SIZES = {"desktop": (1280, 800), "phone": (390, 780)}
PATIENCE_S = 900.0
LOADED_MS = 60_000
SETTLED_MS = 1500
COLOURS = 144


def prepare(client: Client, folder: Path) -> dict[str, str]:
    """Let something happen that can be shown; return page → address."""
    example = ROOT / "examples/lora_sft.yaml"
    small = {
        "data.eval.max_samples": 8,
        "training.save_steps": 10,
        "training.batch_size": 4,
        "training.max_seq_length": 128,
    }
    first = client.submit(example, overrides={**small, "training.max_steps": 40})
    second = client.submit(example, overrides={**small, "training.max_steps": 40, "lora.r": 4, "training.seed": 1})
    diamond = client.submit(ROOT / "examples/workflows/diamond.yaml")
    wrong = client.submit(example, overrides={"model.source.identifier": "example/no-such-model"})
    for run in (first, second, wrong):
        client.tasks.wait(run.task_id, timeout_s=PATIENCE_S)
    client.workflows.wait(diamond.workflow.id, timeout_s=PATIENCE_S)
    of_data = web_pictures_data.prepare(client, first.task_id, folder)
    live = client.submit(example, overrides={**small, "training.max_steps": 300})
    for _ in range(2):
        client.submit(example, overrides=small)
    for point in client.tasks.follow_metrics(live.task_id):
        if point.step >= 30:
            break
    return {
        "overview": "/ui/",
        "tasks": "/ui/tasks",
        "task": f"/ui/tasks/{live.task_id}",
        "task-files": f"/ui/tasks/{first.task_id}?tab=files",
        "task-failed": f"/ui/tasks/{wrong.task_id}",
        "train": "/ui/train",
        "gallery": "/ui/new",
        "new": "/ui/new?template=lora_sft",
        "compare": f"/ui/compare?tasks={first.task_id},{second.task_id}",
        "workflow": f"/ui/workflows/{diamond.workflow.id}",
        "workers": "/ui/workers",
        **of_data,
    }


def machine(fleet: LocalFleet, client: Client) -> web_pictures_set.GpuDouble:
    """Return a machine with GPUs, which this one may lack."""
    key = client.keys.create("gpu-machine", "worker").secret
    return web_pictures_set.GpuDouble(fleet.url, key, web_pictures_set.DOUBLE)


def draw(browser: Browser, fleet: LocalFleet, addresses: dict[str, str]) -> None:
    """Draw each page in each way."""
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(
                base_url=fleet.url,
                viewport={"width": width, "height": height},
                color_scheme=scheme,  # type: ignore[arg-type]
            )
            page = context.new_page()
            page.goto("/ui/")
            page.get_by_label("API key").wait_for()
            save(page, f"login-{size}-{scheme}")
            page.get_by_label("API key").fill(fleet.key)
            page.get_by_role("button", name="Log in").click()
            page.locator(".shell").wait_for()
            for name, address in addresses.items():
                page.goto(address)
                page.locator("h1").first.wait_for()
                expect(page.locator(".loading")).to_have_count(0, timeout=LOADED_MS)
                if name == web_pictures_data.CHAT:
                    web_pictures_data.say(page)
                page.wait_for_timeout(SETTLED_MS)
                save(page, f"{name}-{size}-{scheme}")
            context.close()


def save(page: Page, name: str) -> None:
    """Write one picture, in as few colours as tell its lines apart: a third of the bytes."""
    path = INTO / f"{name}.png"
    with Image.open(io.BytesIO(page.screenshot(animations="disabled"))) as drawn:
        colours = drawn.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        colours.save(path, optimize=True)
    print(f"wrote {path.relative_to(ROOT)}", flush=True)


def main() -> int:
    """Do it all; return the exit code."""
    INTO.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tunefleet-pictures-") as folder, sync_playwright() as playwright:
        fleet = LocalFleet(Path(folder), environment=ENVIRONMENT, save_client=False)
        with fleet, Client(fleet.url, fleet.key) as client, machine(fleet, client):
            addresses = {
                **web_pictures_fed.prepare(client, fleet.url),
                **web_pictures_set.prepare(client),
                **prepare(client, Path(folder)),
            }
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            draw(browser, fleet, addresses)
            browser.close()
            for task in client.tasks.iterate(status="running,queued"):
                client.tasks.cancel(task.id)
    return 0


def chromium() -> str:
    """Return the browser; `scripts/browser.sh` installs one."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit("There is no Chromium on the PATH: run scripts/browser.sh")
    return found


if __name__ == "__main__":
    sys.exit(main())
