"""The pages of sweeps in a real browser: trials as they are measured, their ranking, and how to stop one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.story import until
from tests.browser import looks
from tests.browser.byhand import Attempt, Hand
from tests.browser.conftest import started
from tests.integration.sweeps.documents import document
from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def fleet(built: None, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    """A server alone: the test plays the worker."""
    required("optuna")
    with started(tmp_path_factory, free_port(), workers=0) as made:
        yield made


def measure(attempt: Attempt, step: int, **values: float) -> None:
    attempt.write({"type": "metric", "step": step, "series": "train", "values": values})


def test_a_sweep_is_watched_ranked_and_stopped(entered: Page, client: Client, worker: Hand, axe: str) -> None:
    page = entered
    page.goto("/ui/sweeps")
    expect(page.get_by_text("No sweeps yet")).to_be_visible()
    sweep = (
        "{sampler: grid, parallel: 5, pruner: {name: asha, reduction_factor: 2}, "
        "parameters: {training.learning_rate: [1e-5, 1e-4, 1e-3, 1e-2], lora.r: [2, 4]}}"
    )
    made = client.sweep(document(sweep))
    until(lambda: len(client.sweeps.get(made.id).trial_list) == 5, "five trials")
    trials = sorted(client.sweeps.get(made.id).trial_list, key=lambda each: each.number)
    # The worker has one GPU: the next trial is offered when the one before has ended.
    first = Attempt(worker, trials[0].task_id or "")
    page.reload()
    page.get_by_role("link", name="small").click()
    expect(page.get_by_role("heading", name="small")).to_be_visible()
    expect(page.get_by_role("table")).to_contain_text("Learning rate")
    measure(first, 2, eval_loss=1.5)
    expect(page.get_by_role("table")).to_contain_text("1.5")
    measure(first, 8, held_out_loss=1.4)
    first.finish("completed", "finished")

    # What is worse at the same evaluation is stopped, by a command that the worker gets.
    second = Attempt(worker, trials[1].task_id or "")
    measure(second, 2, eval_loss=9.5)
    until(lambda: any(each["command"] == "graceful_stop" for each in worker.told.values()), "the command to stop")
    second.finish("completed", "stopped_early")
    expect(page.get_by_role("table")).to_contain_text("pruned")

    for trial, loss in zip(trials[2:], (1.3, 0.7, 1.2), strict=True):
        attempt = Attempt(worker, trial.task_id or "")
        measure(attempt, 8, held_out_loss=loss)
        attempt.finish("completed", "finished")
    best = page.get_by_role("row").nth(1)
    expect(best).to_contain_text("0.7")
    expect(best.get_by_role("cell").first).to_have_text(str(trials[3].number))
    expect(page.get_by_role("region", name="Parallel coordinates")).to_be_visible()
    expect(page.get_by_role("heading", name="Parameter importance")).to_be_visible()
    looks.check(page, axe)

    page.get_by_role("button", name="Stop sweep").click()
    page.get_by_role("button", name="Stop sweep").last.click()
    expect(page.locator(".task-head")).to_contain_text("Stopped by")
    until(lambda: client.sweeps.get(made.id).status == "stopped", "queued trials are cancelled")
    assert client.sweeps.get(made.id).states == {"completed": 4, "pruned": 1, "stopped": 3}
    page.get_by_role("link", name="Compare runs").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
