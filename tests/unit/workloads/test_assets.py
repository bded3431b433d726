from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunefleet.errors import DataError, ModelError, NotFoundError
from tunefleet.spec import parse_workflow
from tunefleet.spec.base import BUILTIN_DATASETS, BUILTIN_MODELS
from tunefleet.workloads import assets

EXAMPLES = ("lora_sft", "sft", "echo")


def test_the_model_is_small_enough_to_ship() -> None:
    folder = assets.locate("builtin:gsm8k-llama-2m", "model")
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 5_000_000
    assert "{% generation %}" in (folder / "chat_template.jinja").read_text()
    # Whoever loads it without a word about types gets the arithmetic that losses are reported in.
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"


def test_the_dataset_has_its_licence_and_enough_rows() -> None:
    folder = assets.locate("builtin:gsm8k", "dataset")
    rows = {split: (folder / f"{split}.jsonl").read_text().splitlines() for split in ("train", "test")}
    assert len(rows["train"]) == 2000
    assert len(rows["test"]) >= 256
    assert set(json.loads(rows["train"][0])) == {"question", "answer"}
    assert (folder / "LICENSE").read_text().startswith("MIT License")
    assert "github.com/openai/grade-school-math" in (folder / "SOURCE.md").read_text()


@pytest.mark.parametrize(("kind", "error"), [("model", ModelError), ("dataset", DataError)])
def test_an_unknown_asset_is_refused_with_those_that_exist(kind: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"no built-in .*'builtin:nothing'.*Built in: builtin:"):
        assets.locate("builtin:nothing", kind)  # type: ignore[arg-type]


def test_a_document_may_name_what_ships_and_nothing_else() -> None:
    assert tuple(assets.names("model")) == BUILTIN_MODELS
    assert tuple(assets.names("dataset")) == BUILTIN_DATASETS


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_valid_and_lie_in_the_repository_too(name: str) -> None:
    path = assets.example(name)
    assert parse_workflow(path.read_text(), filename=path.name).tasks[0].spec.task_type == name
    in_repository = Path(__file__).parents[3] / "examples" / path.name
    assert in_repository.read_text() == path.read_text()


def test_an_unknown_example_is_refused() -> None:
    with pytest.raises(NotFoundError, match="lora_sft"):
        assets.example("nothing")
