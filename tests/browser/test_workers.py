"""Workers in a real browser: a machine with GPUs, what an administrator asks of it, a page for each, agents."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from scripts.web_pictures_set import GpuDouble
from tests.browser.byhand import publish
from tests.browser.conftest import PATIENCE_MS, PATIENCE_S
from tests.integration.api.support import HandWorker, until
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
GIB = 1 << 30


@pytest.fixture(scope="module")
def fleet(own_fleet: LocalFleet) -> LocalFleet:
    return own_fleet


def pinned(worker_id: str) -> str:
    return f"""apiVersion: tunefleet/v1
kind: Workflow
metadata: {{name: pinned}}
spec: {{taskType: echo, resources: {{tags: [{worker_id}]}}, data: {{type: list, items: [a]}}}}
"""


@pytest.fixture
def worker(client: Client) -> str:
    """The real one."""
    return next(each.id for each in client.workers.list().items if not each.capabilities.gpus)


@pytest.fixture(scope="module")
def double(fleet: LocalFleet) -> Iterator[GpuDouble]:
    with Client(fleet.url, fleet.key) as client:
        key = client.keys.create("gpu-machine", "worker").secret
    with GpuDouble(fleet.url, key, "dgx-1") as made:
        yield made


def test_gpus_are_shown_with_what_is_full_and_how_busy_they_are(
    entered: Page, client: Client, double: GpuDouble
) -> None:
    machine = entered.locator(".machine", has=entered.get_by_role("link", name=double.worker_id))
    expect(machine).to_contain_text("4 × NVIDIA H100 80GB HBM3")
    until(lambda: client.workers.get(double.worker_id).load is not None)
    bars = machine.get_by_role("progressbar", name=re.compile(r"^GPU \d is busy"))
    expect(bars).to_have_count(4, timeout=PATIENCE_MS)
    expect(machine.get_by_role("progressbar", name="Memory of GPU 0, in use")).to_have_attribute("aria-valuenow", "85")
    expect(machine).to_contain_text("68.0 / 80.0 GiB")
    expect(machine).to_contain_text(re.compile(r"\d\d °C"))
    expect(machine).to_contain_text("GPU 3 is used by jupyter (pid 4711)")
    expect(entered.locator(".tiles")).to_contain_text("Use of 4 GPUs")


def test_the_charts_of_a_worker_move(entered: Page, double: GpuDouble) -> None:
    entered.goto("/ui/workers")
    entered.get_by_role("link", name=double.worker_id).click()
    expect(entered).to_have_url(re.compile(f"/ui/workers/{double.worker_id}$"))
    chart = entered.locator("figure.chart", has=entered.get_by_role("heading", name="GPU busy (%)"))
    shown = chart.locator(".legend b").first
    expect(shown).to_be_visible(timeout=PATIENCE_MS)
    before = shown.inner_text()
    expect(shown).not_to_have_text(before, timeout=PATIENCE_MS)
    double.rest()
    (still, *_) = double.load(0.0)["gpus"]
    expect(shown).to_have_text(f"{still['utilisation_percent']:g}", timeout=PATIENCE_MS)
    entered.get_by_role("button", name="24 h").click()
    expect(entered).to_have_url(re.compile("hours="))
    entered.reload()
    expect(chart).to_be_visible(timeout=PATIENCE_MS)
    expect(entered.get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")


def test_a_cordoned_worker_gets_nothing_until_it_is_uncordoned(entered: Page, client: Client, worker: str) -> None:
    entered.goto(f"/ui/workers/{worker}")
    entered.get_by_role("button", name="Cordon", exact=True).click()
    expect(entered.get_by_role("button", name="Uncordon")).to_be_visible()
    assert client.workers.get(worker).cordoned
    task_id = client.submit(pinned(worker)).task_id
    until(lambda: "cordoned" in (client.tasks.get(task_id).why or ""))
    expect(entered.locator("h1 + .status")).to_have_text("cordoned")
    expect(entered.get_by_role("button", name="Standby")).to_have_count(0)  # scaling is switched off here
    entered.get_by_role("button", name="Uncordon").click()
    client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert (client.tasks.get(task_id).status, client.tasks.get(task_id).worker_id) == ("completed", worker)
    row = entered.locator("tr", has_text="pinned").first
    expect(row).to_contain_text("completed", timeout=PATIENCE_MS)
    expect(row.get_by_role("link")).to_have_attribute("href", f"/ui/tasks/{task_id}")


def test_a_drained_worker_is_told_so_once_it_is_confirmed(entered: Page, client: Client, double: GpuDouble) -> None:
    entered.goto("/ui/workers")
    card = entered.get_by_role("region", name=double.worker_id)
    card.get_by_role("button", name="Drain").click()
    entered.get_by_role("button", name="Cancel").click()
    assert not client.workers.get(double.worker_id).draining
    card.get_by_role("button", name="Drain").click()
    entered.get_by_role("button", name="Drain worker").click()
    expect(card.locator(".status")).to_have_text("draining")
    assert client.workers.get(double.worker_id).draining
    card.get_by_role("button", name="Uncordon").click()
    expect(card.get_by_role("button", name="Cordon", exact=True)).to_be_visible()
    assert not client.workers.get(double.worker_id).draining


def test_a_task_is_begun_on_one_machine(entered: Page, worker: str) -> None:
    entered.goto(f"/ui/workers/{worker}")
    entered.get_by_role("link", name="New run here").click()
    entered.get_by_role("button", name=re.compile("^LoRA fine-tuning")).click()
    expect(entered.locator(".cm-content")).to_contain_text(f"tags: [ {worker} ]")
    expect(entered.get_by_role("heading", name="Placement")).to_be_visible()


def test_the_commands_to_join_name_this_server(entered: Page, fleet: LocalFleet) -> None:
    entered.goto("/ui/workers")
    entered.get_by_role("button", name="Join a machine").click()
    for tab, word in (("over Redis", "REDIS_URL"), ("agent", "BACKEND_URL")):
        entered.get_by_role("tab", name=tab).click()
        expect(entered.locator(".copyable pre").last).to_contain_text(word)
        expect(entered.locator(".copyable pre").last).to_contain_text(fleet.url)


def test_a_machine_is_invited_and_the_command_is_good_once(entered: Page, fleet: LocalFleet, client: Client) -> None:
    entered.goto("/ui/workers")
    entered.get_by_role("button", name="Join a machine").click()
    form = entered.get_by_role("form", name="New invitation")
    form.get_by_label("Worker name").fill("lab-3")
    form.get_by_label("Tags").fill("a100, lab")
    form.get_by_role("button", name="Create command").click()
    command = entered.locator(".secret .copyable pre")
    expect(command).to_contain_text(f"tunefleet join {fleet.url} tfj_")
    said = {"token": command.inner_text().split()[-1], "secret_hash": "0" * 64}
    reply = httpx.post(f"{fleet.url}/api/v1/join", json=said).json()
    assert (reply["worker_id"], reply["tags"]) == ("lab-3", ["a100", "lab"])
    again = httpx.post(f"{fleet.url}/api/v1/join", json={**said, "secret_hash": "1" * 64})
    assert again.status_code == 409
    entered.get_by_role("button", name="Done").click()
    expect(command).to_have_count(0)


def test_agents_that_poll_stand_beside_the_workers(entered: Page, fleet: LocalFleet, client: Client) -> None:
    key = client.keys.create("my-pc", "worker").secret
    headers = {"Authorization": f"Bearer {key}", "X-Agent-ID": "agent_0123456789abcdef", "X-Agent-Hostname": "my-pc"}
    assert httpx.get(f"{fleet.url}/api/training/agent/poll", headers=headers).status_code == 200
    entered.goto("/ui/workers")
    row = entered.locator("tr", has_text="agent_0123456789abcdef")
    expect(row).to_contain_text("online", timeout=PATIENCE_MS)
    expect(row).to_contain_text("my-pc")


STAGES = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: handed}
spec:
  resources: {tags: [by-hand]}
  stages:
    - name: first
      spec: {taskType: echo, data: {type: list, items: [a]}}
    - name: trained
      spec:
        taskType: lora_sft
        resources: {tags: [trainer]}
        model: &model {source: {identifier: "builtin:gsm8k-llama-2m"}}
        data: {prompts: [a]}
    - name: second
      spec:
        taskType: lora_sft
        model: *model
        data: {prompts: ["${first.result.items.0.output}"]}
        checkpoint: {load: {taskId: "${trained.task_id}"}}
"""


