"""Lists of tasks: searched, sorted, counted, at a glance; and one verb for many."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.orchestrator.lab import ECHO, TRAIN, Lab
from tunefleet.errors import ForbiddenError, InputError
from tunefleet.orchestrator.tasks import listing
from tunefleet.orchestrator.tasks.listing import TaskListQuery
from tunefleet.orchestrator.workflows import bulk_actions
from tunefleet.schemas.api import TaskView
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


async def test_a_glance_has_the_end_of_the_curve_that_counts(lab: Lab) -> None:
    worker = await lab.online()
    task_id = await lab.submit(TRAIN)
    offer = await worker.start()

    def metric(step: int, **values: float) -> dict[str, Any]:
        return {"type": "metric", "step": step, "values": values}

    async def tell(launch: str, from_step: int, records: list[dict[str, Any]]) -> None:
        first = {"type": "launch", "launch": launch, "from_step": from_step}
        await lab.journal(offer.token, launch, [first, *records])

    await tell("l1", 0, [metric(n, loss=100.0 + n) for n in range(1, 201)])
    again = [metric(149 + n, loss=float(n), lr=0.1) for n in range(1, 11)]
    await tell("l2", 149, [*again, metric(160, eval_loss=7.0)])
    (seen,) = await _all(lab, glance=True)
    assert seen.id == task_id
    assert seen.glance is not None
    assert (seen.glance.step, seen.glance.latest) == (160, {"loss": 10.0, "lr": 0.1, "eval_loss": 7.0})
    assert len(seen.glance.loss) == 60
    assert seen.glance.loss[-10:] == tuple((149 + n, float(n)) for n in range(1, 11))
    assert seen.glance.loss[0] == (100, 200.0)
    (plain,) = await _all(lab)
    assert plain.glance is None
    shown = await listing.overview(lab.core, lab.admin)
    assert (shown.tasks, shown.workers) == ({"running": 1}, {"online": 1})
    assert shown.running[0].glance == seen.glance


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
