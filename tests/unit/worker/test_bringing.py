"""Weights and rows that a spec names and nobody uploaded: where they are looked for, fetched from, and refused."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.worker.fakes import Running, World
from tunefleet.client.transfer import OnProgress, ignore_progress
from tunefleet.errors import ForbiddenError, InputError, NotFoundError
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.worker_guide import ResultFile
from tunefleet.schemas.worker_link import InputRef, Offer
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.interfaces import Delivery
from tunefleet.worker.jobs.fetch_progress import InputDownload
from tunefleet.worker.jobs.preparation import paths_here
from tunefleet.worker.jobs.spec_files import ReferenceFetcher
from tunefleet.worker.mailbox import Mailbox
from tunefleet.worker.transfers import Transfers

TRAIN: dict[str, Any] = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
    "data": {"prompts": ["a"]},
}
UPLOADED = InputRef(digest="ab" * 32, name="w")
ADAPTER = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}


@dataclass
class OurServer:
    """The server's side of the attempt: files of tasks."""

    tasks: dict[str, dict[str, bytes]] = field(default_factory=dict)
    fetched: list[tuple[str, str]] = field(default_factory=list)

    def result_files(self, task_id: str) -> tuple[ResultFile, ...]:
        if task_id not in self.tasks:
            raise NotFoundError(f"Run {task_id} not found.")
        return tuple(
            ResultFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), url=f"http://s/{name}")
            for name, data in self.tasks[task_id].items()
        )

    def fetch_result_file(
        self, task_id: str, file: ResultFile, dest: Path, *, on_progress: OnProgress = ignore_progress
    ) -> None:
        self.fetched.append((task_id, file.name))
        dest.parent.mkdir(parents=True, exist_ok=True)
        dest.write_bytes(self.tasks[task_id][file.name])


@dataclass
class Lab:
    """A worker's folder, its server, and a document to bring things for."""

    results: Path
    site: WorkerContext
    server: OurServer = field(default_factory=OurServer)

    def bring(self, changes: Mapping[str, Any], given: Mapping[str, str] | None = None) -> dict[str, Path]:
        spec = {**TRAIN, **changes}
        offer = Offer(
            token="t", task_id="task-me", workflow_id="wf", attempt=1, kind=spec["taskType"], name="n", spec=spec
        )
        offer = offer.model_copy(update={"inputs": {pointer: UPLOADED for pointer in given or {}}})
        here = paths_here(offer, self.site.transfers) | dict(given or {})
        mailbox = Mailbox()
        fetching = InputDownload(self.site, mailbox, "t")
        found = here | ReferenceFetcher(self.site, offer, mailbox, cast(Delivery, self.server), fetching).bring(here)
        return {pointer: Path(path) for pointer, path in found.items()}

    def task(self, name: str, left: str) -> Path:
        """Make the folder of a task of this worker, with something that it has left."""
        folder = self.results / name
        (folder / left).mkdir(parents=True)
        (folder / "job.json").write_text('{"project": null}')
        return folder / left

    def load(self, **load: Any) -> Path:
        """Bring weights, and return where they are."""
        (path,) = self.bring({"checkpoint": {"load": load}}).values()
        return path


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    world = World(tmp_path / "results")
    running = Running(world)
    running.state.close()
    transfers = Transfers(
        server_url="http://ours.invalid:8000", folders=(world.results,), url_allow=("127.0.0.1",), patience_s=2
    )
    site = replace(running.site, transfers=transfers, secrets=Secrets({"KEY": "s3cret"}))
    return Lab(world.results, site)


