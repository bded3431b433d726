"""One suite for every place where a training can run: control, journal, pause, cancel and artifacts are the same.

Plain: one worker. Gang: two workers of the fleet. Slurm and Ray: two nodes of theirs, which are there for the time that
the task needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.ways import PATIENCE_S, Way, on_ray, on_slurm, own_workers
from tests.integration.ray import cluster as ray
from tests.integration.slurm import cluster as slurm
from tests.libraries import required

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(500)]

STEPS, SAVE_EVERY = 60, 4


def document(way: Way, steps: int) -> str:
    """Two trainings, of which the second goes on with the adapter of the first."""
    return f"""apiVersion: tunefleet/v1
metadata: {{name: ways}}
spec:
  taskType: lora_sft
{way.head}
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 64}}
  lora: {{r: 2, alpha: 4, target_modules: [q_proj]}}
  training: {{max_steps: {steps}, batch_size: 2, max_seq_length: 64, logging_steps: 1, save_steps: {SAVE_EVERY}}}
  retry: {{max_attempts: 4, backoff_s: 0}}
  graph:
    nodes:
      - {{name: first}}
      - {{name: second, dependsOn: [first], spec: {{training: {{max_steps: 1}},
          checkpoint: {{load: {{taskId: "${{first.task_id}}"}}}}}}}}
"""


# All of it is for `make proofs`: what is steered and killed on workers of its own other tests show too, and on Slurm
# those of tests/integration/slurm do.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param("plain"),
        pytest.param("gang"),
        "slurm",
        pytest.param("ray", marks=pytest.mark.heavy),
    ],
)
def way(
    request: pytest.FixtureRequest,
    free_port: Callable[[], int],
    missing: Callable[[str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Way]:
    required("trl")
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "slurm":
        absent = slurm.lacking()
        if absent is not None:
            missing(absent)
        request.getfixturevalue("as_root")
        made = on_slurm(folder, free_port)
    elif request.param == "ray":
        if not ray.PYTHON.exists():
            missing("Ray (scripts/environments.sh heavy)")
        made = on_ray(folder, free_port)
    else:
        made = own_workers(folder, free_port, {"plain": 1, "gang": 2}[request.param])
    with made as way:
        yield way


def test_a_pipeline_is_steered_and_survives_a_kill(way: Way) -> None:
    client = way.client
    flow = client.submit(document(way, STEPS)).workflow
    first, second = (task.id for task in flow.tasks)

    way.reached(first, 2)
    assert len(way.ranks(first)) >= way.nodes
    assert client.tasks.log(first).text
    saved = client.tasks.command(first, "save_checkpoint")
    saved = client.tasks.wait_for_command(first, saved.id, timeout_s=PATIENCE_S)
    assert saved.state == "durable"

    paused = client.tasks.pause_and_wait(first, timeout_s=PATIENCE_S)
    assert paused.status == "paused"
    at = client.tasks.checkpoints(first)[-1]
    assert at.artifact == f"checkpoint-{at.step}"
    assert not way.ranks(first)
    way.until(lambda: way.held() == 0, "the nodes given back while nobody trains")

    assert client.tasks.resume(first).status == "queued"
    way.reached(first, at.step + SAVE_EVERY)
    way.ranks(first)[-1].kill()
    done = client.tasks.wait(first, timeout_s=PATIENCE_S)
    assert (done.status, done.error) == ("completed", None), way.logs()
    # One that a node did not take in time, because it was still ending the one before, has cost nothing.
    reasons = [attempt.reason for attempt in done.attempt_list if attempt.reason != "not_accepted"]
    assert reasons == ["paused", "killed", "finished"]
    assert way.steps(first) == list(range(1, STEPS + 1)), "each step once"
    (adapter,) = client.artifacts.list(task_id=first).items
    assert adapter.kind == "adapter"

    after = client.tasks.wait(second, timeout_s=PATIENCE_S)
    assert (after.status, after.error) == ("completed", None), way.logs()
    way.until(lambda: way.held() == 0, "the nodes given back at the end")


def test_a_cancel_ends_all_of_it(way: Way) -> None:
    flow = way.client.submit(document(way, 2000)).workflow
    first, second = (task.id for task in flow.tasks)
    way.reached(first, 2)
    way.client.tasks.cancel(first)
    ended = way.client.tasks.wait(first, timeout_s=PATIENCE_S)
    assert (ended.status, ended.reason) == ("cancelled", "cancelled_by_user")
    assert way.client.tasks.wait(second, timeout_s=PATIENCE_S).status == "cancelled"
    way.until(lambda: not way.ranks(first), "the end of all ranks")
    way.until(lambda: way.held() == 0, "the nodes given back")


@pytest.mark.parametrize("way", ["plain"], indirect=True)
def test_a_trainer_that_is_told_to_end_saves_and_goes_on_there(way: Way) -> None:
    """SIGTERM, as whoever takes a machine away sends it: no step since the last checkpoint is lost."""
    client, save_every = way.client, 500
    text = document(way, STEPS).replace(f"save_steps: {SAVE_EVERY}", f"save_steps: {save_every}")
    first = client.submit(text).workflow.tasks[0].id
    way.reached(first, 3)
    for rank in way.ranks(first):
        rank.terminate()
    done = client.tasks.wait(first, timeout_s=PATIENCE_S)
    assert (done.status, done.error) == ("completed", None), way.logs()
    reasons = [attempt.reason for attempt in done.attempt_list if attempt.reason != "not_accepted"]
    assert reasons == ["released", "finished"]
    assert way.steps(first) == list(range(1, STEPS + 1)), "each step once, though nothing was saved on schedule"
