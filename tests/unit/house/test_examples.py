"""Every example is a document that the server would take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tunefleet.spec import SplittableTaskSpec, parse_workflow
from tunefleet.spec.documents import gallery
from tunefleet.spec.tasks.task_types import TASK_KINDS

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


# Those of a package are read where that package is installed; files of campaigns are no workflows.
OTHERS = {"campaign", "executors"}
DOCUMENTS = sorted(path for path in EXAMPLES.rglob("*.yaml") if not OTHERS & set(path.relative_to(EXAMPLES).parts))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_an_example_validates(path: Path) -> None:
    workflow = parse_workflow(path.read_text(encoding="utf-8"), filename=path.name)
    assert workflow.tasks


def test_the_gallery_has_every_example_that_needs_no_file_beside_it() -> None:
    with_files = {"command", "trainer"}  # a folder with a script, and a package
    found = {example.name: example for example in gallery.examples()}
    files = {path.stem: path for path in [*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("workflows/*.yaml")]}
    assert set(found) == set(files) - with_files
    for name, example in found.items():
        assert example.document == files[name].read_text(encoding="utf-8")
        assert len(example.description) > 20
        assert example.kinds
    assert gallery.examples()[0].name == "lora_sft"
    assert found["evaluate"].kinds[:2] == ("lora_sft", "evaluate")


def test_the_demo_has_its_example() -> None:
    assert (EXAMPLES / "lora_sft.yaml").is_file()


def test_the_kinds_that_the_spread_example_names_are_those_that_can_be_spread() -> None:
    text = (EXAMPLES / "workflows/fan_out.yaml").read_text(encoding="utf-8")
    sentence = text[text.index("Tasks of the kinds") : text.index("can be split")]
    spreadable = {kind for kind, spec in TASK_KINDS.items() if issubclass(spec, SplittableTaskSpec)}
    assert set(re.findall(r"`(\w+)`", sentence)) == spreadable
