"""Rows and weights that may lie in several places: the first that is there is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import ModelError
from tunefleet.spec import TrainingData, TrainingTaskSpec, load_task_spec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global locate_base, open_portions
    pytest.importorskip("torch")

    from tunefleet.workloads.data.sources import open_portions
    from tunefleet.workloads.training.model.assembly import locate_base


pytestmark = pytest.mark.torch


def texts(jsonl: dict[str, Any], inputs: dict[str, str], workspace: Path) -> list[str]:
    data = TrainingData.model_validate({"jsonl": {"text_field": "text", **jsonl}})
    return [row["text"] for row in open_portions(data, inputs, workspace, seed=0).train.rows]


def test_rows_that_may_lie_in_several_places(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    fetched, sent, here = (str(jsonl([{"text": name}], f"{name}.jsonl")) for name in ("fetched", "sent", "here"))
    places = {"url": "https://x/rows.jsonl", "path": "./rows.jsonl", "worker_path": here}
    inputs = {"data.jsonl.url": fetched, "data.jsonl.path": sent}
    assert texts(places, inputs, tmp_path) == ["fetched"]
    assert texts(places, {"data.jsonl.path": sent}, tmp_path) == ["sent"]
    assert texts(places, {"data.jsonl.worker_path": here}, tmp_path) == ["here"], "and nothing has travelled"


def start(inputs: dict[str, str], workspace: Path, **blocks: Any) -> str:
    spec = load_task_spec(
        {"taskType": "sft", "model": {"source": {"identifier": "m"}}, "data": {"prompts": ["a"]}, **blocks}
    )
    assert isinstance(spec, TrainingTaskSpec)
    (workspace / "config.json").write_text("{}")
    base = locate_base(spec, {"model.source.identifier": str(workspace), **inputs}, workspace)
    return base.source.path


def test_weights_that_may_lie_in_several_places(tmp_path: Path) -> None:
    sent, here, fetched = (tmp_path / name for name in ("sent", "here", "fetched"))
    for folder in (sent, here, fetched):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    load = {"load": {"type": "http", "path": str(here), "taskId": "task-1", "url": "https://x/a.tar.gz"}}
    both = {"checkpoint.load": str(fetched)}
    assert start({"checkpoint.load.path": str(sent), **both}, tmp_path, checkpoint=load) == str(sent)
    assert start(both, tmp_path, checkpoint=load) == str(fetched), "whether a folder may be used was asked before"
    assert start({}, tmp_path, checkpoint=load) == str(here)
    with pytest.raises(ModelError, match="task-1"):
        start({}, tmp_path, checkpoint={"load": {"taskId": "task-1"}})


def test_weights_to_start_from_are_named_in_the_training_too(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    inputs = {"training.resume_from_path": str(tmp_path / "a")}
    assert start(inputs, tmp_path, training={"resume_from_path": "./a"}) == str(tmp_path / "a")
