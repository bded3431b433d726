"""Fair turns between projects: nobody starves, equal weights get equal parts, who is alone gets all in queue order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.placement.test_placement import need
from tunefleet.placement import CPU_ONLY_SHARE, QUANTUM_S, Candidate, DecayedUsage, Share, fair_order, units

NEED = need(kind="echo", slot_class="light")


def lane(project: str, count: int, start: float = 0.0, **more: Any) -> list[Candidate]:
    return [Candidate(f"{project}-{number}", NEED, start + number, **more) for number in range(count)]


def turns(lanes: dict[str, list[Candidate]], shares: dict[str, Share], slots: int) -> list[str]:
    """Return what is placed of some lanes on so many slots."""
    placed: list[str] = []

    def candidates() -> Iterator[Candidate]:
        yield from fair_order(
            {name: iter(each) for name, each in lanes.items()}, shares, lambda each: each.task_id in placed
        )

    for candidate in candidates():
        if len(placed) < slots:
            placed.append(candidate.task_id)
    return placed


@dataclass
class Simulation:
    """Projects whose queues never end, on slots whose tasks all last the same."""

    weights: dict[str, float]
    slots: int
    half_life_s: float = 1e9
    done: dict[str, int] = field(default_factory=dict)

    def run(self, rounds: int, busy: dict[str, range] | None = None) -> None:
        """Fill all slots once a round; `busy` says in which rounds a project has work."""
        book = DecayedUsage(self.half_life_s)
        for number in range(rounds):
            now = 100.0 * number
            here = [name for name in self.weights if busy is None or number in busy.get(name, range(rounds))]
            shares = {name: Share(self.weights[name], book.used_s(name, now)) for name in here}
            got = turns({name: lane(name, self.slots) for name in here}, shares, self.slots)
            assert len(got) == (self.slots if here else 0), "a slot stayed free although somebody waited"
            for task_id in got:
                name = task_id.rpartition("-")[0]
                self.done[name] = self.done.get(name, 0) + 1
                book.add(name, QUANTUM_S * CPU_ONLY_SHARE, now + 100.0)


@given(st.lists(st.floats(0, 100, allow_nan=False), max_size=30), st.lists(st.floats(0, 100), max_size=30))
def test_one_project_is_served_in_the_order_of_its_queue(first: list[float], second: list[float]) -> None:
    queues = [
        [Candidate(f"{number}-{place}", NEED, rank) for place, rank in enumerate(sorted(ranks))]
        for number, ranks in enumerate((first, second))
    ]
    wanted = [each.task_id for each in merge(*queues, key=lambda each: each.rank)]
    shares = {"alone": Share(weight=3.0, used_s=77.0)}
    alone = fair_order({"alone": merge(*queues, key=lambda each: each.rank)}, shares, lambda _: True)
    assert [each.task_id for each in alone] == wanted


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2), st.integers(1, 7))
def test_shares_come_to_be_as_the_weights(weights: dict[str, float], slots: int) -> None:
    simulation = Simulation(weights, slots)
    simulation.run(100)
    total = sum(weights.values())
    for name, weight in weights.items():
        # Off by at most what is placed between two looks.
        assert simulation.done.get(name, 0) == pytest.approx(100 * slots * weight / total, abs=slots + len(weights))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.floats(0.01, 100))
def test_no_project_starves(count: int, slots: int, light: float) -> None:
    simulation = Simulation({"light": light, **{f"p{number}": 100.0 for number in range(count)}}, slots)
    rounds = int(2 * (count * 100 / light + 1)) + 10
    simulation.run(min(rounds, 400))
    assert simulation.done.get("light", 0) >= (1 if rounds <= 400 else 0)
    assert all(simulation.done[f"p{number}"] for number in range(count))


def test_the_part_of_who_has_nothing_to_do_goes_to_the_others() -> None:
    simulation = Simulation({"a": 1.0, "b": 1.0, "c": 2.0}, 4, half_life_s=1000.0)
    simulation.run(100, {"b": range(50, 100), "c": range(0)})
    assert sum(simulation.done.values()) == 400
    assert "c" not in simulation.done
    # For half of the time it was alone; then `b` catches up, but only for as long as the past is remembered.
    assert 240 <= simulation.done["a"] <= 300


def test_one_pass_does_not_give_all_to_one() -> None:
    got = turns({"a": lane("a", 8), "b": lane("b", 8, 100.0)}, {"a": Share(), "b": Share()}, 6)
    assert sorted(got) == ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]


def test_who_has_used_less_for_its_weight_comes_first() -> None:
    shares = {"a": Share(weight=2.0, used_s=300.0), "b": Share(weight=1.0, used_s=200.0)}
    assert turns({"a": lane("a", 1), "b": lane("b", 1)}, shares, 2) == ["a-0", "b-0"]


def test_what_is_not_placed_counts_for_nothing() -> None:
    shares = {"a": Share(), "b": Share()}
    assert turns({"a": lane("a", 3), "b": lane("b", 3)}, shares, 0) == []
    assert (shares["a"].used_s, shares["b"].used_s) == (0.0, 0.0)


def test_a_quota_ends_a_project_and_not_the_others() -> None:
    shares = {"a": Share(remaining=2), "b": Share(), "c": Share(remaining=0)}
    got = turns({name: lane(name, 5) for name in shares}, shares, 10)
    assert [sum(each.startswith(name) for each in got) for name in "abc"] == [2, 5, 0]


def test_use_counts_half_after_its_half_life_in_any_order() -> None:
    early, late = DecayedUsage(100.0), DecayedUsage(100.0)
    for book, order in ((early, (0.0, 100.0)), (late, (100.0, 0.0))):
        for at in order:
            book.add("a", 40.0, at)
    assert early.used_s("a", 200.0) == pytest.approx(30.0)
    assert late.used_s("a", 200.0) == pytest.approx(30.0)
    assert early.used_s("b", 200.0) == 0.0


def test_gpus_count_each_and_a_task_without_one_a_little() -> None:
    assert units(need(gpu_count=4)) == 4.0
    assert units(need(kind="echo", slot_class="light")) == CPU_ONLY_SHARE
