"""What a document may name on a worker's disk: every pointer × every kind of place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import InputError
from tunefleet.schemas.worker_link import InputRef, Offer
from tunefleet.spec.base import is_hub_name, is_written_as_path
from tunefleet.spec.documents.paths import _PLACES, _WORKER_PLACES
from tunefleet.worker.jobs.preparation import paths_here
from tunefleet.worker.transfers import Transfers

POINTERS = {places: required for places, _, required in (*_PLACES, *_WORKER_PLACES)}
OURS, THEIRS = "vision", "speech"


@dataclass(frozen=True)
class Disk:
    """A worker's disk: its RESULTS_DIR with tasks of two projects, a shared folder, and the rest."""

    results: Path
    shared: Path
    outside: Path

    @property
    def transfers(self) -> Transfers:
        return Transfers(folders=(self.results, self.shared))


def task(folder: Path, project: str | None) -> Path:
    (folder / "final_lora").mkdir(parents=True)
    (folder / "final_lora" / "adapter_config.json").write_text("{}")
    (folder / "rows.jsonl").write_text('{"text": "a"}\n')
    (folder / "job.json").write_text(json.dumps({"project": project}))
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    results, shared, outside = tmp_path / "results", tmp_path / "shared", tmp_path / "home"
    for name, project in (("task-ours", OURS), ("task-theirs", THEIRS)):
        task(results / name, project)
        task(shared / "lab-2" / name, project)
    for folder in (results / ".inputs" / "abc", outside, shared / "sets", results / "exports" / "task-ours"):
        folder.mkdir(parents=True)
        (folder / "rows.jsonl").write_text('{"text": "secret"}\n')
    (results / "worker.log").write_text("log")
    (results / "task-broken").mkdir()
    (results / "task-broken" / "job.json").write_text("{")
    (results / "task-ours" / "link.jsonl").symlink_to(outside / "rows.jsonl")
    (results / "task-ours" / "folder").symlink_to(results / "task-theirs")
    (shared / "link").symlink_to(results / ".inputs" / "abc")
    return Disk(results, shared, outside)


def document(places: str, value: str) -> tuple[dict[str, Any], str]:
    """Return a spec with a value at a pointer, and the pointer."""
    spec: dict[str, Any] = {"taskType": "sft"}
    keys, pointer = places.split("."), []
    at: Any = spec
    for key, after in zip(keys, [*keys[1:], None], strict=True):
        new: Any = value if after is None else [] if after == "*" else {}
        if key == "*":
            at.append(new)
            pointer.append("0")
        else:
            at[key] = new
            pointer.append(key)
        at = new
    return spec, ".".join(pointer)


def offer(spec: dict[str, Any], project: str | None = OURS, **changes: Any) -> Offer:
    return Offer(
        token="t", task_id="task-new", workflow_id="w", attempt=1, kind="sft", name="n", spec=spec, project=project,
        **changes,
    )  # fmt: skip


def found(disk: Disk, places: str, value: str | Path, **changes: Any) -> str | None:
    spec, pointer = document(places, str(value))
    return paths_here(offer(spec, **changes), disk.transfers).get(pointer)


FORBIDDEN = {
    "elsewhere": lambda disk: disk.outside / "rows.jsonl",
    "elsewhere, and nothing there": lambda disk: disk.outside / "nothing.jsonl",
    "a system file": lambda _: Path("/etc/passwd"),
    "the root": lambda _: Path("/"),
    "RESULTS_DIR": lambda disk: disk.results,
    "what others uploaded": lambda disk: disk.results / ".inputs" / "abc" / "rows.jsonl",
    "the worker's own files": lambda disk: disk.results / "worker.log",
    "another project's task": lambda disk: disk.results / "task-theirs" / "rows.jsonl",
    "another project's task, through ours": lambda disk: (
        disk.results / "task-ours" / ".." / "task-theirs" / "rows.jsonl"
    ),
    "a link out of our task": lambda disk: disk.results / "task-ours" / "link.jsonl",
    "a link to another project's task": lambda disk: disk.results / "task-ours" / "folder" / "rows.jsonl",
    "a task that does not say whose it is": lambda disk: disk.results / "task-broken" / "x",
    "another project's task of another worker": lambda disk: disk.shared / "lab-2" / "task-theirs" / "rows.jsonl",
    "all tasks of another worker": lambda disk: disk.shared / "lab-2",
    "a link out of a shared folder": lambda disk: disk.shared / "link" / "rows.jsonl",
    "a name that no file can have": lambda disk: disk.results / ("x" * 5000),
}
ALLOWED = {
    "our task": lambda disk: disk.results / "task-ours" / "rows.jsonl",
    "what our task has left in a folder": lambda disk: disk.results / "exports" / "task-ours" / "rows.jsonl",
    "our task of another worker": lambda disk: disk.shared / "lab-2" / "task-ours" / "rows.jsonl",
    "a shared folder": lambda disk: disk.shared / "sets" / "rows.jsonl",
}


