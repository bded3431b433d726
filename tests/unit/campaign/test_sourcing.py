"""From datasets to rows: valid documents, one digest for everything that changes the result, and the columns that
trainings and evaluations read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.libraries import required
from tunefleet.campaign import data_documents
from tunefleet.campaign.data_documents import chunk_at
from tunefleet.spec import parse_workflow
from tunefleet.spec.documents.campaign_document import CampaignSpec

ROW = {"name": "org/rows", "field_instruction": "q", "field_input": "c", "field_output": "a"}


def spec(*datasets: dict[str, Any], **more: Any) -> CampaignSpec:
    return CampaignSpec.model_validate({"model_repo": "m", "datasets": list(datasets) or [ROW], **more})


def made(campaign: CampaignSpec) -> str:
    body, _ = data_documents.rows_document(campaign, {})
    return str(body["metadata"]["name"])


@pytest.mark.parametrize(
    "campaign",
    [
        spec(),
        spec({**ROW, "weight": 2}, {**ROW, "name": "org/other", "weight": 1, "max_rows": 10}),
        spec(
            {"path": "builtin:gsm8k", "field_instruction": "question", "field_output": "answer", "split": "train[:9]"}
        ),
        spec({"name": "org/chats", "chat_role_field": "from", "chat_content_field": "value"}, task_type="Chat"),
        spec(dedupe={"rows": "none"}),
        spec(dedupe={"rows": "near", "threshold": 0.7}),
    ],
)
def test_the_documents_are_valid(campaign: CampaignSpec) -> None:
    body, _ = data_documents.rows_document(campaign, {})
    names = [task.name for task in parse_workflow(json.dumps(body)).tasks]
    assert names == [*(f"source-{number}" for number in range(len(campaign.datasets))), data_documents.ROWS]
    chunk = chunk_at(3, rows=100, most=30, seed=1)
    parse_workflow(json.dumps(data_documents.chunk_document("a-0-chunk", "art-1", chunk)))


@pytest.mark.parametrize(
    "other",
    [
        spec(random_seed=1),
        spec(final_test_size=0.1),
        spec(dedupe={"rows": "exact"}),
        spec(dedupe={"threshold": 0.9}),
        spec({**ROW, "max_rows": 5}),
        spec({**ROW, "revision": "v2"}),
        spec({**ROW, "field_output": "b"}),
        spec({**ROW, "split": "test"}),
        spec(ROW, ROW),
        spec({"name": "org/rows"}, task_type="Chat"),
        spec({"path": "rows.jsonl", "field_instruction": "q", "field_output": "a"}),
        spec(inputs={"datasets.0.path": "digest"}, random_seed=42).model_copy(update={"random_seed": 7}),
    ],
)
def test_whatever_changes_the_rows_changes_their_name(other: CampaignSpec) -> None:
    assert made(other) != made(spec())


def test_another_file_under_the_same_name_is_another_dataset() -> None:
    local = {"path": "rows.jsonl", "field_instruction": "q", "field_output": "a"}
    first, second = spec(local, inputs={"datasets.0.path": "1" * 64}), spec(local, inputs={"datasets.0.path": "2" * 64})
    assert made(first) != made(second)
    assert data_documents.rows_document(first, {})[1] == {"source-0": {"sources.0.path": "1" * 64}}


@pytest.mark.parametrize("other", [spec(samples_per_training=5), spec(hours_to_complete=1), spec(enabled=True)])
def test_what_changes_no_row_does_not(other: CampaignSpec) -> None:
    assert made(other) == made(spec())


@pytest.mark.torch
def test_rows_of_instructions(tmp_path: Path) -> None:
    rows = [
        {"q": "Add", "c": "1 2", "a": "3", "more": 1},
        {"q": "Hello", "c": None, "a": "Hi", "more": 2},
        {"q": "", "c": "x", "a": "no instruction", "more": 3},
    ]
    assert standardised(spec(), rows, tmp_path) == [
        {"prompt": "Add\n\n1 2", "instruction": "Add", "input": "1 2", "output": "3"},
        {"prompt": "Hello", "instruction": "Hello", "input": None, "output": "Hi"},
    ]


@pytest.mark.torch
def test_an_input_that_is_not_named_is_empty(tmp_path: Path) -> None:
    campaign = spec({"name": "org/rows", "field_instruction": "q", "field_output": "a"})
    assert standardised(campaign, [{"q": "Add", "a": "3"}], tmp_path) == [
        {"prompt": "Add", "instruction": "Add", "input": "", "output": "3"}
    ]


@pytest.mark.torch
def test_chats_of_another_kind(tmp_path: Path) -> None:
    named = {"chat_column": "turns", "chat_role_field": "who", "chat_content_field": "says"}
    whom = {"chat_user_reference": "me", "chat_assistant_reference": "it"}
    rows = [{"turns": [{"who": "me", "says": "Hello"}, {"who": "it", "says": "Hi"}], "more": 1}]
    campaign = spec({"name": "org/chats", **named, **whom}, task_type="Chat")
    assert standardised(campaign, rows, tmp_path) == [
        {"conversations": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]}
    ]


def standardised(campaign: CampaignSpec, rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Play the first task of the document on rows, in the place of the dataset."""
    required("datasets")
    from tests.unit.workloads.test_prepare_data import Made

    body, _ = data_documents.rows_document(campaign, {})
    first = body["spec"]["graph"]["nodes"][0]["spec"]
    return Made(folder / "rows", rows, steps=first["steps"], on_bad="drop").train
