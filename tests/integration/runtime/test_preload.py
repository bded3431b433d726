"""The fork server with the real training libraries: fit to be forked, and what it forks can compute."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.runtime.conftest import environment, make_job, process_of
from tests.libraries import required
from tunefleet.runtime import Supervisor
from tunefleet.runtime.environment import core_count

pytestmark = [pytest.mark.torch, pytest.mark.proof]


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    required("trl", "bitsandbytes")
    tmp_path = tmp_path_factory.mktemp("preload")
    base = environment(tmp_path)
    base.pop("OMP_NUM_THREADS", None)
    supervisor = Supervisor(tmp_path / "results", endpoints_dir=tmp_path / "home" / "jobs", base_env=base)
    yield supervisor
    supervisor.close()


def compute(
    supervisor: Supervisor, job_id: str, *, env: dict[str, str] | None = None, **options: Any
) -> dict[str, Any]:
    job = make_job("compute", job_id=job_id, **options).model_copy(update={"env": env or {}})
    handle = supervisor.launch(job)
    end = handle.wait(60)
    assert end is not None
    assert (end.outcome, end.error) == ("completed", None)
    assert process_of(handle).warm
    facts: dict[str, Any] = json.loads((handle.folder.root / "facts.json").read_text())
    return facts


def test_a_forked_training_has_its_own_threads_seeds_and_devices(supervisor: Supervisor) -> None:
    first = compute(supervisor, "task-1")
    assert (first["threads"], first["product"]) == (core_count(), 600.0**3)
    assert not first["cuda"]
    assert first["renamed"], "the table of renamed weights was made before the fork"
    assert first["visible"] is None
    second = compute(supervisor, "task-2", env={"OMP_NUM_THREADS": "1"}, gpus=("GPU-x",))
    assert (second["threads"], second["visible"]) == (1, "GPU-x")
    assert not set(first["random"]) & set(second["random"])


def test_a_package_that_asks_the_device_at_its_import_is_executed_in_the_job_only(supervisor: Supervisor) -> None:
    for job_id in ("task-3", "task-4"):
        facts = compute(supervisor, job_id)
        assert (facts["executed"], facts["executed_after"], facts["function"]) == (False, True, "quantize_4bit")


def test_the_server_has_nothing_that_a_fork_could_not_use(supervisor: Supervisor) -> None:
    compute(supervisor, "task-5")
    assert supervisor._warm is not None
    process = Path(f"/proc/{supervisor._warm.server_pid()}")
    files = [os.readlink(link) for link in (process / "fd").iterdir()]  # noqa: PTH115 - some are no paths
    assert not [name for name in files if name.startswith(("/dev/nvidia", str(supervisor.results_dir)))]
    assert len(list((process / "task").iterdir())) <= 2  # pyarrow may bring one of its own
