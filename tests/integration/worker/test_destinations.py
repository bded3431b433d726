"""Results and files are delivered to an address over HTTP."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.receiver import Receiver, receiving
from tests.unit.worker.fakes import FakeEnd, Running, World
from tests.unit.worker.test_destinations import ENVELOPE, Sleeps, destination
from tunefleet.errors import InputError
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.worker_link import Finish, MergedTask, Offer
from tunefleet.worker import worker as worker_module
from tunefleet.worker.jobs.inline_tasks import LightTasks
from tunefleet.worker.outputs.destinations import DeliveryError, Destination
from tunefleet.worker.outputs.light_delivery import LightDelivery
from tunefleet.worker.transfers import Transfers


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def test_result_and_files_go_to_the_address_with_its_headers(tmp_path: Path, receiver: Receiver) -> None:
    file = tmp_path / "final_lora.tar.gz"
    file.write_bytes(os.urandom(3 << 20))
    headers = {"Authorization": "Bearer ${secret:HOOK}", "Content-Type": "application/json"}
    wanted = {"type": "http", "url": f"{receiver.url}/hook", "method": "PUT", "headers": headers}
    destination(wanted, tmp_path).deliver(ENVELOPE, [file])
    upload, post = receiver.seen
    assert (upload.method, upload.path) == ("POST", "/hook/task-1/files")
    assert upload.headers["Content-Type"].startswith("multipart/form-data; boundary=")
    assert file.read_bytes() in upload.body
    assert b'name="file"; filename="final_lora.tar.gz"' in upload.body
    assert (post.method, post.path, json.loads(post.body)["result"]) == ("PUT", "/hook", {"ok": True})
    assert {each.headers["Authorization"] for each in receiver.seen} == {"Bearer s3cret"}


def test_without_a_number_of_retries_it_is_tried_until_the_patience_ends(tmp_path: Path, receiver: Receiver) -> None:
    for wanted in ({}, {"retries": None}):
        sleeps = Sleeps()
        receiver.answers = [503] * 6
        destination({"type": "http", "url": receiver.url, **wanted}, tmp_path, sleeps).deliver(ENVELOPE, [])
        assert sleeps.seconds == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]


def test_fault_18_a_delivery_is_tried_again_and_at_last_fails_by_name(tmp_path: Path, receiver: Receiver) -> None:
    sleeps = Sleeps()
    file = tmp_path / "final_model.tar.gz"
    file.write_bytes(b"x")
    wanted = {"type": "http", "url": receiver.url, "retries": 3, "retryBackoffSec": 0.5}
    receiver.answers = [503, 429, 500]
    destination(wanted, tmp_path, sleeps).deliver(ENVELOPE, [file])
    assert sleeps.seconds == [0.5, 1.0, 2.0]
    assert len(receiver.seen) == 5
    receiver.answers = [503] * 4
    with pytest.raises(DeliveryError, match=r"tar\.gz of task-1: .*503.*tunefleet artifacts deliver task-1"):
        destination(wanted, tmp_path, sleeps).deliver(ENVELOPE, [file])
    receiver.answers = [403]
    with pytest.raises(DeliveryError, match="403"):
        destination({"type": "http", "url": receiver.url}, tmp_path, sleeps).deliver(ENVELOPE, [])
    assert len(receiver.seen) == 10, "what is refused is not tried again"


def test_without_a_number_of_tries_a_delivery_is_patient(tmp_path: Path, receiver: Receiver) -> None:
    sleeps = Sleeps()
    receiver.answers = [503] * 9
    destination({"type": "http", "url": receiver.url}, tmp_path, sleeps).deliver(ENVELOPE, [])
    assert sleeps.seconds == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]


def test_our_own_server_is_no_receiver_whatever_it_is_called(tmp_path: Path, receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    for server, url in (
        (f"http://127.0.0.1:{port}", f"http://localhost:{port}/api/v1/results"),
        ("http://server.invalid:8000", "http://server.invalid:8000/api/v1/results"),
    ):
        ours = destination({"type": "http", "url": url}, tmp_path, server_url=server)
        assert ours.foreign is None
        ours.deliver(ENVELOPE, [])
    assert destination({"type": "http"}, tmp_path).foreign is None
    assert receiver.seen == []


def test_an_address_inside_is_refused_unless_it_is_allowed(tmp_path: Path, receiver: Receiver) -> None:
    wanted = {"type": "http", "url": receiver.url}
    with pytest.raises(DeliveryError, match="not a public address"):
        destination(wanted, tmp_path, url_allow=()).deliver(ENVELOPE, [])
    assert receiver.seen == []


def test_an_address_inside_is_refused_before_anything_is_computed(tmp_path: Path, receiver: Receiver) -> None:
    wanted = {"type": "http", "url": f"{receiver.url}/${{secret:HOOK}}"}
    destination(wanted, tmp_path).check()
    for changes in ({"url_allow": ()}, {"url_allow": ("10.0.0.0/8",)}):
        with pytest.raises(InputError, match=r"destination\.url: 127\.0\.0\.1 is not a public address") as refused:
            destination(wanted, tmp_path, **changes).check()
        assert "TUNEFLEET_URL_ALLOW" in str(refused.value)
    with pytest.raises(InputError, match="never allowed"):
        destination({"type": "http", "url": "http://169.254.169.254/"}, tmp_path, url_allow=("0.0.0.0/0",)).check()
    destination({"type": "http", "url": "http://nowhere.invalid/"}, tmp_path).check()  # it may be known later
    destination({"type": "http", "url": f"{receiver.url}/x"}, tmp_path, server_url=receiver.url, url_allow=()).check()
    assert receiver.seen == []

    world = World(tmp_path / "results")
    spec = {"output": {"destination": wanted}}
    job = world.server.offer(spec={"output": {"destination": {"type": "http", "url": receiver.url}}})
    with Running(world) as running:
        object.__setattr__(running.site, "transfers", Transfers(folders=(world.results,)))
        finish = world.server.finished(job)
    assert (finish.outcome, finish.reason) == ("failed", "bad_input")
    assert "TUNEFLEET_URL_ALLOW" in (finish.error or "")
    assert world.jobs.all == []
    offer = Offer(token="t", task_id="task-1", workflow_id="w", attempt=1, kind="echo", name="n", spec=spec)
    light = LightDelivery(Transfers(), Secrets({"HOOK": "s3cret"}), "w-1", Sleeps()).refusal(offer)
    assert light is not None
    assert (light.outcome, light.reason) == ("failed", "bad_input")
    assert receiver.seen == []


def test_a_delivery_says_what_holds_it_up_and_names_no_secret(tmp_path: Path, receiver: Receiver) -> None:
    said: list[str | None] = []
    receiver.answers = [503, 503]
    transfers = Transfers(url_allow=("127.0.0.1",))
    output = {"destination": {"type": "http", "url": f"{receiver.url}/${{secret:HOOK}}", "retries": 2}}
    made = Destination("task-1", output, transfers, Secrets({"HOOK": "s3cret"}), Sleeps(), said.append)
    made.deliver(ENVELOPE, [])
    later = f"{receiver.url}/${{secret:HOOK}} responded with status 503. Delivery of the result is retried."
    assert said == [later, later, None]
    receiver.answers = [403]
    with pytest.raises(DeliveryError) as failed:
        made.deliver(ENVELOPE, [])
    assert "s3cret" not in str(failed.value)


def test_fault_19_a_result_that_cannot_be_posted_is_not_computed_again(tmp_path: Path, receiver: Receiver) -> None:
    world = World(tmp_path / "results")
    wanted = {"type": "http", "url": receiver.url, "retries": 1, "retryBackoffSec": 0}
    output = {"destination": wanted, "artifacts": ["final_lora"]}
    receiver.answers = [503, 503]
    first = world.server.offer("task-1", spec={"output": output})
    second = world.server.offer("task-2", spec={"output": output})
    with allowing(world):
        world.job().end(FakeEnd())
        failed = world.server.finished(first)
        world.job(count=2).end(FakeEnd())
        done = world.server.finished(second)
    assert (failed.outcome, failed.reason) == ("failed", "delivery_failed")
    assert "tunefleet artifacts deliver task-1" in (failed.error or "")
    assert [name for task, name, _ in world.files.pushed if task == "task-1"] == [
        "final_lora", "final_lora.tar.gz",
    ]  # fmt: skip
    assert failed.result["final_lora_archive"] == "final_lora.tar.gz", "the server has the result, too"
    assert (world.results / "task-1" / "final_lora").is_dir(), "the files are kept"
    assert done.outcome == "completed"
    assert len(world.jobs.all) == 2
    assert receiver.seen[-1].path == "/"


def waiting(world: World, receiver: Receiver) -> str:
    """Offer a task whose receiver takes nothing for now."""
    receiver.answers = [503] * 99
    wanted = {"type": "http", "url": receiver.url, "retries": 99, "retryBackoffSec": 3600}
    return world.server.offer("task-1", spec={"output": {"destination": wanted}})


def allowing(world: World) -> Running:
    """Return a worker whose documents may name the receiver."""
    running = Running(world)
    transfers = Transfers(folders=(world.results,), url_allow=("127.0.0.1",))
    object.__setattr__(running.site, "transfers", transfers)
    return running


def test_a_job_that_is_over_is_named_with_what_holds_up_its_delivery(tmp_path: Path, receiver: Receiver) -> None:
    world = World(tmp_path / "results")
    part = MergedTask(token="att-part.secret", task_id="task-2", workflow_id="w", attempt=1, name="two", spec={})
    receiver.answers = [503] * 99
    wanted = {"type": "http", "url": receiver.url, "retries": 99, "retryBackoffSec": 3600}
    whole = world.server.offer("task-1", merged=(part,), spec={"output": {"destination": wanted}})
    with allowing(world):
        job = world.job()
        world.server.wait_for(lambda: whole in world.server.exchanges[-1].holding)
        assert world.server.exchanges[-1].delivering == {}
        job.end(FakeEnd())
        world.server.wait_for(lambda: world.server.exchanges[-1].delivering.get(whole))
        said = world.server.exchanges[-1]
        assert said.delivering == {
            whole: f"{receiver.url}/task-1/files responded with status 503. Delivery of final_lora.tar.gz is retried.",
            part.token: "",
        }
        assert (said.want["job"], set(said.holding)) == (1, {whole, part.token})
        world.server.want(whole, "cancel")
        assert world.server.finished(whole).outcome == "cancelled"
        assert world.server.finished(part.token).outcome == "completed"
        world.server.wait_for(lambda: world.server.exchanges[-1].delivering == {})


def test_deliveries_without_end_do_take_slots(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_DELIVERIES", 1)
    world = World(tmp_path / "results")
    receiver.answers = [503] * 99
    wanted = {"type": "http", "url": receiver.url, "retries": 99, "retryBackoffSec": 3600}
    with allowing(world):
        for number, free in ((1, 1), (2, 0)):
            token = world.server.offer(f"task-{number}", spec={"output": {"destination": wanted}})
            world.job(count=number).end(FakeEnd())
            world.server.wait_for(lambda token=token: world.server.exchanges[-1].delivering.get(token))
            assert world.server.exchanges[-1].want["job"] == free


def test_a_cancel_ends_a_delivery_that_waits_for_its_receiver(tmp_path: Path, receiver: Receiver) -> None:
    world = World(tmp_path / "results")
    token = waiting(world, receiver)
    with allowing(world):
        world.job().end(FakeEnd())
        world.server.wait_for(lambda: receiver.seen)
        world.server.want(token, "cancel")
        assert world.server.finished(token).outcome == "cancelled"
        world.server.wait_for(lambda: not world.records())
    assert ("task-1", "final_lora", "adapter") in world.files.pushed, "the server keeps uploaded files"


def test_a_cancel_ends_a_delivery_that_is_not_answered(tmp_path: Path, receiver: Receiver) -> None:
    world = World(tmp_path / "results")
    receiver.answering.clear()
    wanted = {"type": "http", "url": receiver.url, "timeoutSec": 600}
    token = world.server.offer("task-1", spec={"output": {"destination": wanted}})
    with allowing(world):
        world.job().end(FakeEnd())
        world.server.wait_for(lambda: receiver.seen)
        world.server.want(token, "cancel")
        assert world.server.finished(token).outcome == "cancelled"
    assert not receiver.answering.is_set()


def test_a_cancel_is_remembered_by_the_next_worker(tmp_path: Path, receiver: Receiver) -> None:
    world = World(tmp_path / "results")
    token = waiting(world, receiver)
    world.server.loses_finishes = True
    with allowing(world):
        world.job().end(FakeEnd())
        world.server.wait_for(lambda: receiver.seen)
        world.server.want(token, "cancel")
        world.server.wait_for(lambda: world.server.reached)
    assert [record.cancel_generation for record in world.records()] == [1]
    (world.results / "task-1" / "finish.json").unlink(missing_ok=True)  # as if it had died before the wait ended
    world.server.loses_finishes = False
    with allowing(world):
        assert world.server.finished(token).outcome == "cancelled"


def test_a_part_that_is_cancelled_holds_up_nobody_with_its_delivery(tmp_path: Path, receiver: Receiver) -> None:
    world = World(tmp_path / "results")
    receiver.answers = [503] * 99
    wanted = {"type": "http", "url": receiver.url, "retries": 99, "retryBackoffSec": 3600}
    spec = {"output": {"destination": wanted}}
    part = MergedTask(token="att-part.secret", task_id="task-2", workflow_id="w", attempt=1, name="two", spec=spec)
    whole = world.server.offer("task-1", merged=(part,))
    with allowing(world):
        job = world.job()
        job.end(FakeEnd())
        world.server.wait_for(lambda: receiver.seen)
        world.server.want(part.token, "cancel")
        assert world.server.finished(part.token).outcome == "cancelled"
        assert world.server.finished(whole).outcome == "completed"


def test_a_light_task_delivers_too(tmp_path: Path, receiver: Receiver) -> None:
    world = World(tmp_path / "results")
    sleeps = Sleeps()
    transfers = Transfers(folders=(world.results,), url_allow=("127.0.0.1",))
    light = LightDelivery(transfers, Secrets({}), "w-1", sleeps)

    def end(wanted: dict[str, Any]) -> Finish:
        spec = {"taskType": "echo", "output": {"destination": wanted}}
        offer = Offer(token="t", task_id="task-1", workflow_id="w", attempt=1, kind="echo", name="n", spec=spec)
        done = Finish(token="t", outcome="completed", reason="finished", result={"ok": True})
        return light.refusal(offer) or light.delivered(offer, "echo", done)

    assert end({"type": "http"}).outcome == "completed"
    assert receiver.seen == []
    receiver.answers = [503]
    assert end({"type": "http", "url": f"{receiver.url}/hook"}).outcome == "completed"
    assert json.loads(receiver.seen[-1].body)["worker_id"] == "w-1"
    assert end({"path": "echoes"}).outcome == "completed"
    assert end({"path": "."}).outcome == "completed"
    for folder in (world.results / "echoes" / "task-1", world.results / "task-1"):
        assert {path.name for path in folder.iterdir()} == {"responses.json", "results.json", "manifest.json"}
    assert end({"path": "/elsewhere"}).reason == "bad_input"
    receiver.answers = [403]
    refused = end({"type": "http", "url": receiver.url})
    assert (refused.reason, refused.result) == ("delivery_failed", {"ok": True})


def test_a_worker_that_goes_gives_up_a_delivery_that_waits(tmp_path: Path, receiver: Receiver) -> None:
    world = World(tmp_path / "results")
    receiver.answers = [503] * 99
    spec = {"taskType": "echo", "output": {"destination": {"type": "http", "url": receiver.url}}}
    with Running(world) as running:
        light = LightTasks(
            running.site.outbox, 1, transfers=Transfers(folders=(world.results,), url_allow=("127.0.0.1",))
        )
        offer = Offer(token="t-light", task_id="task-1", workflow_id="w", attempt=1, kind="echo", name="n", spec=spec)
        light.run([(EchoExecutor(), offer)])
        world.server.wait_for(lambda: receiver.seen)
        light.close()
        world.server.wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("light")])
        assert "t-light" not in running.site.outbox.finishing
