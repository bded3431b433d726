"""The queue does what its model does, whatever users, workers, admins and time do to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.postgres.everywhere import Everywhere
from tests.integration.postgres.process import PostgresProcess
from tests.properties.machine import QueueMachine
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.settings import ServerSettings


def run(fresh: Path, examples: int, steps: int, *, repeats: bool) -> None:
    """Drive machines; those that repeat are the same in each run of the suite, and none looks for a shorter way there.

    A failure prints what was done; to shorten it takes many times as long as to find it.
    """
    limits = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck),
        derandomize=repeats, database=None, print_blob=True,
        phases=[Phase.generate] if repeats else [Phase.generate, Phase.shrink],
    )  # fmt: skip
    run_state_machine_as_test(lambda: QueueMachine(fresh), settings=limits)


@pytest.mark.timeout(600)
def test_the_queue_is_as_its_model(fresh_data: Path) -> None:
    run(fresh_data, 6, 50, repeats=True)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_the_queue_is_as_its_model_whatever_chance_does(fresh_data: Path) -> None:
    run(fresh_data, 150, 100, repeats=False)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_the_queue_is_as_its_model_on_postgres(
    postgres: PostgresProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Everywhere(postgres).install(monkeypatch)
    postgres.copy()
    core = open_context(ServerSettings(data=tmp_path / "data"))
    asyncio.run(api_keys.ensure_first(core))
    core.close()
    run(tmp_path / "data", 15, 60, repeats=True)