def packed(files: Mapping[str, bytes], mode: str = "w:gz", top: str = "final_lora") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(f"{top}/{name}" if top else name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def holds(path: Path) -> set[str]:
    return {file.name for file in path.rglob("*") if file.is_file()}


def test_nothing_is_brought_for_most_tasks(lab: Lab) -> None:
    assert lab.bring({}) == {}
    assert lab.bring({"taskType": "unheard of"}) == {}, "and their spec is not read for it"


@pytest.mark.parametrize("probe", ["final_lora", "checkpoints/final_lora", "final_model", "checkpoints/final_model"])
def test_fault_22_what_a_task_left_is_found_on_this_worker_and_never_its_bare_folder(lab: Lab, probe: str) -> None:
    left = lab.task("task-other", probe)
    (lab.results / "task-other" / "journal").mkdir()
    assert lab.load(taskId="task-other") == left
    for kind in ("sft", "lora_sft"):
        assert lab.bring({"taskType": kind, "checkpoint": {"load": {"task_id": "task-other"}}})
    left.rmdir()
    lab.server.tasks["task-other"] = {"responses.json": b"{}"}
    with pytest.raises(InputError, match="task-other has no model or adapter"):
        lab.load(taskId="task-other")


def test_what_a_task_left_is_fetched_from_the_server(lab: Lab) -> None:
    lab.server.tasks["task-a"] = {f"final_lora/{name}": data for name, data in ADAPTER.items()}
    assert holds(lab.load(taskId="task-a")) == set(ADAPTER)
    lab.server.tasks["task-b"] = {"final_lora.tar.gz": packed(ADAPTER)}
    assert holds(lab.load(taskId="task-b", filename="final_lora.tar.gz")) == set(ADAPTER)
    with pytest.raises(InputError, match=r"no other\.zip"):
        lab.load(taskId="task-b", filename="other.zip")
    with pytest.raises(InputError, match="Run task-c not found"):
        lab.load(taskId="task-c")
    with pytest.raises(InputError, match="not a task ID"):
        lab.load(taskId="../task-a")


def test_archives_of_one_name_do_not_take_each_others_place(lab: Lab) -> None:
    for name in ("base", "first", "second"):
        content = packed({f"{name}.safetensors": name.encode()})
        lab.server.tasks[f"task-{name}"] = {"final_lora.tar.gz": content, "pairs.jsonl": name.encode()}
    model = {**TRAIN["model"], "adapters": [{"taskId": "task-first"}, {"taskId": "task-second", "name": "b"}]}
    data, start = {"type": "list", "items": ["a"]}, {"load": {"taskId": "task-base"}}
    found = lab.bring({"taskType": "inference", "model": model, "data": data, "checkpoint": start})
    assert {pointer: holds(path) for pointer, path in found.items()} == {
        "model.adapters.0": {"first.safetensors"},
        "model.adapters.1": {"second.safetensors"},
        "checkpoint.load": {"base.safetensors"},
    }
    links = {
        name: f"http://ours.invalid:8000/api/v1/results/task-{name}/files/pairs.jsonl" for name in ("first", "second")
    }
    rows = {"path": links["first"], "text_field": "text", "eval": {"path": links["second"]}}
    found = lab.bring({"data": rows})
    assert {pointer: path.read_text() for pointer, path in found.items()} == {
        "data.path": "first",
        "data.eval.path": "second",
    }


def test_a_link_of_our_server_is_fetched_with_the_attempts_own_right(lab: Lab) -> None:
    lab.server.tasks["task-a"] = {"final_lora.tar.gz": packed(ADAPTER)}
    for host in ("http://ours.invalid:8000", "https://public.invalid"):
        link = f"{host}/api/v1/results/task-a/files/final_lora.tar.gz?expires=1&signature=old"
        assert holds(lab.load(type="http", url=link)) == set(ADAPTER)
    assert lab.server.fetched == [("task-a", "final_lora.tar.gz")] * 2


def test_an_adapter_of_the_hub_is_left_to_the_program_that_loads_it(lab: Lab) -> None:
    model = {"source": {"identifier": "org/base"}}
    asked = {"taskType": "inference", "data": {"type": "list", "items": ["a"]}}
    assert lab.bring({**asked, "model": {**model, "adapters": [{"path": "org/adapter"}]}}) == {}
    lab.task("task-a", "final_lora")
    with pytest.raises(InputError, match=r"adapters\.0\.path: \./task-a/adapter not found"):
        lab.bring({**asked, "model": {**model, "adapters": [{"path": "./task-a/adapter"}]}})


def test_weights_are_read_where_a_document_may_look(lab: Lab, tmp_path: Path) -> None:
    inside, shared, outside = lab.task("task-a", "final_lora"), tmp_path / "mount" / "m", tmp_path / "private"
    for folder in (shared, outside):
        folder.mkdir(parents=True)
    assert (
        lab.load(path=str(inside)) == lab.load(uri=f"file://{inside}") == lab.load(path="task-a/final_lora") == inside
    )
    for path in (str(outside), str(shared), "../private", f"{inside}/../../../private"):
        with pytest.raises(InputError, match="TUNEFLEET_SHARED_DIRS"):
            lab.load(path=path)
    allowing = replace(lab.site, transfers=replace(lab.site.transfers, folders=(lab.results, tmp_path / "mount")))
    assert Lab(lab.results, allowing).load(path=str(shared)) == shared
    uploaded = lab.bring({"checkpoint": {"load": {"path": "./w"}}}, {"checkpoint.load.path": str(outside)})
    assert uploaded == {"checkpoint.load.path": outside}, "what travelled with the submit is no path of the document"


def test_what_another_projects_task_has_left_here_is_asked_of_the_server(lab: Lab) -> None:
    left = lab.task("task-theirs", "final_lora")
    (left.parent / "job.json").write_text('{"project": "another"}')
    for folder in ("task-theirs", "no-task"):
        (lab.results / folder / "final_lora").mkdir(parents=True, exist_ok=True)
        with pytest.raises(InputError, match=f"Run {folder} not found"):
            lab.load(taskId=folder, url="https://example.invalid/a.tar.gz", type="http")


def test_a_path_that_is_not_here_gives_way_to_the_task_and_the_address(lab: Lab) -> None:
    lab.server.tasks["task-a"] = {f"final_lora/{name}": data for name, data in ADAPTER.items()}
    load = {"path": str(lab.results / "task-a" / "final_lora"), "taskId": "task-a"}
    found = lab.bring({"checkpoint": {"load": load}})
    assert {pointer: holds(path) for pointer, path in found.items()} == {"checkpoint.load": set(ADAPTER)}


def test_what_the_server_forbids_is_the_documents_mistake(lab: Lab) -> None:
    class Forbidding(OurServer):
        def result_files(self, task_id: str) -> tuple[ResultFile, ...]:
            raise ForbiddenError("This token is good for task-me.")

    lab.server = Forbidding()
    with pytest.raises(InputError, match="good for task-me"):
        lab.load(taskId="task-a")
