"""Which values may be files of the one who submits."""

from __future__ import annotations

from tests.unit.spec.documents import ECHO, EVERYTHING, training
from tunefleet.spec import LocalPath, local_paths, parse_workflow


def paths(text: str) -> list[LocalPath]:
    return local_paths(parse_workflow(text).tasks[0].spec)


def test_all_places() -> None:
    assert paths(EVERYTHING) == [
        LocalPath("model.source.identifier", "some/model", "model", required=False),
        LocalPath("data.dataset_name", "openai/gsm8k", "dataset", required=False),
        LocalPath("checkpoint.load.path", "./adapter.tar.gz", "model", required=True),
    ]
    text = training(data="{jsonl: {path: a.jsonl}, eval: {path: b.jsonl}}")
    assert [(path.pointer, path.value, path.required) for path in paths(text)][1:] == [
        ("data.jsonl.path", "a.jsonl", True),
        ("data.eval.path", "b.jsonl", True),
    ]


def test_what_does_not_travel() -> None:
    model = "{source: {identifier: 'builtin:gsm8k-llama-2m'}}"
    for data in ("{path: 'builtin:gsm8k'}", "{artifact: x}", "{prompts: [a]}", "{jsonl: {worker_path: /x}}"):
        assert paths(training(model=model, data=data)) == []
    assert paths(ECHO) == []


def test_what_looks_local() -> None:
    for value in ("./a", "../a", "/a", "~/a", "~", ".", ".."):
        assert LocalPath("x", value, "model", required=False).looks_local
    for value in ("a", "a/b", ".a", "gpt2"):
        assert not LocalPath("x", value, "model", required=False).looks_local


def test_weights_at_an_absolute_path_may_lie_on_a_mount_of_the_workers_alone() -> None:
    for load in ('{path: "/mnt/fleet/w/final_lora"}', '{uri: "/mnt/fleet/w/final_lora"}'):
        text = f"""apiVersion: tunefleet/v1
spec:
  taskType: lora_sft
  model: {{source: {{identifier: m}}}}
  data: {{prompts: [a]}}
  checkpoint: {{load: {load}}}
"""
        (named,) = (each for each in paths(text) if each.pointer.startswith("checkpoint"))
        assert (named.required, named.elsewhere) == (False, True)
