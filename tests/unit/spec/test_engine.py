"""`spec.engine`: one word or a block, what goes with it, and what a wrong one is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spec.documents import SMALLEST
from tunefleet.errors import Fault, SpecError
from tunefleet.spec import dump_task_spec, load_task_spec, parse_workflow
from tunefleet.spec.options.engine import EngineSpec


def engine(text: str) -> EngineSpec:
    spec = parse_workflow(f"{SMALLEST}  engine: {text}\n").tasks[0].spec
    assert spec is not None
    assert spec.engine is not None
    assert load_task_spec(dump_task_spec(spec)) == spec, "what is stored is read again"
    return spec.engine


def faults(spec: dict[str, Any]) -> list[Fault]:
    with pytest.raises(SpecError) as caught:
        load_task_spec(spec)
    return list(caught.value.faults)


def test_one_word_names_the_system() -> None:
    for word in ("slurm", "ray"):
        assert (engine(word).type, engine(word).options) == (word, {})


def test_what_is_told_to_slurm_is_what_stands_there() -> None:
    assert engine("{type: slurm}").options == {}
    # A time as YAML might read it as a number of seconds: it stays the text that it is.
    assert engine("{type: slurm, time: 4:00:00, partition: gpu, exclusive: true}").options == {
        "time": "4:00:00", "partition": "gpu", "exclusive": "true",
    }  # fmt: skip
    for time in ('"30"', "30:00", "4:00:00", "2-12", "2-12:30", "2-12:30:00"):
        assert engine(f"{{type: slurm, time: {time}}}").options == {"time": time.strip('"')}


@pytest.mark.parametrize(
    ("text", "path", "message", "hint"),
    [
        ("pbs", "spec.engine.type", "must be one of slurm, ray, not 'pbs'", None),
        ("Slurm", "spec.engine.type", "must be one of slurm, ray, not 'Slurm'", "did you mean slurm?"),
        ("3", "spec.engine", "must be slurm, ray, or a mapping with one of them as its type", "set engine: slurm"),
        ("[slurm]", "spec.engine", "must be slurm, ray, or a mapping with one of them as its type", "set engine: "),
        ("{partition: gpu}", "spec.engine.type", "is required", "Cluster manager"),
        ("{type: slurm, qos: a b}", "spec.engine.qos", "must be a Slurm name", "a letter or digit"),
        ("{type: slurm, account: --x}", "spec.engine.account", "must be a Slurm name", "a letter"),
        (
            '{type: slurm, partition: "a\\nb"}',
            "spec.engine.partition",
            "must be a Slurm name",
            "a letter",
        ),
        (
            "{type: slurm, time: tomorrow}",
            "spec.engine.time",
            "must be a time in Slurm's format",
            'write minutes ("30")',
        ),
        ("{type: slurm, time: 30}", "spec.engine.time", "must be a string, not 30", "write it in quotes"),
        (
            "{type: slurm, gpus: 3}",
            "spec.engine.gpus",
            "is not a known key",
            "it belongs to spec.resources.hardware.gpu.count",
        ),
        ("{type: ray, time: 4:00:00}", "spec.engine.time", "is only for slurm", "remove it with type: ray"),
        ("{type: ray, exclusive: false}", "spec.engine.exclusive", "is only for slurm", "remove it with"),
    ],
)
def test_a_wrong_word_is_told_what_is_allowed(text: str, path: str, message: str, hint: str | None) -> None:
    with pytest.raises(SpecError) as caught:
        parse_workflow(f"{SMALLEST}  engine: {text}\n")
    (fault,) = caught.value.faults
    assert (fault.path, fault.message) == (path, message)
    assert fault.hint == hint if hint is None else (fault.hint or "").startswith(hint)


TRAINING = {"taskType": "lora_sft", "model": {"source": {"identifier": "m"}}, "data": {"path": "a"}, "engine": "slurm"}
ASKING = {"taskType": "inference", "model": {"source": {"identifier": "m"}}, "data": {"type": "list", "items": ["a"]}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"taskType": "echo", "engine": "slurm"}, "echo tasks run inside a worker and need no nodes"),
        (
            {"taskType": "api", "engine": "ray", "api": {"url": "http://a"}},
            "api tasks run inside a worker and need no nodes",
        ),
        (
            {**ASKING, "engine": "slurm", "resources": {"replicas": 2}},
            "shards of a task run on connected workers only",
        ),
        (
            {**ASKING, "engine": "ray", "parallel": {"enabled": True}},
            "shards of a task run on connected workers only",
        ),
        (
            {**TRAINING, "federation": {"workers": 2}},
            "the parts of a federation run on connected workers only",
        ),
        (
            {**TRAINING, "checkpoint": {"upload": False}},
            "a checkpoint that is not uploaded is lost when the nodes are released",
        ),
    ],
)
def test_what_does_not_go_with_nodes_of_an_engine(spec: dict[str, Any], message: str) -> None:
    found = [fault for fault in faults(spec) if fault.path == "spec.engine"]
    assert [fault.message for fault in found] == [message]
    assert found[0].hint
    (engine_alone := dict(spec)).pop("engine")
    load_task_spec(engine_alone)


def test_several_nodes_go_with_an_engine() -> None:
    spec = load_task_spec({**TRAINING, "resources": {"nodes": 2}, "checkpoint": {"upload": True}})
    assert spec.engine == EngineSpec(type="slurm")
