"""Lists of tasks: searched, sorted, counted, at a glance; and one verb for many."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.lab import ECHO, TRAIN, Lab
from tunefleet.errors import ForbiddenError, InputError
from tunefleet.orchestrator.tasks import listing, tasks
from tunefleet.orchestrator.tasks.listing import TaskListQuery
from tunefleet.orchestrator.telemetry import live_feed
from tunefleet.orchestrator.workflows import bulk_actions
from tunefleet.schemas.api import TaskEdit, TaskView
from tunefleet.schemas.ui import ManyRequest


def _named(name: str, document: str = ECHO) -> str:
    return document.replace("name: hello", f"name: {name}").replace("name: train", f"name: {name}")


async def _all(lab: Lab, **look: Any) -> list[TaskView]:
    """Read a list page by page."""
    found: list[TaskView] = []
    cursor: str | None = None
    while True:
        page = await listing.page(lab.core, lab.admin, TaskListQuery(limit=3, cursor=cursor, **look))
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_words_are_looked_for_everywhere_and_all_must_be_there(lab: Lab) -> None:
    apple = await lab.submit(_named("apple-pie"))
    pear = await lab.submit(_named("Pear-pie", TRAIN))
    percent = await lab.submit(_named("p_e"))

    async def found(q: str) -> set[str]:
        return {task.id for task in await _all(lab, q=q)}

    assert await found("PIE") == {apple, pear}
    assert await found("pie lora") == {pear}
    assert await found(apple[5:]) == {apple}
    assert await found("p_e") == {percent}  # no pattern
    assert await found("%") == set()
    assert await found("admin") == {apple, pear, percent}
    assert await found("  ") == {apple, pear, percent}
    assert {task.workflow_name for task in await _all(lab, q="p_e")} == {"p_e"}
    with pytest.raises(InputError):
        await found(" ".join("abcdefghi"))


async def test_every_order_can_be_read_page_by_page(lab: Lab) -> None:
    worker = await lab.online()
    for number in range(10):
        lab.clock.advance(1.0)
        await lab.submit(_named(f"n{number % 3}", TRAIN if number % 4 else ECHO))
    offers = await worker.offers()
    await worker.accept(*(offer.token for offer in offers))
    lab.clock.advance(5.0)
    await worker.finish(offers[0].token)
    for sort in listing.SORTS:
        up, down = await _all(lab, sort=sort), await _all(lab, sort=f"-{sort}")
        assert len({task.id for task in up}) == len(up) == 10, sort
        assert [task.id for task in reversed(down)] == [task.id for task in up], sort
        if sort in {"name", "kind", "status", "owner"}:
            assert [getattr(task, sort) for task in up] == sorted(getattr(task, sort) for task in up), sort


async def test_a_new_task_shifts_no_page_and_time_moves_no_row(lab: Lab) -> None:
    worker = await lab.online()
    for number in range(8):
        await lab.submit(_named(f"n{number}"))
    lab.clock.advance(1.0)
    offers = await worker.offers()
    await worker.accept(*(offer.token for offer in offers))
    for sort in ("-created", "-name", "-duration"):
        first = await listing.page(lab.core, lab.admin, TaskListQuery(limit=4, sort=sort))
        await lab.submit(_named("zz"))
        lab.clock.advance(100.0)
        rest = await listing.page(lab.core, lab.admin, TaskListQuery(limit=100, sort=sort, cursor=first.next_cursor))
        seen = [task.id for task in (*first.items, *rest.items)]
        assert len(seen) == len(set(seen))
        assert len({task.name for task in (*first.items, *rest.items)} - {"zz"}) == 8


async def test_a_cursor_of_another_order_is_refused(lab: Lab) -> None:
    for number in range(3):
        await lab.submit(_named(f"n{number}"))
    page = await listing.page(lab.core, lab.admin, TaskListQuery(limit=1, sort="name"))
    for look in (
        TaskListQuery(sort="-name", cursor=page.next_cursor),
        TaskListQuery(sort="kind", cursor=page.next_cursor),
    ):
        with pytest.raises(InputError, match="not a cursor"):
            await listing.page(lab.core, lab.admin, look)
    for nonsense in ("x", "é", "W10", "WyJuYW1lIixmYWxzZSx7fSwxLDFd", "1" * 40):
        with pytest.raises(InputError, match="not a cursor"):
            await listing.page(lab.core, lab.admin, TaskListQuery(sort="name", cursor=nonsense))
    with pytest.raises(InputError, match="sorted by"):
        await listing.page(lab.core, lab.admin, TaskListQuery(sort="secret_hash"))


async def test_counts_follow_the_filters(lab: Lab) -> None:
    for name, document in (("apple", ECHO), ("quince", ECHO), ("quince", TRAIN)):
        await lab.submit(_named(name, document))
    all_of_them = await listing.counts(lab.core, lab.admin, TaskListQuery())
    assert (all_of_them.total, all_of_them.kind) == (3, {"echo": 2, "lora_sft": 1})
    assert (all_of_them.status, all_of_them.owner, all_of_them.worker_id) == ({"queued": 3}, {"admin": 3}, {})
    some = await listing.counts(lab.core, lab.admin, TaskListQuery(q="quince", filters={"kind": "echo"}))
    assert (some.total, some.kind) == (1, {"echo": 1})


async def test_a_glance_has_the_whole_curve_that_counts(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()

    async def tell(launch: str, from_step: int, records: list[dict[str, Any]]) -> None:
        first = {"type": "launch", "launch": launch, "from_step": from_step}
        await lab.journal(offer.token, launch, [first, *records])

    await tell("l1", 0, [_metric(n, loss=100.0 + n) for n in range(1, 201)])
    again = [_metric(149 + n, loss=float(n), lr=0.1) for n in range(1, 11)]
    await tell("l2", 149, [*again, _metric(160, eval_loss=7.0)])
    (seen,) = await _all(lab, glance=True)
    assert seen.id == task_id
    assert seen.glance is not None
    assert (seen.glance.step, seen.glance.latest) == (160, {"loss": 10.0, "lr": 0.1, "eval_loss": 7.0})
    assert seen.glance.best == {"loss": 1.0, "eval_loss": 7.0}
    steps = [step for step, _ in seen.glance.loss]
    assert (steps[0], steps[-1], len(steps) <= 60, steps == sorted(set(steps))) == (1, 159, True, True)
    assert all(value == (100.0 + step if step < 150 else step - 149) for step, value in seen.glance.loss)
    (plain,) = await _all(lab)
    assert plain.glance is None
    shown = await listing.overview(lab.core, lab.admin)
    assert (shown.tasks, shown.workers) == ({"running": 1}, {"online": 1})
    assert shown.running[0].glance == seen.glance
    await worker.finish(offer.token)
    (ended,) = await _all(lab, glance=True)
    assert ended.glance == seen.glance


async def test_tasks_are_sorted_by_a_metric_and_those_without_it_are_last(lab: Lab) -> None:
    worker = await lab.online()
    losses = {}
    for number, loss in enumerate([3.0, 1.0, None, 2.0]):
        task_id = await lab.submit(_named(f"n{number}", TRAIN))
        losses[task_id] = loss
        offer = await worker.start()
        points = [] if loss is None else [_metric(1, eval_loss=loss), _metric(2, held_out_loss=loss + 5, note="x")]
        await lab.journal(offer.token, "l1", [{"type": "launch", "launch": "l1", "from_step": 0}, *points])
        await worker.finish(offer.token)

    async def found(sort: str) -> list[float | None]:
        return [losses[task.id] for task in await _all(lab, sort=sort)]

    assert await found("best.eval_loss") == [1.0, 2.0, 3.0, None]
    assert await found("-latest.eval_loss") == [3.0, 2.0, 1.0, None]
    assert set(await found("latest.note")) == set(losses.values())
    with pytest.raises(InputError, match="sorted by"):
        await found('latest."')


def _metric(step: int, **values: float | str) -> dict[str, Any]:
    return {"type": "metric", "step": step, "values": values}


async def test_titles_tags_and_notes_are_shown_found_and_filtered(lab: Lab) -> None:
    first, second = await lab.submit(TRAIN), await lab.submit(ECHO)
    changed = await tasks.edit(
        lab.core, lab.admin, first, TaskEdit(name="baseline", tags=("good", "v1"), notes="warm-up is too short")
    )
    assert (changed.name, changed.original_name, changed.tags) == ("baseline", "train", ("good", "v1"))
    done = await bulk_actions.do(lab.core, lab.admin, ManyRequest(action="tag", task_ids=(first, second), tags=("v2",)))
    assert all(item.ok for item in done.items)

    async def found(**look: Any) -> set[str]:
        return {task.id for task in await _all(lab, **look)}

    assert await found(q="baseline") == await found(q="good") == await found(filters={"tag": "v1,none"}) == {first}
    assert await found(filters={"tag": "v2"}) == {first, second}
    counted = await listing.counts(lab.core, lab.admin, TaskListQuery())
    assert (counted.tag, counted.method) == ({"good": 1, "v1": 1, "v2": 2}, {"lora_sft": 1})
    await bulk_actions.do(lab.core, lab.admin, ManyRequest(action="untag", task_ids=(first,), tags=("v2", "v1")))
    changed = await tasks.edit(lab.core, lab.admin, first, TaskEdit(name=None))
    assert (changed.name, changed.original_name, changed.tags) == ("train", None, ("good",))
    assert changed.notes == "warm-up is too short"
    edits = await live_feed.events_after(lab.core, lab.admin, 0, kinds=["task.edited"])
    assert next(each.data["fields"] for each in edits) == ["name", "notes", "tags"]
    with pytest.raises(ForbiddenError):
        await tasks.edit(lab.core, await lab.actor("eve", "member"), first, TaskEdit(name="mine"))
    with pytest.raises(ValueError, match="comma"):
        TaskEdit(tags=("a,b",))


async def test_the_spec_as_run_comes_with_a_list_on_request(lab: Lab) -> None:
    await lab.submit(TRAIN)
    (plain,), (full,) = await _all(lab), await _all(lab, config=True)
    assert plain.config is None
    assert full.config is not None
    assert full.config["taskType"] == "lora_sft"
    assert (full.method, full.model) == ("lora_sft", full.config["model"]["source"]["identifier"])


async def test_the_overview_has_what_goes_next_and_what_failed_last(lab: Lab) -> None:
    worker = await lab.online()
    await lab.submit(TRAIN)
    offer = await worker.start()
    await worker.finish(offer.token, "failed", "bad_input", error="no luck")
    waiting = [await lab.submit(_named(f"n{n}", TRAIN)) for n in range(12)]
    shown = await listing.overview(lab.core, lab.admin)
    assert [task.id for task in shown.queue] == waiting[:10]
    assert [task.error for task in shown.failed] == ["no luck"]
    worker_key = lab.worker_key
    with pytest.raises(ForbiddenError):
        await listing.overview(lab.core, worker_key)


async def test_one_verb_for_many_says_what_became_of_each(lab: Lab) -> None:
    ada = await lab.actor("ada", "member")
    other = await lab.submit(ECHO)
    lab.admin, admin = ada, lab.admin
    mine = [await lab.submit(_named(f"n{n}")) for n in range(3)]
    lab.admin = admin
    ids = (*mine, other, "task-ffffffffffff", mine[0])
    done = await bulk_actions.do(lab.core, ada, ManyRequest(action="cancel", task_ids=ids))
    assert [item.task_id for item in done.items] == [*mine, other, "task-ffffffffffff"]
    assert [item.ok for item in done.items] == [True, True, True, False, False]
    assert [item.code for item in done.items][3:] == ["forbidden", "not_found"]
    again = await bulk_actions.do(lab.core, ada, ManyRequest(action="retry", task_ids=(mine[0], other)))
    assert again.items[0].made is not None
    assert again.items[1].code == "conflict"
    gone = await bulk_actions.do(lab.core, ada, ManyRequest(action="remove", task_ids=tuple(mine)))
    assert all(item.ok for item in gone.items)
    assert {task.id for task in await _all(lab)} == {other, again.items[0].made}
    with pytest.raises(ForbiddenError):
        await bulk_actions.do(
            lab.core, await lab.actor("eve", "viewer"), ManyRequest(action="cancel", task_ids=(other,))
        )
