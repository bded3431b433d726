"""Trainings on several workers: all nodes in one pass or none, and room is gathered for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.placement.test_placement import A100, need, worker
from tunefleet.placement import Assignment, Candidate, Requirement, WorkerState, explain, plan
from tunefleet.placement.elastic import Member, Rules, Waiting, decide

RELEASE = "Tunefleet 1, torch 2"


def node(id_: str, **changes: Any) -> WorkerState:
    return worker(id_, **{"release": RELEASE, "host": id_, **changes})


def gang(least: int, most: int | None = None, **changes: Any) -> Requirement:
    return need(nodes=least, nodes_max=most or least, **changes)


def placed(wanted: Requirement, workers: list[WorkerState], **about: Any) -> tuple[Assignment, ...]:
    return plan([Candidate("t", wanted, 0.0, **about)], workers).assignments


def test_a_gang_gets_all_of_its_workers_in_one_pass_or_none() -> None:
    assert placed(gang(3), [node("a"), node("b")]) == ()
    (found,) = placed(gang(2), [node("a"), node("b"), node("c")])
    assert len(set(found.worker_ids)) == 2
    (found,) = placed(gang(2, 4), [node("a"), node("b"), node("c")])
    assert len(set(found.worker_ids)) == 3, "as many as are free, up to the most"
    (found,) = placed(gang(1, 2), [node("a")])
    assert found.members == ()


def test_its_first_node_is_where_its_folder_is_and_nobody_who_did_not_come_is_asked_again() -> None:
    three = [node("a"), node("b"), node("c")]
    (found,) = placed(gang(2), three, prefers="c")
    assert found.worker_id == "c"
    (found,) = placed(gang(2), three, avoid=frozenset({"a"}))
    assert set(found.worker_ids) == {"b", "c"}
    assert placed(gang(2), three, prefers="z", only=True) == ()


def test_machines_of_their_own_come_first_and_one_machine_does_as_well() -> None:
    two = [node("a", host="x"), node("b", host="x")]
    (found,) = placed(gang(2), two)
    assert set(found.worker_ids) == {"a", "b"}
    (found,) = placed(gang(2), [*two, node("c", host="y")])
    assert "c" in found.worker_ids


def test_nodes_have_the_same_releases_and_the_same_sort_of_device() -> None:
    other = node("b", release="Tunefleet 1, torch 3")
    assert placed(gang(2), [node("a"), other]) == ()
    why = explain(gang(2), [node("a"), other]) or ""
    assert why.startswith("unschedulable: it needs 2 nodes")
    assert "torch 3" in why
    assert placed(gang(2), [node("a"), node("b", release="")]) == ()
    optional = gang(2, gpu_count=1, gpu_optional=True)
    mixed = [node("a", gpus=(A100,)), node("b")]
    assert placed(optional, mixed) == ()
    assert len(placed(optional, [*mixed, node("c")])) == 1


def test_waiting_names_how_many_nodes_fit_now() -> None:
    busy = node("b", free={"job": 0, "light": 8})
    assert explain(gang(2), [node("a"), node("c")]) is None
    assert explain(gang(2), [node("a"), busy]) == (
        "waiting: it needs 2 nodes at the same time, and 1 fits now; b is busy."
    )
    assert (explain(gang(3), [node("a"), node("c")]) or "").startswith("unschedulable: it needs 3 nodes")


def test_a_gang_is_not_starved_by_small_tasks_and_blocks_nobody_if_it_can_never_run() -> None:
    busy = replace(node("b"), free={"job": 0, "light": 8}, takes={"job": 1, "light": 8})
    small = [Candidate(f"s{number}", need(), 1.0 + number) for number in range(3)]
    found = plan([Candidate("gang", gang(2), 0.0), *small], [node("a"), busy])
    assert found.assignments == (), "the free one is kept, too"
    assert found.reserved == {"a": "gang", "b": "gang"}
    free_again = plan([Candidate("gang", gang(2), 0.0), *small], [node("a"), node("b")])
    assert [each.task_id for each in free_again.assignments] == ["gang"]
    never = plan([Candidate("gang", gang(3), 0.0), *small], [node("a"), busy])
    assert never.reserved == {}
    assert [each.task_id for each in never.assignments] == ["s0"]


_tasks = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=8
)
_workers = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(["one", "two", ""]), st.sampled_from("xyz")),
    min_size=1,
    max_size=7,
)


@given(_tasks, _workers)
def test_no_gang_is_ever_placed_in_part_and_nothing_is_given_twice(
    tasks: list[tuple[int, int, int, int]], fleet: list[tuple[int, int, str, str]]
) -> None:
    workers = [
        node(
            f"w{number}",
            slots={"job": 2, "light": 8},
            free={"job": free, "light": 8},
            takes={"job": 2, "light": 8},
            gpus=tuple(replace(A100, uuid=f"{number}-{place}") for place in range(gpus)),
            release=release,
            host=host,
        )
        for number, (free, gpus, release, host) in enumerate(fleet)
    ]
    needs = {
        f"t{number}": gang(least, least + more, gpu_count=gpus) for number, (least, more, gpus, _) in enumerate(tasks)
    }
    candidates = [Candidate(id_, wanted, float(tasks[int(id_[1:])][3])) for id_, wanted in needs.items()]
    found = plan(candidates, workers)
    state = {each.id: each for each in workers}
    jobs: dict[str, int] = {}
    devices: list[str] = []
    for each in found.assignments:
        wanted = needs[each.task_id]
        assert wanted.nodes <= len(each.worker_ids) <= wanted.nodes_max
        assert len(set(each.worker_ids)) == len(each.worker_ids)
        if wanted.nodes > 1:
            assert len({state[id_].release for id_ in each.worker_ids} - {""}) == 1
        for id_, gpus in ((each.worker_id, each.gpus), *each.members):
            jobs[id_] = jobs.get(id_, 0) + 1
            assert len(gpus) == wanted.gpu_count
            devices += gpus
    assert len(devices) == len(set(devices))
    assert all(count <= state[id_].free["job"] for id_, count in jobs.items())
    assert set(found.reserved.values()) <= set(found.waiting)


def test_as_many_resting_workers_are_called_back_as_a_gang_has_nodes() -> None:
    rules = Rules(idle_s=1, enable_queue=9, disable_queue=9, cooldown_s=0)
    members = [Member(node(id_), on_standby=id_ != "a", idle_s=99, unchanged_s=99) for id_ in "abc"]
    woken = decide(rules, members, [Waiting(gang(2), 1)]).activate
    assert len(woken) == 1
    awake = [replace(member, on_standby=False) for member in members]
    assert len(decide(rules, awake, [Waiting(gang(2), 1)]).standby) == 1
