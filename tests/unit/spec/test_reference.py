"""The generated reference is what the models say now."""

from __future__ import annotations

import json

from scripts import generate_reference
from tunefleet.spec import json_schema, parse_workflow


def test_the_pages_are_current() -> None:
    assert generate_reference.main(["--check"]) == 0, "run `python -m scripts.generate_reference`"


def test_the_example_of_the_page_is_a_good_document() -> None:
    example = generate_reference.INTRODUCTION.split("```yaml\n")[1].split("```")[0]
    assert parse_workflow(example).name == "my-first-adapter"


def test_the_schema_for_editors() -> None:
    path = generate_reference.FOLDER / "workflow.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == json_schema()


def test_every_block_has_one_section() -> None:
    titles = [line for line in generate_reference.workflow_page().splitlines() if line.startswith("## ")]
    assert len(titles) == len(set(titles))
    assert {"## `spec.lora`", "## `spec.training` of `lora_sft`", "## `metadata`"} < set(titles)
