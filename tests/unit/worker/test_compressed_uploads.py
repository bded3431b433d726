"""A checkpoint that is compressed while it is sent arrives whole: as it was, or as it is then."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.fake import URL, FakeServer
from tunefleet.client.attempt import AttemptClient
from tunefleet.schemas.job_folder import JobFolder, Keep
from tunefleet.schemas.worker_link import Offer
from tunefleet.trainer_control.checkpoints.manifest import finish_checkpoint, invalid_reason
from tunefleet.trainer_control.checkpoints.resume import protected_names
from tunefleet.worker.mailbox import Mailbox
from tunefleet.worker.outputs import checkpoint_uploads
from tunefleet.worker.outputs.checkpoint_uploads import CheckpointUploads


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global InUseError, compress, checkpoint_compression
    pytest.importorskip("transformers")

    from tunefleet.workloads.training import checkpoint_compression
    from tunefleet.workloads.training.checkpoint_compression import InUseError, compress


FILES, SIZE = 12, 200_000


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(tmp_path / "task-1")
    path = made.checkpoints_dir / "checkpoint-4"
    path.mkdir(parents=True)
    for number in range(FILES):
        (path / f"part-{number:02}.bin").write_bytes(b"%06d" % number * (SIZE // 6))
    finish_checkpoint(path)
    return made


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def sending(folder: JobFolder, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> CheckpointUploads:
    monkeypatch.setattr(checkpoint_uploads, "_LOOK_S", 0.002)

    def connect(token: str) -> AttemptClient:
        client = AttemptClient(URL, token)
        client._transport = server.sync()
        return client

    offer = Offer(token="t", task_id="task-1", workflow_id="w", attempt=1, kind="lora_sft", name="t", spec={})
    return CheckpointUploads(offer, folder, connect, Mailbox())


def arrived(server: FakeServer, where: Path) -> list[str | None]:
    """Fetch each artifact that was published; returns what is wrong with it."""
    faults = []
    for number, made in enumerate(list(server.artifacts.values())):
        copy = where / f"{number}" / made["name"]
        for file in made["files"]:
            (copy / file["path"]).parent.mkdir(parents=True, exist_ok=True)
            (copy / file["path"]).write_bytes(server.blobs[file["digest"]])
        faults.append(invalid_reason(copy))
    return faults


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("seed", range(8))
def test_however_the_two_meet_what_is_published_is_whole(
    seed: int, folder: JobFolder, server: FakeServer, sending: CheckpointUploads, tmp_path: Path
) -> None:
    path = folder.checkpoints_dir / "checkpoint-4"
    delay_s = random.Random(seed).random() * 0.04
    # Nobody tells it to wait: the worst case.
    other = threading.Thread(target=lambda: (time.sleep(delay_s), compress(path)))
    with sending.under_way():
        other.start()
        until(lambda: server.artifacts)
        other.join()
    assert arrived(server, tmp_path / "there") == [None], "one artifact, and whole"
    assert invalid_reason(path) is None


@pytest.mark.parametrize("moment", ["files", "bytes"])
def test_one_that_changed_under_the_upload_is_sent_as_it_is_now(
    moment: str,
    folder: JobFolder,
    server: FakeServer,
    sending: CheckpointUploads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = folder.checkpoints_dir / "checkpoint-4"
    usual_files, usual_put = checkpoint_uploads._files_of, server._put

    def files_of(checkpoint: Any) -> dict[str, str]:
        found = usual_files(checkpoint)
        if moment == "files":
            compress(path)
        return found

    def put(*args: Any) -> Any:
        if moment == "bytes" and not path.joinpath("part-00.bin.zst").exists():
            compress(path)
        return usual_put(*args)

    monkeypatch.setattr(checkpoint_uploads, "_files_of", files_of)
    monkeypatch.setattr(server, "_put", put)
    sending.upload_newest()
    assert arrived(server, tmp_path / "there") == [None]
    (made,) = server.artifacts.values()
    assert "part-00.bin.zst" in {file["path"] for file in made["files"]}
    assert not sending._next(), "nothing is left to be sent"


def test_what_was_sent_is_not_sent_again_because_it_takes_less_room_now(
    folder: JobFolder, server: FakeServer, sending: CheckpointUploads
) -> None:
    sending.upload_newest()
    compress(folder.checkpoints_dir / "checkpoint-4")
    sending.upload_newest()
    assert len(server.artifacts) == 1


def test_a_checkpoint_that_is_being_sent_is_compressed_later(folder: JobFolder) -> None:
    path = folder.checkpoints_dir / "checkpoint-4"
    before = {file.name: file.read_bytes() for file in path.iterdir()}

    def in_use(name: str) -> bool:
        return name in protected_names(folder.root, ("uploading",))

    folder.keep_json.write_text(Keep(uploading=("checkpoint-4",), pinned=()).model_dump_json())
    with pytest.raises(InUseError):
        compress(path, in_use)
    answers = iter([False, True])  # the upload begins while the copies are made
    with pytest.raises(InUseError):
        compress(path, lambda _: next(answers))
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    folder.keep_json.write_text(Keep(uploading=(), pinned=("checkpoint-4",)).model_dump_json())
    assert compress(path, in_use) > FILES * SIZE // 2, "a pinned one is only not deleted"


def test_the_thread_comes_back_to_it(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    monkeypatch.setattr(checkpoint_compression, "_IN_USE_RETRY_S", 0.01)
    busy = {"checkpoint-4": True}
    callback = checkpoint_compression.CompressionCallback(lambda name: busy[name])
    args = TrainingArguments(output_dir=str(folder.checkpoints_dir), use_cpu=True, report_to=[])
    callback.on_save(args, TrainerState(global_step=4, is_world_process_zero=True), TrainerControl())
    manifest = folder.checkpoints_dir / "checkpoint-4" / "manifest.json"
    time.sleep(0.1)
    assert "saved_digest" not in json.loads(manifest.read_text())
    busy["checkpoint-4"] = False
    until(lambda: "saved_digest" in json.loads(manifest.read_text()))
