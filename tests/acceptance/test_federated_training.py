"""Federated trainings over a real fleet whose processes are killed in the middle of a part."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.story import until
from tunefleet import FederatedClient
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.errors import GoneError
from tunefleet.schemas.federated import UpdateCreate, UpdateView
from tunefleet.schemas.job_folder import JobFolder, JobProcess

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

STEPS, SYNC = 24, 4
WORKERS = ("part-0", "part-1")
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


def folder_of(fleet: LocalFleet, task_id: str) -> JobFolder:
    """The job folder of a part, on whichever worker has it."""
    folders = [JobFolder(fleet.results_dir(index) / task_id) for index in range(2)]
    return next((each for each in folders if each.job_json.exists()), folders[0])


def test_the_federation_goes_on_when_the_server_and_a_trainer_are_killed(fleet_of_two: LocalFleet) -> None:
    with Client(fleet_of_two.url, fleet_of_two.key, patience_s=60) as client:
        flow = client.workflows.get(client.submit(DOCUMENT).workflow.id)
        made = next(each for each in client.federations.list().items if each.name == "chaos")

        def version() -> int:
            return client.federations.get(made.id).version

        until(lambda: version() >= 1, "the first version", within_s=150)
        server = fleet_of_two.pid("server")
        assert server is not None
        os.kill(server, signal.SIGKILL)
        until(lambda: fleet_of_two.pid("server") not in {server, None}, "the server is started again")
        until(lambda: version() >= 2, "the second version", within_s=150)
        part = next(task for task in client.workflows.get(flow.id).tasks if task.name == "chaos#1")
        process = folder_of(fleet_of_two, part.id).root / "process.json"
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
        for worker in WORKERS:
            rows = sum(each.num_examples for each in updates if each.worker == worker and each.state == "aggregated")
            assert rows <= STEPS * 2, "no row counts twice"


def test_a_part_that_is_killed_before_its_first_checkpoint_counts_its_rows_once(fleet_of_two: LocalFleet) -> None:
    document = DOCUMENT.replace("name: chaos", "name: anew").replace("save_steps: 4", "save_steps: 1000")
    # Nobody's patience ends before the round is let go on.
    document = document.replace("deadline_s: 120", "deadline_s: 390")
    with Client(fleet_of_two.url, fleet_of_two.key, patience_s=60) as client:
        flow = client.workflows.get(client.submit(document).workflow.id)
        made = next(each for each in client.federations.list().items if each.name == "anew")
        # No round is closed until the first attempt is over: all that it has sent is still open.
        client.federations.pause(made.id)

        def attempts() -> dict[str, int | None]:
            return {each.worker: each.attempt for each in client.federations.get(made.id).member_list if each.updates}

        until(lambda: attempts() == {"part-0": 1, "part-1": 1}, "both parts have sent their first update", within_s=150)
        part = next(task for task in flow.tasks if task.name == "anew#1")
        process = folder_of(fleet_of_two, part.id).root / "process.json"
        os.kill(JobProcess.model_validate_json(process.read_bytes()).pid, signal.SIGKILL)
        until(lambda: attempts() == {"part-0": 1, "part-1": 2}, "the second attempt takes part", within_s=150)

        def standing() -> list[UpdateView]:
            return client.federations.updates(made.id, worker="part-1", state="counted").items

        # The rows of the first attempt count already: the second sends again when it has new ones, and both together
        # count in the round that is still open.
        both = SYNC * 2
        until(lambda: [(each.attempt, each.step) for each in standing()] == [(2, both)], "new rows count", within_s=150)
        token = client.federations.token(made.id).token
        with FederatedClient(fleet_of_two.url, made.id, "part-1", token, attempt=1) as late:
            with pytest.raises(GoneError, match="Attempt 1 of part-1 was replaced by attempt 2"):
                late.join()
            digest = str(standing()[0].sha256)
            update = UpdateCreate(worker="part-1", step=STEPS, num_examples=1, sha256=digest, config={}, attempt=1)
            with pytest.raises(GoneError, match="Attempt 1 of part-1 was replaced by attempt 2"):
                late.announce(update)
        client.federations.start(made.id)
        flow = client.workflows.wait(flow.id, timeout_s=240)
        assert flow.status == "completed", [(task.name, task.error, task.why) for task in flow.tasks]
        updates = client.federations.updates(made.id, limit=100).items
        counted = [each for each in updates if each.state == "aggregated"]
        told = [(each.worker, each.step, each.round, each.num_examples, each.attempt, each.state) for each in updates]
        rows = {worker: sum(each.num_examples for each in counted if each.worker == worker) for worker in WORKERS}
        steps = {worker: sorted(each.step for each in counted if each.worker == worker) for worker in WORKERS}
        # The last batch of a pass may be smaller.
        assert rows["part-1"] in {STEPS * 2 - 1, STEPS * 2}, told
        assert steps["part-1"] == list(range(both, STEPS + 1, SYNC)), told
        # The other one is a round ahead at the end, and has nobody to share its last one with.
        rounds = client.federations.get(made.id).version
        assert rounds in {STEPS // SYNC - 1, STEPS // SYNC}
        assert steps["part-0"] == [SYNC * number for number in range(1, rounds + 1)], told
        assert rows["part-0"] in {rounds * SYNC * 2 - 1, rounds * SYNC * 2}, told


SIMPLE = """
apiVersion: tunefleet/v1
metadata: {name: simple}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 8}
  lora: {r: 2, alpha: 4, target_modules: [q_proj]}
  training: {max_steps: 2, batch_size: 2, max_seq_length: 64}
"""


def test_a_federation_that_one_worker_cannot_run_lets_a_later_run_pass(fleet: LocalFleet) -> None:
    example = (Path(__file__).parents[2] / "examples/workflows/federated.yaml").read_text()
    with Client(fleet.url, fleet.key, patience_s=60) as client:
        foreseen = client.workflows.validate(example, dry_run=True)
        train = foreseen.forecasts[0]
        assert train.why == "waiting: it needs 2 workers at the same time; 1 is online, so it will wait."
        assert foreseen.concurrency is not None
        assert (foreseen.concurrency.wanted, foreseen.concurrency.available) == (2, 0)
        flow = client.submit(example).workflow
        assert "a round needs 2 at the same time, so it waits for more workers" in flow.warnings[0]
        ended = client.tasks.wait(client.submit(SIMPLE).task_id, timeout_s=150)
        assert ended.status == "completed", ended.error
        part = next(task for task in client.workflows.get(flow.id).tasks if task.name == "train#0")
        assert part.status == "queued"
        assert part.why == "waiting: its federation needs 2 workers at the same time, and 1 is online."
        client.workflows.cancel(flow.id)
        assert client.workflows.wait(flow.id, timeout_s=60).status == "cancelled"