@pytest.mark.parametrize("places", POINTERS)
@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_document_reads_nothing_that_is_not_its_projects(disk: Disk, what: str, places: str) -> None:
    value = FORBIDDEN[what](disk)
    with pytest.raises(InputError) as caught:
        found(disk, places, value)
    _, pointer = document(places, "")
    assert caught.value.message.startswith(f"spec.{pointer}: on a worker a workflow may only use ")
    assert str(disk.results) not in str(caught.value), "where the worker's folders lie is nobody's business"


@pytest.mark.parametrize("places", POINTERS)
@pytest.mark.parametrize("what", ALLOWED)
def test_a_document_reads_what_its_project_has_left_and_what_is_shared(disk: Disk, what: str, places: str) -> None:
    value = ALLOWED[what](disk)
    assert found(disk, places, value) == str(value)


@pytest.mark.parametrize("places", POINTERS)
def test_a_relative_path_is_below_the_results_and_no_name_leads_out_of_it(disk: Disk, places: str) -> None:
    ours = found(disk, places, "task-ours/rows.jsonl")
    required = POINTERS[places] or places == "model.adapters.*.path"
    assert ours == (str(disk.results / "task-ours" / "rows.jsonl") if required else None), (
        "else it is a name of the Hub"
    )
    for value in ("../home/rows.jsonl", "~/rows.jsonl", "./.inputs/abc", "..", "."):
        assert is_written_as_path(value)
        with pytest.raises(InputError, match="on a worker a workflow may only use"):
            found(disk, places, value)
    for value in ("task-theirs/rows.jsonl", "task-ours/../task-theirs/rows.jsonl", "etc/passwd"):
        if required and not (is_hub_name(value) and places == "model.adapters.*.path"):
            with pytest.raises(InputError, match="on a worker a workflow may only use"):
                found(disk, places, value)
        else:
            assert found(disk, places, value) is None


@pytest.mark.parametrize("places", POINTERS)
def test_what_was_uploaded_is_not_looked_for(disk: Disk, places: str) -> None:
    _, pointer = document(places, "")
    inputs = {pointer: InputRef(digest="ab" * 32, name="rows.jsonl")}
    assert found(disk, places, disk.outside / "rows.jsonl", inputs=inputs) is None


@pytest.mark.parametrize("places", POINTERS)
@pytest.mark.parametrize("value", ["builtin:gsm8k", "https://example.org/rows.jsonl"])
def test_what_ships_or_is_fetched_is_no_path(disk: Disk, places: str, value: str) -> None:
    assert found(disk, places, value) is None


def test_a_folder_inside_is_checked_as_well(disk: Disk) -> None:
    def load(path: Path, subdir: str) -> dict[str, str]:
        spec = {"taskType": "sft", "checkpoint": {"load": {"path": str(path), "subdir": subdir}}}
        return paths_here(offer(spec), disk.transfers)

    assert load(disk.shared / "sets", "x") == {"checkpoint.load.path": str(disk.shared / "sets")}
    for path, subdir in ((disk.shared, "lab-2/task-theirs/final_lora"), (disk.shared / "sets", "../lab-2/task-theirs")):
        with pytest.raises(InputError, match=r"^spec.checkpoint.load.path: on a worker"):
            load(path, subdir)


def test_of_several_places_one_that_may_be_read_will_do(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    def read(**jsonl: str) -> dict[str, str]:
        return paths_here(offer({"taskType": "sft", "data": {"jsonl": jsonl}}), disk.transfers)

    good, bad = str(disk.shared / "sets" / "rows.jsonl"), str(disk.outside / "rows.jsonl")
    assert read(path="rows.jsonl", worker_path=good) == {"data.jsonl.worker_path": good}
    assert "spec.data.jsonl.path: on a worker" in caplog.text
    assert read(url="https://example.org/x", worker_path=bad) == {}
    with pytest.raises(InputError, match=r"^spec.data.jsonl.path"):
        read(path=bad, worker_path=bad)
    spec = {"taskType": "sft", "checkpoint": {"load": {"path": bad, "taskId": "task-ours"}}}
    assert paths_here(offer(spec), disk.transfers) == {}, "the task is fetched then"


def test_where_there_are_no_projects_all_tasks_are_of_one(disk: Disk) -> None:
    task(disk.results / "task-old", None)
    place = disk.results / "task-old" / "rows.jsonl"
    assert found(disk, "data.path", place, project=None) == str(place)
    with pytest.raises(InputError):
        found(disk, "data.path", disk.results / "task-ours" / "rows.jsonl", project=None)


@pytest.mark.parametrize(
    "what", [w for w in FORBIDDEN if "nothing" not in w and "all tasks" not in w and "RESULTS" not in w]
)
def test_a_document_writes_nowhere_else_either(disk: Disk, what: str) -> None:
    value = FORBIDDEN[what](disk)
    if what == "the worker's own files":
        return  # a folder below a file: the copy fails by itself
    with pytest.raises(InputError, match=r"^spec.output.destination.path: on a worker"):
        disk.transfers.writable(value / "task-new", OURS, "spec.output.destination.path")


def test_a_document_writes_below_the_results_and_into_what_is_shared(disk: Disk) -> None:
    for folder in (disk.results, disk.results / "exports", disk.shared / "sets", disk.results / "task-ours" / "more"):
        assert disk.transfers.writable(folder / "task-new", OURS, "x") == folder / "task-new"
