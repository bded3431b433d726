"""Checkpoints on the server: listed, retired, handed to another worker or to a new task."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.lab import FakeWorker, Lab
from tests.unit.orchestrator.test_steering import running
from tunefleet.errors import ConflictError
from tunefleet.orchestrator.scheduling import scheduler
from tunefleet.orchestrator.storage import artifacts
from tunefleet.orchestrator.tasks import control, tasks
from tunefleet.orchestrator.workers import workers
from tunefleet.orchestrator.workflows import reruns
from tunefleet.schemas.api import CommandRequest
from tunefleet.schemas.worker_link import Offer


def saved(step: int, digest: str | None = None) -> dict[str, Any]:
    return {
        "type": "checkpoint", "step": step, "name": f"checkpoint-{step}", "digest": digest or f"d{step}",
        "size_bytes": 5, "stall_s": 0.1,
    }  # fmt: skip


def launched(from_step: int = 0) -> dict[str, Any]:
    return {"type": "launch", "launch": "l", "from_step": from_step}


def measured(step: int, loss: float) -> dict[str, Any]:
    return {"type": "metric", "step": step, "values": {"eval_loss": loss}}


async def upload(lab: Lab, offer: Offer, step: int, *, best: bool = False, at: float | None = None) -> Any:
    about = {"step": step, "digest": f"d{step}", "best": best, "saved_at": at or float(step)}
    who = await lab.attempt(offer.token)
    return await lab.publish(who, f"checkpoint-{step}", b"step %d" % step, kind="checkpoint", metadata=about)


async def names(lab: Lab, task_id: str) -> set[str]:
    return {made.name for made in (await artifacts.list_(lab.core, lab.admin, task_id=task_id)).items}


async def requeued(lab: Lab, worker: FakeWorker, offer: Offer) -> None:
    await worker.finish(offer.token, "paused", "paused")


async def test_checkpoints_are_listed_without_what_a_resume_superseded(lab: Lab) -> None:
    task_id, _, offer = await running(lab)
    await lab.journal(
        offer.token, "a", [launched(), saved(4), measured(8, 0.5), saved(8), measured(12, 0.9), saved(12)]
    )
    await upload(lab, offer, 12)
    listed = await control.list_checkpoints(lab.core, lab.admin, task_id)
    assert [(c.step, c.best, c.eval_loss, c.artifact) for c in listed] == [
        (4, False, None, None),
        (8, True, 0.5, None),
        (12, False, 0.9, "checkpoint-12"),
    ]
    # By default two are kept, and the best one.
    assert [c.resumable for c in listed] == [False, True, True]
    await lab.journal(offer.token, "b", [launched(8), saved(10)])
    assert [c.step for c in await control.list_checkpoints(lab.core, lab.admin, task_id)] == [4, 8, 10]


async def test_the_newest_and_the_best_upload_stay_and_files_of_others_are_deleted(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    await upload(lab, offer, 4)
    await upload(lab, offer, 8, best=True)
    await upload(lab, offer, 12)
    digest = (await artifacts.get(lab.core, lab.admin, "checkpoint-12")).files[0].digest
    assert await names(lab, task_id) == {"checkpoint-8", "checkpoint-12"}
    assert lab.core.blobs.has(digest)
    await upload(lab, offer, 16, best=True)
    assert await names(lab, task_id) == {"checkpoint-16"}
    assert digest not in await lab.files(), "their files went with them"
    # The best one may be sent after a newer one: what was saved last is the newest.
    await upload(lab, offer, 24)
    await upload(lab, offer, 20, best=True)
    assert await names(lab, task_id) == {"checkpoint-20", "checkpoint-24"}
    await worker.finish(offer.token, "completed", "finished")
    assert await names(lab, task_id) == set(), "what is done needs no checkpoint"


async def test_a_lost_worker_is_followed_by_one_that_goes_on_from_the_upload(lab: Lab) -> None:
    task_id, _, offer = await running(lab)
    assert offer.resume is None
    await lab.journal(offer.token, "a", [launched(), saved(8)])
    published = await upload(lab, offer, 8)
    other = await lab.online("w2")
    await lab.sweep(lab.core.settings.lost_after_s + 2, alive=(other,))
    second = await other.start()
    assert second.task_id == task_id
    assert second.resume is not None
    assert (second.resume.step, second.resume.exact) == (8, False)
    assert second.resume.checkpoint is not None
    assert second.resume.checkpoint.digest == published.digest
    who = await lab.attempt(second.token)
    assert (await artifacts.get(lab.core, who, published.digest)).name == "checkpoint-8", "its token may fetch it"


async def test_the_worker_with_the_folder_is_preferred(lab: Lab) -> None:
    task_id, worker, offer = await running(lab, "w1")
    other = await lab.online("w0")
    await upload(lab, offer, 8)
    await requeued(lab, worker, offer)
    await reruns.resume(lab.core, lab.admin, task_id)
    await other.exchange()
    await worker.exchange()
    await scheduler.run_once(lab.core)
    assert (await lab.task(task_id)).worker_id == "w1"


async def test_a_checkpoint_that_one_worker_alone_has_is_waited_for(lab: Lab) -> None:
    task_id, worker, offer = await running(lab, "w1")
    await lab.journal(offer.token, "a", [launched(), saved(8)])
    await requeued(lab, worker, offer)
    other = await lab.online("w2")
    worker.want = {"light": 0, "job": 0}
    await worker.exchange()
    await reruns.resume(lab.core, lab.admin, task_id)
    assert not await other.offers(), "it would begin from nothing there"
    assert "only w1 has its checkpoint" in ((await lab.task(task_id)).why or "")
    worker.want = {"light": 8, "job": 1}
    (again,) = await worker.offers()
    assert again.resume is not None
    assert again.resume.checkpoint is None
    await worker.accept(again.token)


async def test_a_resume_from_an_exact_step_holds_for_one_attempt(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    await lab.journal(offer.token, "a", [launched(), saved(8), saved(12)])
    await upload(lab, offer, 12)
    await requeued(lab, worker, offer)
    with pytest.raises(ConflictError, match="no checkpoint 10") as caught:
        await reruns.resume(lab.core, lab.admin, task_id, 10)
    assert "8, 12" in (caught.value.hint or "")
    with pytest.raises(ConflictError, match="no checkpoint best"):
        await reruns.resume(lab.core, lab.admin, task_id, "best")
    await reruns.resume(lab.core, lab.admin, task_id, 8)
    second = await worker.start()
    assert second.resume is not None
    assert (second.resume.step, second.resume.exact, second.resume.checkpoint) == (8, True, None)
    assert await names(lab, task_id) == set(), "what lies beyond is nothing to go on from any more"
    await upload(lab, second, 10)
    await worker.finish(second.token, "failed", "killed")
    lab.clock.advance(60)
    third = await worker.start()
    assert third.resume is not None
    assert (third.resume.step, third.resume.exact) == (10, False)


@pytest.mark.parametrize("uploaded", [True, False])
async def test_a_final_task_goes_on_as_a_new_one(lab: Lab, uploaded: bool) -> None:
    task_id, worker, offer = await running(lab)
    await lab.journal(offer.token, "a", [launched(), measured(8, 0.5), saved(8), measured(12, 0.7), saved(12)])
    if uploaded:
        await upload(lab, offer, 12)
    await worker.finish(offer.token, "failed", "bad_input", error="No.")
    made = await reruns.resume(lab.core, lab.admin, task_id)
    assert (made.parent_task_id, made.status) == (task_id, "queued")
    assert made.id != task_id
    if not uploaded:
        other = await lab.online("w2")
        assert not await other.offers()
    else:
        await tasks.remove(lab.core, lab.admin, task_id)
        assert await names(lab, made.id) == {"checkpoint-12"}, "the new one has a name of its own for the files"
    first = await worker.start()
    assert first.resume is not None
    assert (first.resume.step, first.resume.exact, first.resume.from_task) == (12, True, task_id)
    assert (first.resume.checkpoint is not None) is uploaded
    if not uploaded:
        best = await reruns.resume(lab.core, lab.admin, task_id, "best")
        assert best.parent_task_id == task_id


def at_end(step: int, max_steps: int) -> dict[str, Any]:
    return {"type": "progress", "phase": "finishing", "step": step, "max_steps": max_steps}


async def test_a_training_that_has_done_all_its_steps_goes_on_from_an_earlier_one_alone(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    await lab.journal(offer.token, "a", [launched(), saved(8), saved(12), at_end(12, 12)])
    await worker.finish(offer.token, "completed")
    for step in (None, 12):
        with pytest.raises(ConflictError, match="completed all of its 12 steps") as caught:
            await reruns.resume(lab.core, lab.admin, task_id, step)
        assert f"tunefleet clone {task_id} --set training.max_steps=" in (caught.value.hint or "")
    made = await reruns.resume(lab.core, lab.admin, task_id, 8)
    assert made.parent_task_id == task_id
    longer = await reruns.resume(lab.core, lab.admin, task_id, None, {"training.max_steps": 24})
    assert longer.parent_task_id == task_id


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_a_training_that_ended_before_its_last_step_or_badly_after_it_goes_on(lab: Lab, status: Any) -> None:
    task_id, worker, offer = await running(lab)
    last = 8 if status == "completed" else 12
    await lab.journal(offer.token, "a", [launched(), saved(last), at_end(last, 12)])
    await worker.finish(offer.token, status, "stopped_early" if status == "completed" else "bad_input")
    assert (await reruns.resume(lab.core, lab.admin, task_id)).parent_task_id == task_id


async def test_a_training_whose_end_was_changed_on_the_way_goes_on_to_that_of_its_document(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    wanted = CommandRequest(command="set", data={"max_steps": 8})
    await control.command(lab.core, lab.admin, task_id, wanted)
    await lab.journal(offer.token, "a", [launched(), saved(8), at_end(8, 8)])
    await worker.finish(offer.token, "completed")
    assert (await reruns.resume(lab.core, lab.admin, task_id)).parent_task_id == task_id


async def test_a_checkpoint_of_a_removed_worker_is_refused(lab: Lab) -> None:
    task_id, worker, offer = await running(lab)
    await lab.journal(offer.token, "a", [launched(), saved(8)])
    await worker.finish(offer.token, "failed", "bad_input", error="No.")
    await lab.sweep(lab.core.settings.lost_after_s + 2)
    await workers.remove(lab.core, lab.admin, "w1")
    with pytest.raises(ConflictError, match=r"Checkpoint 8 of .* no longer exists"):
        await reruns.resume(lab.core, lab.admin, task_id)
