"""Commands, pauses and stalls over every link."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from tests.contract.transport.conftest import Site, registration
from tunefleet.schemas.worker_link import (
    Capabilities,
    ExchangeReply,
    ExchangeRequest,
    ExecutorOffer,
    Finish,
    Offer,
    pause_id,
)
from tunefleet.transport.base import WorkerLink

TRAIN = """apiVersion: tunefleet/v1
metadata: {name: train}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [one, two]}
"""


class Trainer:
    """A worker with one slot for a job, by hand."""

    def __init__(self, link: WorkerLink) -> None:
        self.link = link
        self.worker_id = f"t-{uuid.uuid4().hex[:6]}"
        self.holding: list[str] = []
        able = Capabilities(
            version="0", hostname="here", executors=(ExecutorOffer(kind="lora_sft"),), slots={"job": 1}, cpu_count=1,
            memory_total_bytes=1 << 30, memory_free_bytes=1 << 30, disk_free_bytes=1 << 30,
        )  # fmt: skip
        self.link.register(registration(self.worker_id, capabilities=able))

    def say(self, *, wait_s: float = 0.0, **more: object) -> ExchangeReply:
        plain = {"worker_id": self.worker_id, "session": "s1", "wait_s": wait_s, "want": {"job": 1 - len(self.holding)}}
        return self.link.exchange(ExchangeRequest.model_validate({**plain, "holding": self.holding, **more}))

    def start(self, task_id: str) -> Offer:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for offer in self.say(wait_s=1.0).offers:
                assert offer.task_id == task_id
                assert self.say(accepts=[offer.token]).accepted == (offer.token,)
                self.holding.append(offer.token)
                return offer
        raise AssertionError(f"{task_id} was not offered")


@pytest.fixture
def trainer(link: WorkerLink, site: Site) -> Iterator[Trainer]:
    made = Trainer(link)
    yield made
    for token in made.holding:
        made.say(finishes=[Finish(token=token, outcome="failed", reason="bad_input").model_dump()])
    made.say(want={})


def test_a_command_wakes_a_long_poll_and_comes_again_until_it_is_acknowledged(trainer: Trainer, site: Site) -> None:
    tasks = site.client.tasks
    offer = trainer.start(site.client.submit(TRAIN).task_id)
    asked = tasks.command(offer.task_id, "set", {"learning_rate": 1e-5})
    for wait_s in (5.0, 1.2):
        (command,) = trainer.say(wait_s=wait_s).commands
        assert (command.token, command.command_id, command.data) == (offer.token, asked.id, {"learning_rate": 1e-5})
    trainer.say(outcomes=[{"command_id": asked.id, "state": "acknowledged"}])
    assert not trainer.say(wait_s=1.2).commands
    trainer.say(outcomes=[{"command_id": asked.id, "state": "applied", "step": 3}])
    done = tasks.wait_for_command(offer.task_id, asked.id, timeout_s=10)
    assert (done.state, done.step) == ("applied", 3)


def test_a_pause_is_wished_until_it_is_reached_and_then_finished(trainer: Trainer, site: Site) -> None:
    tasks = site.client.tasks
    offer = trainer.start(site.client.submit(TRAIN).task_id)
    trainer.say(stalled={offer.token: 12.5})
    assert tasks.get(offer.task_id).stalled_since is not None
    tasks.pause(offer.task_id)
    (wish,) = trainer.say(wait_s=2.0).desired
    assert (wish.token, wish.action) == (offer.token, "pause")
    (again,) = trainer.say(wait_s=2.0, stalled={}).desired
    trainer.say(reached=[{"token": offer.token, "generation": again.generation}])
    assert not trainer.say(wait_s=1.2).desired
    assert tasks.get(offer.task_id).stalled_since is None
    command_id = pause_id(offer.task_id, offer.attempt, wish.generation)
    outcome = {"command_id": command_id, "state": "durable", "step": 5, "checkpoint": "checkpoint-5"}
    finish = Finish(token=offer.token, outcome="paused", reason="paused").model_dump()
    # Both in one exchange: the command is not failed by the end that it brought about.
    assert trainer.say(outcomes=[outcome], finishes=[finish]).finished == (offer.token,)
    trainer.holding.clear()
    assert tasks.get(offer.task_id).status == "paused"
    assert tasks.get_command(offer.task_id, command_id).state == "durable"
    tasks.resume(offer.task_id)
    assert trainer.start(offer.task_id).attempt == 2
