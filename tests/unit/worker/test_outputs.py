"""What a job leaves on its way to the server: archives, an exported file, and the keys of the result that name them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.fakes import Running, World
from tunefleet.artifacts import Packing, hash_file
from tunefleet.executors.base import Output, ResultError
from tunefleet.executors.data_and_echo import EchoExecutor
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_link import Offer
from tunefleet.worker.jobs.inline_tasks import run_light
from tunefleet.worker.outputs import deliver
from tunefleet.worker.outputs.output_files import Outputs
from tunefleet.worker.transfers import Transfers

HTTP = {"destination": {"type": "http"}}


class Server:
    """Takes what is pushed, and gives links to it."""

    def __init__(self) -> None:
        self.pushed: list[tuple[str, str, str]] = []

    def push(self, name: str, kind: str, path: Path) -> None:
        digest = hash_file(path)[0] if path.is_file() else "folder"
        self.pushed.append((name, kind, digest))

    def links(self) -> Mapping[str, str]:
        return {name: f"http://server/files/{name}?signature=x" for name, _, _ in self.pushed}


def offer(output: dict[str, Any]) -> Offer:
    spec = {"taskType": "lora_sft", "output": output}
    return Offer(token="t", task_id="task-1", workflow_id="wf-1", attempt=2, kind="lora_sft", name="tune", spec=spec)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path / "task-1")
    (folder.root / "final_lora").mkdir(parents=True)
    (folder.root / "final_lora" / "adapter_model.safetensors").write_bytes(b"weights" * 1000)
    return folder


def trained(folder: JobFolder) -> list[Output]:
    return [Output("final_lora", "adapter", folder.root / "final_lora")]


@pytest.mark.parametrize(
    ("name", "pushed"),
    [
        ("notes.txt", ("notes.txt", "file")),
        ("plots/loss.csv", ("loss.csv", "file")),
        ("plots", ("plots", "file")),
        ("final_lora", None),
        ("logs", None),
        ("train.log", None),
        ("results.json", None),
        ("artifacts/checkpoints", None),
        ("missing.txt", "missing"),
        ("job.json", "missing"),
        (".federation.json", "missing"),
        ("outside.txt", "missing"),
        ("x" * 200 + "/" + "y" * 200, "missing"),
        ("plots/results.json", "other"),
        ("copy/final_lora", "other"),
    ],
)
def test_any_file_of_the_folder_may_be_asked_for(
    folder: JobFolder, tmp_path: Path, name: str, pushed: tuple[str, str] | str | None
) -> None:
    (folder.root / "plots").mkdir()
    (folder.root / "copy").mkdir()
    for each in (
        "copy/final_lora",
        "plots/results.json",
        "notes.txt",
        "plots/loss.csv",
        "job.json",
        ".federation.json",
        "train.log",
    ):
        (folder.root / each).write_text("x")
    (tmp_path / "secret.txt").write_text("of somebody else")
    (folder.root / "outside.txt").symlink_to(tmp_path / "secret.txt")
    server, outputs = Server(), Outputs(offer({"artifacts": [name]}), folder, Packing())
    result = outputs.deliver(trained(folder), {"warnings": ["before"]}, server.push, server.links)
    more = [each[:2] for each in server.pushed if each[0] != "final_lora"]
    said = {
        "missing": [f"output.artifacts lists {name!r}, which the run did not create."],
        "other": [
            f"output.artifacts lists {name!r}, which is not delivered: {Path(name).name} is the name of another file."
        ],
    }.get(str(pushed), [])
    assert more == ([pushed] if isinstance(pushed, tuple) else [])
    assert result["warnings"] == ["before", *said]
    kept = folder.root / name
    assert (kept in outputs.files(trained(folder), result)) is (isinstance(pushed, tuple) and kept.is_file())


def test_a_folder_goes_elsewhere_as_an_archive(folder: JobFolder) -> None:
    (folder.root / "plots").mkdir()
    (folder.root / "plots" / "loss.csv").write_text("1")
    server, outputs = Server(), Outputs(offer({**HTTP, "artifacts": ["plots"]}), folder, Packing())
    result = outputs.deliver(trained(folder), {}, server.push, server.links)
    assert [name for name, _, _ in server.pushed] == ["final_lora", "final_lora.tar.gz", "plots", "plots.tar.gz"]
    sent = {path.name for path in outputs.files(trained(folder), result)}
    assert sent == {"final_lora.tar.gz", "plots.tar.gz"}


@pytest.mark.parametrize(
    ("output", "made"),
    [
        (HTTP, True),
        (
            {
                "destination": {
                    "type": "s3",
                    "url": "s3://abc",
                    "access_key": "${secret:A}",
                    "secret_key": "${secret:B}",
                }
            },
            True,
        ),
        ({"artifacts": ["final_lora.tar.gz"]}, True),
        ({}, False),
        ({"artifacts": ["final_lora"]}, False),
    ],
    ids=["http", "s3", "named", "local", "folder"],
)
def test_an_archive_is_made_iff_the_destination_is_elsewhere_or_it_is_named(
    folder: JobFolder, output: dict[str, Any], made: bool
) -> None:
    server = Server()
    result = Outputs(offer(output), folder, Packing()).deliver(trained(folder), {"ok": True}, server.push, server.links)
    archive = folder.root / "final_lora.tar.gz"
    assert archive.exists() is made
    assert result == {
        "ok": True,
        "final_lora_path": str(folder.root / "final_lora"),
        "final_lora_archive": "final_lora.tar.gz" if made else None,
        "final_lora_archive_path": str(archive) if made else None,
        "final_lora_archive_url": "http://server/files/final_lora.tar.gz?signature=x" if made else None,
        "final_lora_archive_bytes": archive.stat().st_size if made else None,
        "final_lora_archive_uploaded": made,
    }
    if made:
        assert server.pushed[-1] == ("final_lora.tar.gz", "archive", hash_file(archive)[0])
        with tarfile.open(archive) as opened:
            assert opened.getnames() == ["final_lora/adapter_model.safetensors"]


def test_an_archive_is_made_again_only_for_another_folder(folder: JobFolder) -> None:
    server = Server()
    outputs = Outputs(offer(HTTP), folder, Packing())
    outputs.deliver(trained(folder), {}, server.push, server.links)
    first = (folder.root / "final_lora.tar.gz").stat()
    outputs.deliver(trained(folder), {}, server.push, server.links)
    again = (folder.root / "final_lora.tar.gz").stat()
    assert (again.st_mtime_ns, again.st_ino) == (first.st_mtime_ns, first.st_ino)
    (folder.root / "final_lora" / "more.bin").write_bytes(b"x")
    outputs.deliver(trained(folder), {}, server.push, server.links)
    with tarfile.open(folder.root / "final_lora.tar.gz") as opened:
        assert "final_lora/more.bin" in opened.getnames()


@pytest.mark.parametrize("output", [HTTP, {}], ids=["http", "local"])
def test_fault_14_an_exported_file_has_an_address_for_the_next_stage(folder: JobFolder, output: dict[str, Any]) -> None:
    rows = folder.root / "artifacts" / "sft_pairs.jsonl"
    rows.parent.mkdir()
    rows.write_text('{"prompt": "a", "response": "b"}\n')
    server = Server()
    outputs = Outputs(offer(output), folder, Packing())
    said = {"jsonl_export": {"path": "artifacts/sft_pairs.jsonl", "record_count": 1}}
    result = outputs.deliver([], said, server.push, server.links)
    export = result["jsonl_export"]
    assert export["url"] == export["download_url"] == "http://server/files/sft_pairs.jsonl?signature=x"
    assert export["path"] == (export["url"] if output else str(rows))
    assert (export["worker_path"], export["relative_path"]) == (str(rows), "artifacts/sft_pairs.jsonl")
    assert (export["artifact_name"], export["uploaded"], export["record_count"]) == ("sft_pairs.jsonl", True, 1)
    assert server.pushed == [("sft_pairs.jsonl", "file", hash_file(rows)[0])]
    again = outputs.deliver([], result, server.push, server.links)
    assert again == result, "a delivery that is repeated finds the file, although `path` is an address now"


@pytest.mark.parametrize("path", ["../elsewhere.jsonl", "nothing.jsonl", "/etc/passwd", 3], ids=str)
def test_an_exported_file_lies_in_the_tasks_folder(folder: JobFolder, path: object) -> None:
    (folder.root.parent / "elsewhere.jsonl").write_text("{}")
    server = Server()
    with pytest.raises(ResultError, match="jsonl_export"):
        Outputs(offer({}), folder, Packing()).deliver([], {"jsonl_export": {"path": path}}, server.push, server.links)
    assert server.pushed == []


def test_result_envelope_and_manifest_lie_in_the_tasks_folder(folder: JobFolder) -> None:
    (folder.root / "train.log").write_text("a line\n")
    outputs = Outputs(offer({"artifacts": ["final_lora", "final_lora.tar.gz"]}), folder, Packing())
    outputs.write_down(outputs.envelope({"a": 1}, "w-1"))
    assert json.loads(folder.responses_json.read_bytes()) == {"a": 1}
    envelope = json.loads((folder.root / "results.json").read_bytes())
    assert (envelope["task_id"], envelope["worker_id"], envelope["result"]) == ("task-1", "w-1", {"a": 1})
    assert envelope["metadata"] == {"attempt": 2, "name": "tune", "kind": "lora_sft", "workflow_id": "wf-1"}
    manifest = json.loads((folder.root / "manifest.json").read_bytes())
    entries = {entry["name"]: entry for entry in manifest["entries"]}
    told = {name: (each["type"], each["required"], each["status"]) for name, each in entries.items()}
    assert told == {
        "responses.json": ("result", True, "present"),
        "results.json": ("result", False, "present"),
        "logs": ("logs", True, "present"),
        "artifacts": ("directory", True, "missing"),
        "final_lora": ("directory", True, "present"),
        "final_lora.tar.gz": ("artifact", True, "missing"),
    }
    assert entries["responses.json"]["sha256"] == hash_file(folder.responses_json)[0]
    assert (entries["final_lora"]["file_count"], entries["final_lora"]["size"]) == (1, 7000)
    assert (entries["logs"]["path"], entries["logs"]["size"]) == ("train.log", 7)


def test_what_was_delivered_is_deleted_where_that_is_wanted(folder: JobFolder) -> None:
    folder.checkpoints_dir.mkdir()
    (folder.root / "final_lora.tar.gz").write_bytes(b"x")
    folder.responses_json.write_text("{}")
    Outputs(offer(HTTP), folder, Packing()).clean_up(trained(folder))
    assert [path.name for path in folder.root.iterdir()] == ["responses.json"]


def test_a_disk_without_room_for_an_archive_fails_the_delivery_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "results")
    rooms = iter([0, 0, 1 << 30])
    # No small file system is at hand in a unit test.
    monkeypatch.setattr("tunefleet.artifacts.packing.disk_free", lambda _: next(rooms, 0))
    monkeypatch.setattr(deliver, "_ROOM_PAUSE_S", 0.01)
    first = world.server.offer("task-1", spec={"output": HTTP})
    with Running(world) as running:
        world.job().end()
        done = world.server.finished(first)
        object.__setattr__(running.site, "transfers", Transfers(patience_s=0.02))
        second = world.server.offer("task-2", spec={"output": HTTP})
        world.job(count=2).end()
        failed = world.server.finished(second)
    assert (done.outcome, done.result["final_lora_archive_uploaded"]) == ("completed", True)
    assert (failed.outcome, failed.reason) == ("failed", "delivery_failed")
    assert "0 free" in (failed.error or "")
    assert len(world.jobs.all) == 2, "nothing is trained again"


@pytest.mark.parametrize(
    ("artifacts", "missing"),
    [
        (["responses.json", "logs", "results.json", "train.log"], []),
        (["report.html", "logs", "a/b"], ["report.html", "a/b"]),
    ],
)
def test_a_task_without_a_folder_says_that_it_leaves_no_files(artifacts: list[str], missing: list[str]) -> None:
    spec = {"taskType": "echo", "data": {"items": ["a"]}, "output": {"artifacts": artifacts}}
    given = Offer(token="t", task_id="task-1", workflow_id="wf-1", attempt=1, kind="echo", name="n", spec=spec)
    finish = run_light(EchoExecutor(), given, Secrets({}))
    why = "but a task that runs inside the worker leaves no files."
    assert finish.result.get("warnings", []) == [f"output.artifacts lists {name!r}, {why}" for name in missing]
