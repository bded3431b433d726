"""The large environments, as `make test-heavy` makes them: whole, and jobs are steered in them as anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.integration.runtime.conftest import make_job, training, until
from tunefleet.runtime import Supervisor, envs
from tunefleet.runtime.envs.verify import check

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


def test_vllm_is_whole_and_its_jobs_report_and_obey(supervisor: Supervisor, missing: Callable[[str], None]) -> None:
    if (reason := envs.reason("vllm")) is not None:
        missing(reason)
    assert [found for found in check("vllm") if not found.good] == []
    python = envs.at("vllm").python
    job = make_job("").model_copy(update={"program": "in_environment:main", "python": python, "spec": {"steps": 500}})
    handle = supervisor.launch(job)
    until(lambda: training(handle), 120)
    seen = json.loads((handle.folder.root / "seen.json").read_text(encoding="utf-8"))
    assert seen["prefix"] == str(envs.at("vllm").root)
    handle.cancel(5)
    end = handle.wait(60)
    assert end is not None
    assert end.outcome == "cancelled"
