"""A real agent whose trainer runs out of memory: the error is injected where the trainer meets it, the rest is real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agent.conftest import AgentProcess, request, write_rows
from tests.libraries import required

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(300)]

SHORT_OF_MEMORY = '''
import importlib.util, sys

class Finder:
    """Changes `transformers.trainer` once it is loaded: more than one row a batch does not fit."""

    def find_spec(self, name, path, target=None):
        if name != "transformers.trainer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            usual = module.Trainer.training_step

            def step(self, model, inputs, *args, **kwargs):
                import torch

                if self.state.global_step >= 2 and inputs["input_ids"].shape[0] > 1:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                return usual(self, model, inputs, *args, **kwargs)

            module.Trainer.training_step = step

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
'''


def test_a_batch_that_does_not_fit_is_halved(tmp_path: Path, free_port: Callable[[], int]) -> None:
    required("trl")
    write_rows(tmp_path / "datasets")
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(SHORT_OF_MEMORY)
    env = {
        "BACKEND_URL": "none",
        "TUNEFLEET_HOME": str(tmp_path / "home"),
        "TUNEFLEET_WARM_START": "false",
        "PYTHONPATH": str(tmp_path / "hooks"),
    }
    agent = AgentProcess(tmp_path, env, free_port())
    agent.start()
    try:
        wanted = request("large", batch_size=2, max_steps=4, save_steps=1)
        assert agent.post("/api/training/execute", wanted).status_code == 200
        done = agent.until_status("large", "completed", timeout_s=240)
        assert done["current_step"] == 4
        assert any(
            "batch size 2: continuing with 1 and 2 accumulation steps" in warning for warning in done["warnings"]
        ), done
        launches = list((agent.job_folder("large") / "journal").glob("*.jsonl"))
        begun = [json.loads(file.read_text().splitlines()[0])["from_step"] for file in launches]
        assert sorted(begun) == [0, 2], "it went on from its checkpoint"
        steps = [point["step"] for point in agent.get("/api/training/metrics/large").json()["metrics"]]
        assert steps[:4] == [1, 2, 3, 4]
    finally:
        agent.clean()
