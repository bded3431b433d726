"""Nobody waits for ever: wide tasks get their devices although narrow ones keep coming; a simulation shows it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.placement.test_placement import A100, RTX, need, worker
from tunefleet.placement import Candidate, Policy, Requirement, WorkerState, devices, plan


@dataclass
class Fleet:
    """Workers whose tasks end, and whose queue is placed once a tick."""

    workers: dict[str, WorkerState]
    queue: list[Candidate] = field(default_factory=list)
    running: list[tuple[int, str, Requirement, tuple[int, ...]]] = field(default_factory=list)
    tick: int = 0

    def place(self, lasts: int) -> list[str]:
        """End what has run its time, place what can be placed, and return the tasks that were."""
        for ended in [each for each in self.running if each[0] <= self.tick]:
            self._change(ended[1], ended[2], ended[3], -1)
        self.running = [each for each in self.running if each[0] > self.tick]
        found = plan(self.queue, list(self.workers.values()), Policy()).assignments
        by_id = {each.task_id: each for each in self.queue}
        for each in found:
            wanted, state = by_id[each.task_id].requirement, self.workers[each.worker_id]
            places = devices.choose(wanted, state) if wanted.gpu_count else ()
            assert not set(places) & state.taken
            self._change(each.worker_id, wanted, places, 1)
            self.running.append((self.tick + lasts, each.worker_id, wanted, places))
        placed = [each.task_id for each in found]
        self.queue = [each for each in self.queue if each.task_id not in placed]
        self.tick += 1
        return placed

    def _change(self, id_: str, wanted: Requirement, places: tuple[int, ...], by: int) -> None:
        state = self.workers[id_]
        taken = state.taken | set(places) if by > 0 else state.taken - set(places)
        free = {**state.free, wanted.slot_class: state.free[wanted.slot_class] - by}
        assert free[wanted.slot_class] >= 0
        self.workers[id_] = replace(
            state, taken=frozenset(taken), free=free,
            memory_taken=state.memory_taken + by * wanted.memory_bytes, cpu_taken=state.cpu_taken + by * wanted.cpu,
        )  # fmt: skip
        assert self.workers[id_].memory_taken <= state.memory_bytes
        assert self.workers[id_].cpu_taken <= state.cpu


def box(id_: str, gpus: tuple[Any, ...], slots: int = 8) -> WorkerState:
    return worker(id_, gpus=gpus, slots={"job": slots, "light": 8}, free={"job": slots, "light": 8})


WIDE = st.sampled_from(
    [
        need(gpu_count=4),
        need(gpu_count=2, gpu_type="a100"),
        need(gpu_count=1, gpu_all=True),
        need(memory_bytes=32 << 30),
        need(cpu=8),
        need(gpu_count=2, memory_bytes=24 << 30, cpu=6),
    ]
)
NARROW = st.sampled_from(
    [need(gpu_count=1), need(gpu_count=1, gpu_optional=True), need(memory_bytes=8 << 30), need(cpu=2), need()]
)


@settings(max_examples=60)
@given(
    wide=st.lists(WIDE, min_size=1, max_size=4),
    narrow=st.lists(NARROW, min_size=1, max_size=5),
    lasts=st.lists(st.integers(1, 5), min_size=1, max_size=7),
    boxes=st.integers(1, 3),
)
def test_every_task_that_some_worker_could_run_is_placed_while_narrow_ones_keep_coming(
    wide: list[Requirement], narrow: list[Requirement], lasts: list[int], boxes: int
) -> None:
    fleet = Fleet({f"w{n}": box(f"w{n}", (A100, A100, RTX, RTX)) for n in range(boxes)})
    for tick in range(6):  # full of narrow ones, which end one after the other
        fleet.queue += [Candidate(f"n{tick}-{n}", narrow[n % len(narrow)], tick + n / 100) for n in range(6)]
        fleet.place(lasts[tick % len(lasts)])
    waiting = {f"wide{n}" for n in range(len(wide))}
    fleet.queue += [Candidate(f"wide{n}", each, 6.0 + n / 10) for n, each in enumerate(wide)]
    before = len(fleet.queue)
    for tick in range(7, 400):
        fleet.queue += [Candidate(f"n{tick}-{n}", narrow[n % len(narrow)], tick + n / 100) for n in range(6)]
        waiting -= set(fleet.place(lasts[tick % len(lasts)]))
        if not waiting:
            break
    # Whoever came before goes first; then each wide task waits at most until the tasks before it have ended.
    assert not waiting, f"{waiting} waited for {fleet.tick} ticks behind {before}"


def test_a_wide_task_gathers_devices_and_leaves_the_rest_to_others() -> None:
    four = replace(box("w", (RTX, RTX, RTX, RTX)), taken=frozenset({0, 1}), free={"job": 6, "light": 8})
    wide = Candidate("wide", need(gpu_count=3), 0.0)
    later = [Candidate(f"n{n}", need(gpu_count=1), 1.0 + n) for n in range(3)]
    found = plan([wide, *later], [four])
    # Two are free and one that is in use is waited for: the fourth, in use too, is nobody's.
    assert found.assignments == ()
    assert found.reserved == {"w": "wide"}
    found = plan([wide, *later], [replace(four, taken=frozenset({0}))])
    assert [each.task_id for each in found.assignments] == ["wide"]
    narrow_first = [replace(wide, rank=9.0), *later]
    assert [each.task_id for each in plan(narrow_first, [four]).assignments] == ["n0", "n1"]


def test_a_worker_is_kept_where_the_least_is_missing_and_others_stay_open() -> None:
    near = replace(box("near", (RTX,) * 4), taken=frozenset({0, 1}))
    far = replace(box("far", (RTX,) * 4), taken=frozenset({0, 1, 2}))
    found = plan([Candidate("wide", need(gpu_count=3), 0.0), Candidate("n", need(gpu_count=1), 1.0)], [far, near])
    assert found.reserved == {"near": "wide"}
    assert [(each.task_id, each.worker_id) for each in found.assignments] == [("n", "far")]


def test_nothing_is_kept_for_a_task_that_only_others_stand_in_the_way_of() -> None:
    used = box("w", (replace(RTX, used_by="a game"), RTX))
    found = plan([Candidate("wide", need(gpu_count=2), 0.0), Candidate("n", need(gpu_count=1), 1.0)], [used])
    assert found.reserved == {}
    assert [each.task_id for each in found.assignments] == ["n"]


def test_fault_12_tasks_that_nobody_can_run_delay_nobody() -> None:
    stuck = [Candidate(f"s{n}", need(gpu_count=4 + n, gpu_type="h100"), float(n)) for n in range(20)]
    found = plan([*stuck, Candidate("t", need(gpu_count=1), 99.0)], [box("w", (RTX,))])
    assert [each.task_id for each in found.assignments] == ["t"]
    assert len(found.waiting) == 20
    assert found.reserved == {}
