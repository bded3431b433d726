"""SIGKILL to a server at the boundaries of a campaign's steps and inside them, with a provider that bills each task.

Whoever starts next goes on: each chunk is paid for once, none is left out, and no interval begins again. A round's
kills follow from its number alone, so that a failure can be played again; `make campaign-chaos` plays more.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes import billed_package
from tests.fakes.billing import Billing, billing
from tunefleet.client import Client
from tunefleet.errors import TunefleetError
from tunefleet.lifecycle.cycle import STEPS
from tunefleet.schemas.campaign import CampaignDetail, CycleView
from tunefleet.spec.documents.campaign_document import CampaignSpec

ASKED = os.environ.get("TUNEFLEET_CHAOS_ROUNDS")
ROUNDS = int(ASKED or "5")
pytestmark = [pytest.mark.proof, pytest.mark.timeout(300 if ASKED is None else 0)]
"""Many rounds run to their end, however busy the machine is: each wait has a limit of its own."""
CYCLES = 3
KILLS = 7
INTERVAL_S = 0.9
ROWS = 60
PATIENCE_S = 150.0


class Fleet:
    """A server that dies and comes back on its port and data, and a worker that lives on."""

    def __init__(self, folder: Path, port: int, environment: Mapping[str, str]) -> None:
        self.folder, self.port, self.environment = folder, port, {**os.environ, **environment}
        self.server: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, role: str) -> str:
        return (self.folder / "data" / "keys" / f"{role}.key").read_text().strip()

    def client(self) -> Client:
        return Client(self.url, self.key("admin"), patience_s=60.0)

    def start_server(self) -> None:
        self.server = self._run("server", "--data", str(self.folder / "data"), "--port", str(self.port))
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self.server.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def start_worker(self) -> None:
        self.environment["TUNEFLEET_WORKER_KEY"] = self.key("worker")
        self.worker = self._run("worker", "--server", self.url, "--results-dir", str(self.folder / "results"))

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()

    def end(self) -> None:
        for process in (self.worker, self.server):
            if process is not None and process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                process.kill()
                process.wait()

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", {"server": "tunefleet.api"}.get(name, f"tunefleet.{name}"), *arguments]
            return subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=log, stderr=log)

    def _answers(self) -> bool:
        try:
            with Client(self.url, self.key("admin"), patience_s=0.0) as client:
                return client.info().authenticated
        except (OSError, TunefleetError):
            return False


@contextlib.contextmanager
def serving(folder: Path, port: int, bills: Billing, **more: str) -> Iterator[Fleet]:
    """A server and a worker that know the provider which bills; its package is installed in `layer` of the folder."""
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder / "layer"), os.environ.get("PYTHONPATH")))),
        billed_package.ADDRESS: bills.url,
        "ENABLE_ELASTIC_SCALING": "false",
        "TUNEFLEET_WARM_START": "false",
        "TUNEFLEET_JOB_SLOTS": "2",
        **more,
    }
    made = Fleet(folder, port, environment)
    try:
        made.start_server()
        made.start_worker()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def bills() -> Iterator[Billing]:
    with billing(answer_s=0.08) as state:
        yield state


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], bills: Billing) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("campaign-kills")
    billed_package.install(folder / "layer")
    with serving(folder, free_port(), bills) as made:
        yield made


def spec() -> CampaignSpec:
    hours = INTERVAL_S / 3600
    return CampaignSpec.model_validate({
        "enabled": True,
        "provider": "billed",
        "model_repo": "org/nothing",
        "datasets": [
            {"path": "builtin:gsm8k", "max_rows": ROWS, "field_instruction": "question", "field_output": "answer"}
        ],
        "samples_per_training": 20,
        "final_test_size": 0.1,
        "dedupe": {"rows": "exact"},
        "run_intervals": {"min_hours": hours, "max_hours": hours},
        "budget": {"cost_per_task": 2.0, "cost_per_second": 0.5, "max_cost": 100_000.0},
    })  # fmt: skip


def plan(number: int) -> list[tuple[int, str, float]]:
    """At which step of which cycle, how long after it was begun, in order; over the rounds every step has its turn."""
    dice = random.Random(number)
    every = [(cycle, step.value) for cycle in range(CYCLES) for step in STEPS]
    turn = [every[(number * KILLS + each) % len(every)] for each in range(0, KILLS, 2)]
    chosen = sorted({*turn, *dice.sample(every, k=KILLS - len(turn))}, key=every.index)
    return [(cycle, step, dice.choice((0.0, dice.uniform(0.0, 0.15)))) for cycle, step in chosen]


def until(look: Callable[[], CampaignDetail], over: Callable[[CampaignDetail], bool]) -> CampaignDetail:
    deadline = time.monotonic() + PATIENCE_S
    while not over(found := look()):
        assert time.monotonic() < deadline, found
        assert found.status == "active", found.reason
        time.sleep(0.01)
    return found


def reached(cycle: int, step: str) -> Callable[[CampaignDetail], bool]:
    order = [each.value for each in STEPS]

    def over(found: CampaignDetail) -> bool:
        now = found.cycle
        if now is None or now.number < cycle:
            return False
        return now.number > cycle or now.status != "running" or order.index(now.step) >= order.index(step)

    return over


def rounds() -> list[Any]:
    """All of them; each takes minutes, and `test_quick_kills` kills the engine alone at the same points in seconds."""
    return [pytest.param(number, id=f"round-{number}", marks=[pytest.mark.proof]) for number in range(ROUNDS)]


@pytest.mark.parametrize("number", rounds())
def test_each_chunk_is_paid_for_once_whoever_is_killed(fleet: Fleet, bills: Billing, number: int) -> None:
    name = f"round-{number}"
    before = len(bills.tasks)
    with fleet.client() as client:
        client.campaigns.apply({name: spec()})
        killed = 0
        for cycle, step, delay_s in plan(number):
            until(lambda: client.campaigns.get(name), reached(cycle, step))
            time.sleep(delay_s)
            fleet.kill_server()
            killed += 1
            fleet.start_server()
        done = until(lambda: client.campaigns.get(name), lambda found: found.cycles > CYCLES)
        client.campaigns.stop(name)
        cycles = sorted((each for each in done.cycle_list if each.number < CYCLES), key=lambda each: each.number)
        _check_orders(bills.tasks[before:], cycles, done.id)
        _check_chunks(cycles)
        _check_intervals(done, cycles)
        versions = client.models.list(name=name).items
    assert killed >= KILLS - 1
    assert [each.status for each in cycles] == ["completed"] * CYCLES
    assert done.spent >= CYCLES * (2.0 + 10.0 * 0.5)
    assert {each.cycle: each.stage.value for each in versions if each.cycle < CYCLES} == {
        0: "promoted", 1: "archived", 2: "archived",
    }, "the first is better than the base, the others are no better than it"  # fmt: skip


def _check_orders(tasks: list[dict[str, Any]], cycles: list[CycleView], campaign_id: str) -> None:
    keys = [task["key"] for task in tasks]
    assert len(set(keys)) == len(keys), "an order was placed, and paid for, twice"
    mine = {task["key"]: task for task in tasks if task["key"] in {f"{campaign_id}/{each}" for each in range(CYCLES)}}
    assert len(mine) == CYCLES
    digests = [task["digest"] for task in mine.values()]
    assert len(set(digests)) == CYCLES, "a chunk was ordered twice"
    assert digests == [outcome(cycle, "data")["chunk"]["digest"] for cycle in cycles]
    assert [cycle.cost for cycle in cycles] == [2.0 + 10.0 * 0.5] * CYCLES


def _check_chunks(cycles: list[CycleView]) -> None:
    parts = [outcome(cycle, "data") for cycle in cycles]
    assert [(part["epoch"], part["index"]) for part in parts] == [(0, 0), (0, 1), (0, 2)]
    assert [part["start"] for part in parts] == [0, *(part["stop"] for part in parts[:-1])], "rows were left out"
    assert parts[-1]["stop"] == parts[-1]["train"]["rows"]
    assert len({part["train"]["digest"] for part in parts}) == 1
    assert len({part["test"]["digest"] for part in parts}) == 1


def _check_intervals(done: CampaignDetail, cycles: list[CycleView]) -> None:
    everyone = sorted(done.cycle_list, key=lambda each: each.number)
    for cycle, after in zip(cycles, everyone[1:], strict=False):
        slept = outcome(cycle, "sleep")
        (step,) = [each for each in cycle.steps if each.name == "sleep"]
        assert slept["next_at"] == pytest.approx(step.begun_at.timestamp() + INTERVAL_S, abs=0.5), "drawn anew"
        assert after.opened_at.timestamp() >= slept["next_at"]


def outcome(cycle: CycleView, step: str) -> Mapping[str, Any]:
    (found,) = [each for each in cycle.steps if each.name == step]
    assert found.outcome is not None
    return found.outcome
