"""What `--set` makes of a document before it is sent."""

from __future__ import annotations

import pytest

from tunefleet.client.submission import override
from tunefleet.errors import SpecError

HEAD = "apiVersion: tunefleet/v1\nmetadata: {name: w}\nspec:\n"
STAGES = """\
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {prompts: [a]}
  stages:
    - {name: one, spec: {taskType: sft}}
    - {name: two, spec: {taskType: sft, checkpoint: {load: {type: http, url: "${one.final_model_archive_url}"}}}}
"""


@pytest.mark.parametrize(
    ("spec", "changes", "lines", "says"),
    [
        ("  taskType: echo\n", {"data": {"items": ["a"]}}, None, None),
        (STAGES, {"output.destination": {"type": "http"}}, None, None),
        (STAGES, {"priority": 3}, [8], "one creates no archive"),
        ("  taskType: echo\n  priorty: 1\n", {"data": {"items": ["a"]}}, [5], "priorty"),
        ("  taskType: echo\n", {"priority": 1000}, [0], "with these changes"),
    ],
)
def test_changes_may_complete_a_document_and_what_stays_wrong_has_its_line(
    spec: str, changes: dict[str, object], lines: list[int] | None, says: str | None
) -> None:
    if says is None:
        changed, workflow = override(HEAD + spec, changes)
        assert changed != HEAD + spec
        assert workflow.tasks
        return
    with pytest.raises(SpecError) as caught:
        override(HEAD + spec, changes, filename="w.yaml")
    assert [fault.line for fault in caught.value.faults] == lines
    assert says in str(caught.value)
