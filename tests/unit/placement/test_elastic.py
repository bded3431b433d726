"""Who rests and who is called back: properties that hold for every fleet, and the cases that people ask about."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tunefleet.placement import Device, Requirement, WorkerState, lacks
from tunefleet.placement.elastic import Changes, Member, Rules, Waiting, decide

RULES = Rules(idle_s=60.0, enable_queue=0, disable_queue=0, cooldown_s=60.0)
CPU = Requirement(kind="echo", slot_class="light")
GPU = Requirement(kind="sft", slot_class="job", gpu_count=1)
IDLE = "idle for 100 s, and the queue length is 0"
NOWHERE = Requirement(kind="rag", slot_class="job")


def worker(id_: str, *, gpus: int = 0, slots: int = 1) -> WorkerState:
    places = {"light": 8, "job": slots}
    devices = tuple(Device("A100", 40 << 30, f"{id_}-{number}") for number in range(gpus))
    return WorkerState(
        id=id_, present=True, executors={"echo": None, "sft": None}, slots=places, free=places, cpu=4,
        memory_bytes=8 << 30, gpus=devices,
    )  # fmt: skip


def member(id_: str, *, gpus: int = 0, slots: int = 1, on_standby: bool = False, **more: float | bool) -> Member:
    base = Member(worker(id_, gpus=gpus, slots=slots), on_standby=on_standby, idle_s=100.0, unchanged_s=100.0)
    return replace(base, **more)  # type: ignore[arg-type]


SECONDS = st.sampled_from([0.0, 59.0, 60.0, 1000.0])
FLEETS = st.lists(
    st.builds(
        lambda gpus, on_standby, idle_s, unchanged_s, needed: (gpus, on_standby, idle_s, unchanged_s, needed),
        st.integers(0, 2), st.booleans(), SECONDS, SECONDS, st.booleans(),
    ),
    max_size=6,
).map(
    lambda rows: [
        replace(
            member(f"w{number}", gpus=gpus, on_standby=on_standby, idle_s=idle_s, unchanged_s=unchanged_s),
            needed=needed,
        )
        for number, (gpus, on_standby, idle_s, unchanged_s, needed) in enumerate(rows)
    ]
)  # fmt: skip
QUEUES = st.lists(
    st.builds(Waiting, st.sampled_from([CPU, GPU, replace(GPU, gpu_count=2), NOWHERE]), st.integers(0, 9)),
    max_size=4,
    unique_by=lambda waiting: waiting.need.key,
)
ALL_RULES = st.builds(
    Rules, idle_s=st.just(60.0), enable_queue=st.integers(0, 6), disable_queue=st.integers(0, 6),
    cooldown_s=st.just(60.0), min_active=st.integers(0, 3), enable_many=st.booleans(),
)  # fmt: skip


@given(ALL_RULES, FLEETS, QUEUES, st.booleans())
def test_fault_30_whoever_waits_never_waits_for_a_worker_that_rests(
    rules: Rules, fleet: list[Member], queue: list[Waiting], may_idle: bool
) -> None:
    changes = decide(rules, fleet, queue, may_idle=may_idle)
    by_id = {each.state.id: each for each in fleet}
    before = {id_ for id_, each in by_id.items() if not each.on_standby}
    after = before - set(changes.standby) | set(changes.activate)
    assert set(changes.standby) <= before
    assert not set(changes.activate) & before
    assert not (changes.activate and changes.standby)
    for waiting in queue:
        able = {id_ for id_, each in by_id.items() if lacks(waiting.need, each.state) is None}
        if waiting.count and able:
            assert able & after
    assert all(id_ in after for id_, each in by_id.items() if each.needed)
    assert len(after) >= min(len(fleet), max(1, rules.min_active))
    for id_ in changes.standby:
        assert by_id[id_].idle_s >= rules.idle_s
        assert by_id[id_].unchanged_s >= rules.cooldown_s
    if changes.standby:
        assert may_idle
        # What nobody here can run keeps nobody awake.
        runnable = [w.count for w in queue if any(lacks(w.need, each.state) is None for each in fleet)]
        assert sum(runnable) <= rules.disable_queue or not before
    assert decide(rules, fleet, queue, may_idle=may_idle) == changes


def test_a_lone_gpu_task_calls_the_gpu_worker_back_however_high_the_threshold_and_fresh_its_rest() -> None:
    fleet = [member("cpu"), member("gpu", gpus=1, on_standby=True, unchanged_s=0.0)]
    rules = replace(RULES, enable_queue=5)
    assert decide(rules, fleet, [Waiting(GPU, 1)], may_idle=False) == Changes(
        activate={"gpu": "no active worker can run a pending task"}
    )
    assert decide(rules, fleet, [Waiting(CPU, 1)]) == Changes()


def test_an_idle_fleet_rests_but_for_the_largest() -> None:
    fleet = [member("a"), member("b", gpus=2), member("c", gpus=1)]
    assert decide(RULES, fleet, []) == Changes(standby=dict.fromkeys(("a", "c"), IDLE))


def test_one_that_has_worked_lately_or_was_called_back_lately_does_not_rest() -> None:
    fleet = [member("a", idle_s=59.0), member("b", unchanged_s=59.0), member("c", gpus=1)]
    assert list(decide(RULES, fleet, []).standby) == ["c"]


def test_a_growing_queue_calls_back_as_many_as_it_needs() -> None:
    fleet = [member("a"), *(member(f"r{number}", on_standby=True, slots=2) for number in range(4))]
    need = replace(GPU, gpu_count=0)
    assert decide(RULES, fleet, [Waiting(need, 3)]).activate == dict.fromkeys(("r0", "r1"), "the queue length is 3")
    assert decide(replace(RULES, enable_many=False), fleet, [Waiting(need, 3)]).activate.keys() == {"r0"}
    assert decide(replace(RULES, enable_queue=4), fleet, [Waiting(need, 3)]).activate == {}


def test_a_worker_that_was_sent_to_rest_a_moment_ago_comes_back_for_a_task_that_waits() -> None:
    fleet = [member("a"), member("r", on_standby=True, unchanged_s=0.0)]
    assert decide(RULES, fleet, [Waiting(CPU, 1)]).activate.keys() == {"r"}


def test_a_task_that_nobody_here_can_run_keeps_nobody_awake() -> None:
    assert decide(RULES, [member("a"), member("b", gpus=1)], [Waiting(NOWHERE, 50)]) == Changes(standby={"a": IDLE})


def test_when_the_last_active_one_is_lost_another_is_called_back() -> None:
    assert decide(RULES, [member("a", on_standby=True, unchanged_s=0.0)], []) == Changes(
        activate={"a": "fewer than 1 workers were active"}
    )
