"""Every example is a document that the server would take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefleet.spec import parse_workflow

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.name)
def test_an_example_validates(path: Path) -> None:
    workflow = parse_workflow(path.read_text(encoding="utf-8"), filename=path.name)
    assert workflow.tasks


def test_the_demo_has_its_example() -> None:
    assert (EXAMPLES / "lora_sft.yaml").is_file()