def test_what_is_passed_stands_at_the_edge_and_leads_to_it(entered: Page, fleet: LocalFleet, client: Client) -> None:
    key = client.keys.create("by-hand", "worker").secret
    with httpx.Client(base_url=f"{fleet.url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=60) as link:
        hand, trainer = HandWorker(link, "by-hand"), HandWorker(link, "trainer", kind="lora_sft", slot_class="job")
        hand.register()
        trainer.register()
        workflow = client.submit(STAGES).workflow
        first, trained = (next(task for task in workflow.tasks if task.name == name) for name in ("first", "trained"))
        entered.goto(f"/ui/workflows/{workflow.id}")
        passed = entered.locator(".passed")
        expect(passed.filter(has_text="result.items.0.output")).to_be_visible()
        ended = {"outcome": "completed", "reason": "finished"}
        result = {"ok": True, "items": [{"output": "a"}]}
        hand.exchange(finishes=[{**ended, "token": hand.take(first.id), "result": result}])
        token = trainer.take(trained.id)
        own = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=link.base_url, headers=own) as attempt:
            publish(attempt, trained.id, ("final_lora", "adapter"), "adapter_model.safetensors", b"weights")
        trainer.exchange(finishes=[{**ended, "token": token, "result": {"ok": True}}])
        until(lambda: client.tasks.get(trained.id).status == "completed")
    artifact = passed.get_by_role("link")
    expect(artifact).to_contain_text("final_lora", timeout=PATIENCE_MS)
    expect(artifact).to_contain_text("adapter · 7 B")
    artifact.click()
    expect(entered.get_by_role("tab", name="Checkpoints and artifacts")).to_have_attribute("aria-selected", "true")
    expect(entered.get_by_role("link", name="adapter_model.safetensors")).to_be_visible()
    client.workflows.cancel(workflow.id)
