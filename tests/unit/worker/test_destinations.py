"""Where a document wants its results beside the server; a delivery that fails is tried again by itself."""

from __future__ import annotations

import logging
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.fakes import FakeEnd, Running, World
from tunefleet.errors import InputError, StoreError
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.worker_guide import ResultEnvelope
from tunefleet.worker.outputs.destinations import DeliveryError, Destination
from tunefleet.worker.transfers import Transfers

ENVELOPE = ResultEnvelope(task_id="task-1", result={"ok": True})


class Sleeps:
    """Waits for nothing, and remembers for how long it would have."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def destination(wanted: dict[str, Any], tmp_path: Path, sleeps: Sleeps | None = None, **changes: Any) -> Destination:
    transfers = Transfers(server_url="http://server.invalid:8000", folders=(tmp_path,), url_allow=("127.0.0.1",))
    secrets = Secrets({"HOOK": "s3cret"})
    return Destination("task-1", {"destination": wanted}, replace(transfers, **changes), secrets, sleeps or Sleeps())


@pytest.mark.parametrize(
    ("url", "value", "named"),
    [
        ("https://${secret:HOST}.invalid/x", "SeSaMe-1234", "${secret:HOST}.invalid"),
        ("https://${secret:HOST}", "SeSaMe.invalid/services?token=1234", "${secret:HOST}"),
        ("http://${secret:HOST}:9/x", "LocalHost", "${secret:HOST}:9"),
        ("http://${secret:HOST}", "LOCALHOST:9/hook?token=1", "${secret:HOST}"),
    ],
)
def test_an_address_is_named_as_it_is_written_and_not_as_it_was_looked_up(
    url: str, value: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    said: list[str | None] = []
    output = {"destination": {"type": "http", "url": url, "retries": 1}}
    secrets = Secrets({"HOST": value})
    made = Destination("task-1", output, Transfers(server_url="http://here.invalid"), secrets, Sleeps(), said.append)
    told = []
    try:
        made.check()
    except InputError:
        told.append(traceback.format_exc())
    try:
        made.deliver(ENVELOPE, [])
    except DeliveryError:
        told.append(traceback.format_exc())
    everything = "\n".join([caplog.text, *told, *map(str, said)])
    assert named in everything.replace("spec.output.destination.url: ", "")
    assert "sesame" not in everything.lower()
    assert "localhost" not in everything.lower()
    assert len(told) == 1 + ("localhost" in value.lower())
    if len(told) == 1:
        assert f"not reachable yet: Cannot resolve the host {named}." in caplog.text


def test_a_folder_gets_a_copy_of_what_is_the_tasks(tmp_path: Path) -> None:
    root = tmp_path / "task-1"
    (root / "final_lora").mkdir(parents=True)
    (root / "final_lora" / "adapter.safetensors").write_bytes(b"weights")
    for name in ("responses.json", "job.json", "finish.json", ".hidden", "train.log"):
        (root / name).write_text("{}")
    shared = tmp_path / "mount"
    relative = destination({"path": "./sft"}, tmp_path)
    absolute = destination({"path": str(shared / "out")}, tmp_path, folders=(tmp_path / "results", shared))
    for each, target in ((relative, tmp_path / "sft" / "task-1"), (absolute, shared / "out" / "task-1")):
        each.check()
        each.copy(root)
        each.copy(root)
        files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
        assert files == {"final_lora/adapter.safetensors", "responses.json", "train.log"}
    assert not list(tmp_path.rglob(".delivering-*"))


def test_a_folder_in_the_tasks_own_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    world = World(tmp_path / "results")
    root = world.results / "task-1"
    token = world.server.offer("task-1", spec={"output": {"destination": {"path": str(root)}}})
    with Running(world) as running:
        object.__setattr__(running.site, "transfers", Transfers(folders=(world.results,)))
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", "bad_input")
    assert f"cannot copy the results of task-1 to {root / 'task-1'}" in (finish.error or "")
    assert world.jobs.all == []
    around = destination({"path": str(tmp_path)}, tmp_path)
    for inside in (tmp_path / "task-1" / "results", tmp_path / "task-1" / "deep" / "results"):
        with pytest.raises(InputError, match="its job folder"):
            around.check(inside)
    around.check(tmp_path / "task-1")
    around.check(tmp_path / "task-10")


def test_a_folder_elsewhere_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    world = World(tmp_path / "results")
    token = world.server.offer(spec={"output": {"destination": {"path": str(tmp_path / "elsewhere")}}})
    with Running(world) as running:
        object.__setattr__(running.site, "transfers", Transfers(folders=(world.results,)))
        finish = world.server.finished(token)
    assert (finish.outcome, finish.reason) == ("failed", "bad_input")
    assert "TUNEFLEET_SHARED_DIRS" in (finish.error or "")
    assert world.jobs.all == []
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(InputError):
        destination({"path": str(tmp_path / "link")}, tmp_path).check()


def test_a_full_disk_of_the_server_is_named_as_what_holds_a_delivery_up(tmp_path: Path) -> None:
    world = World(tmp_path / "results")
    world.files.push_error = StoreError("The disk of the server has 7 bytes free.")
    token = world.server.offer()
    with Running(world):
        world.job().end(FakeEnd())
        later = "The disk of the server has 7 bytes free. Delivery of final_lora is retried."
        world.server.wait_for(lambda: world.server.exchanges[-1].delivering == {token: later})
        world.files.push_error = None
        assert world.server.finished(token).outcome == "completed"
        world.server.wait_for(lambda: world.server.exchanges[-1].delivering == {})
