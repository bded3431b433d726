"""On how many workers a training runs, and what does not go with several."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunefleet.errors import SpecError
from tunefleet.orchestrator.tasks import spec_columns
from tunefleet.spec import SftSpec, load_task_spec, parse_workflow
from tunefleet.spec.documents.submit_checks import new_faults

BEST = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}


def spec(nodes: Any, **blocks: Any) -> dict[str, Any]:
    given = {"hardware": {"gpu": {"count": 0}}, "nodes": nodes}
    return {
        "taskType": "sft",
        "model": {"source": {"identifier": "m"}},
        "data": {"prompts": ["a"]},
        "resources": given,
        **blocks,
    }


@pytest.mark.parametrize(
    ("nodes", "least", "most", "kept"),
    [(1, 1, 1, 1), (3, 3, 3, 3), ("3", 3, 3, 3), ("2:4", 2, 4, "2:4"), (" 2 : 2 ", 2, 2, 2)],
)
def test_nodes_are_a_number_or_the_least_and_the_most(nodes: Any, least: int, most: int, kept: Any) -> None:
    loaded = load_task_spec(spec(nodes))
    assert isinstance(loaded, SftSpec)
    need = spec_columns.requirement_of(loaded)
    assert (need.nodes, need.nodes_max, loaded.resources.nodes) == (least, most, kept)


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        (
            {"training": {"parallelism": "fsdp"}},
            "each node writes its shard of a checkpoint to its own disk, from which no other node",
        ),
        ({"training": BEST, "data": {"path": "x", "eval": {"split": "test"}}}, "the best"),
        (
            {"checkpoint": {"upload": False}},
            "checkpoint.upload: false leaves no checkpoint from which all nodes can resume",
        ),
        ({"checkpoint": {"asynchronous": True}}, "is only for single-process training"),
        ({"trainer": "mine:train"}, "starts its own processes, on one worker only"),
    ],
)
def test_what_needs_one_disk_is_refused_on_several_machines_with_a_way_out(blocks: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_task_spec(spec("1:2", **blocks))
    (fault,) = [each for each in caught.value.faults if each.path.endswith("resources.nodes")]
    assert why in fault.message
    assert fault.hint


def test_waiting_for_a_lost_node_is_refused_of_new_tasks_and_read_of_stored_ones() -> None:
    wanted = spec("1:2", on_lost="wait")
    assert load_task_spec(wanted).on_lost == "wait"
    document = {"apiVersion": "tunefleet/v1", "metadata": {"name": "a"}, "spec": wanted}
    nodes = parse_workflow(json.dumps(document)).tasks
    (fault,) = new_faults((node, node.spec) for node in nodes)
    assert (fault.path, fault.line) == ("spec.resources.nodes", 1)
    assert "cannot be combined with on_lost: wait: the other nodes stop when a worker is lost" in fault.message
    assert new_faults((node, load_task_spec(spec(1, on_lost="wait"))) for node in nodes) == []


def test_what_trains_nothing_runs_on_one_worker() -> None:
    echo = {"taskType": "echo", "data": {"type": "list", "items": ["a"]}, "resources": {"nodes": 2}}
    with pytest.raises(SpecError, match="echo tasks run on one worker"):
        load_task_spec(echo)
