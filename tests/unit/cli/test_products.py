"""What an export says of the merge that it asks for: the error once, whoever says it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.cli.models.push import folder_of, verification_text
from tunefleet.errors import ConflictError, Fault, SpecError
from tunefleet.integrations.publishing import products
from tunefleet.schemas.api import ArtifactView, SubmitRequest, TaskDetail

AT = datetime(2026, 1, 1, tzinfo=UTC)
WHY = "The converter cannot make a GGUF file of this model."


def task(id_: str, status: str, error: str | None = None) -> TaskDetail:
    return TaskDetail(
        id=id_, workflow_id="wf-1", name="tune", kind="merge", status=status, owner="admin", created_at=AT, error=error,
        spec={"model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}}},
    )  # fmt: skip


class Server:
    """A double of the client: a trained adapter, and a merge that somebody else submits and ends."""

    def __init__(self, refusal: SpecError | None = None) -> None:
        self.asked: list[SubmitRequest] = []
        adapter = ArtifactView(
            id="art-1", name="final_lora", kind="adapter", digest="d", size_bytes=1, file_count=1, owner="admin",
            created_at=AT,
        )  # fmt: skip
        tasks = {"task-a": task("task-a", "completed"), "task-m": task("task-m", "queued")}

        def create(request: SubmitRequest, key: str) -> Any:
            self.asked.append(request)
            if refusal is not None:
                raise refusal
            return SimpleNamespace(tasks=[tasks["task-m"]])

        self.tasks = SimpleNamespace(get=tasks.__getitem__)
        self.artifacts = SimpleNamespace(iterate=lambda task_id: [adapter])
        self.workflows = SimpleNamespace(create=create)


def export(server: Server, *, shown: bool) -> str:
    def wait(merge: TaskDetail) -> TaskDetail:
        return task(merge.id, "failed", WHY)

    with pytest.raises(ConflictError) as caught:
        products.find(server, "task-a", "gguf", gguf="q8_0", verify=True, wait=wait, shown=shown)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_merge_that_no_worker_could_run_is_refused_at_once() -> None:
    fault = Fault("spec.resources", "no worker could run task tune-gguf: unschedulable: w1 lacks gguf.", 3, 1)
    server = Server(SpecError([fault]))
    said = export(server, shown=True)
    assert server.asked[0].strict
    assert said.count("w1 lacks gguf") == 1


def test_why_a_merge_has_failed_is_said_by_who_showed_it_or_at_the_end() -> None:
    assert WHY not in export(Server(), shown=True), "its events have said so"
    assert export(Server(), shown=False).count(WHY) == 1


def test_each_form_of_a_task_goes_to_a_folder_of_its_own() -> None:
    """So that three exports, one after the other, are not refused because of each other."""
    forms: tuple[products.Form, ...] = ("as-is", "merged", "gguf")
    assert [str(folder_of("my/run", form)) for form in forms] == ["my-run", "my-run-merged", "my-run-gguf"]


@pytest.mark.parametrize(
    ("kind", "result", "shown"),
    [
        ("merge", {"verification": {"relative_error": 0.00212, "tolerance": 0.04}}, "error 0.002, tolerance 0.04)"),
        ("merge", {"verification": None}, "The merged model was not verified."),
        ("merge", {"verification": {"relative_error": 0.0, "tolerance": 0.0}}, ""),
        ("lora_sft", {}, ""),
        ("merge", {"verification": None, "gguf": {"check": None}}, "The answers of the GGUF file were not checked."),
        ("merge", {"gguf": {"check": {"summary": "The same answers to 3 of 3 prompts."}}}, "3 of 3 prompts."),
    ],
)  # fmt: skip
def test_an_export_shows_how_far_the_merged_model_deviates(kind: str, result: dict[str, Any], shown: str) -> None:
    merge = task("task-m", "completed").model_copy(update={"kind": kind, "result": {"result": result}})
    said = verification_text(merge)
    assert said.endswith(shown + ("." if shown.endswith(")") else ""))
    assert bool(said) == bool(shown)
