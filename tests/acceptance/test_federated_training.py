"""A federated training over a real fleet: its server and a trainer are killed, and the other part is paused."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.story import until
from tunefleet.cli.fleet import LocalFleet
from tunefleet.client import Client
from tunefleet.wire.jobfolder import JobFolder, JobProcess

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.torch, pytest.mark.timeout(400)]

STEPS, SYNC = 24, 4
DOCUMENT = f"""
apiVersion: tunefleet/v1
metadata: {{name: chaos}}
spec:
  taskType: lora_sft
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 96}}
  lora: {{r: 2, alpha: 4, target_modules: [q_proj]}}
  training: {{max_steps: {STEPS}, batch_size: 2, max_seq_length: 96, save_steps: 4, learning_rate: 1e-3}}
  federation: {{workers: 2, sync_every_steps: {SYNC}, upload_dtype: int8, deadline_s: 120}}
  retry: {{max_attempts: 9, backoff_s: 0}}
"""


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    pytest.importorskip("trl")
    environment = {
        "ENABLE_ELASTIC_SCALING": "false", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TUNEFLEET_JOB_SLOTS": "1",
    }  # fmt: skip
    data = tmp_path_factory.mktemp("chaos")
    with LocalFleet(data, port=free_port(), workers=2, environment=environment, save_client=False) as fleet:
        yield fleet


def folder_of(fleet: LocalFleet, task_id: str) -> JobFolder:
    """The job folder of a part, on whichever worker has it."""
    folders = [JobFolder(fleet.results_dir(index) / task_id) for index in range(2)]
    return next((each for each in folders if each.job_json.exists()), folders[0])


def test_the_federation_goes_on_when_the_server_and_a_trainer_are_killed(fleet: LocalFleet) -> None:
    with Client(fleet.url, fleet.key, patience_s=60) as client:
        flow = client.workflows.get(client.submit(DOCUMENT).workflow.id)
        (made,) = client.federations.list().items

        def version() -> int:
            return client.federations.get(made.id).version

        until(lambda: version() >= 1, "the first version", within_s=150)
        server = fleet.pid("server")
        assert server is not None
        os.kill(server, signal.SIGKILL)
        until(lambda: fleet.pid("server") not in {server, None}, "the server is started again")
        until(lambda: version() >= 2, "the second version", within_s=150)
        part = next(task for task in client.workflows.get(flow.id).tasks if task.name == "chaos#1")
        process = folder_of(fleet, part.id).root / "process.json"
        os.kill(JobProcess.model_validate_json(process.read_bytes()).pid, signal.SIGKILL)
        # The other one waits for it, and can be paused all the same.
        other = next(task for task in client.workflows.get(flow.id).tasks if task.name == "chaos#0")
        client.tasks.pause(other.id)
        until(lambda: client.tasks.get(other.id).status == "paused", "a part that waits is paused")
        client.tasks.resume(other.id)
        flow = client.workflows.wait(flow.id, timeout_s=240)
        assert flow.status == "completed", [(task.name, task.error, task.why) for task in flow.tasks]
        ended = client.tasks.get(part.id)
        assert ended.attempts == 2
        federation = client.federations.get(made.id)
        # The one that was paused has had its update of a round replaced by the next, and is a round ahead at the end.
        assert federation.status == "completed"
        assert federation.version in {STEPS // SYNC - 1, STEPS // SYNC}
        updates = client.federations.updates(made.id, limit=100).items
        counted = Counter((each.worker, each.step) for each in updates if each.state == "aggregated")
        assert set(counted.values()) == {1}, "no update counts twice"
        assert {worker for worker, _ in counted} == {"part-0", "part-1"}
        task = next(each for each in flow.tasks if each.name == "chaos")
        result = client.tasks.get(task.id).result
        assert result is not None
        assert result["result"]["federation"]["version"] == federation.version
        for worker in ("part-0", "part-1"):
            rows = sum(each.num_examples for each in updates if each.worker == worker and each.state == "aggregated")
            assert rows <= STEPS * 2, "no row counts twice"
