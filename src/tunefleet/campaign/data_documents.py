"""The chunk of data of a cycle, and the workflow files that normalize the rows and cut the chunk.

Rows of instructions have the columns `prompt` (instruction and input), `instruction`, `input` and `output`; chats have
`conversations`, a list of `role` and `content`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.campaign import task_client
from tunefleet.spec.documents.campaign_data import CampaignDatasetSpec
from tunefleet.spec.documents.campaign_document import CampaignSpec

# The task that combines all sources.
ROWS: Final = "rows"
TRAIN: Final = "train.jsonl"
TEST: Final = "test.jsonl"
CHAT: Final = "conversations"
PROMPT: Final = "prompt"
INSTRUCTION: Final = ("instruction", "input", "output")
# Part of the cache key: raise it when the processing changes, so that rows are prepared again.
_VERSION: Final = 1


def columns(spec: CampaignSpec) -> dict[str, str]:
    """Return the `data` keys of a training or evaluation task that map a row to text."""
    if spec.chats:
        return {"messages_field": CHAT}
    return {"prompt_column": PROMPT, "response_column": "output"}


def rows_document(spec: CampaignSpec, fetched: Mapping[int, str]) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Return the workflow file that prepares training and eval rows, and its uploaded inputs.

    Its name contains a digest of everything that affects the result, so that it runs once.

    Args:
        fetched: Index of a dataset in an S3 store → digest of the downloaded file.
    """
    inputs: dict[str, dict[str, str]] = {}
    nodes: dict[str, dict[str, Any]] = {}
    for number, dataset in enumerate(spec.datasets):
        name = f"source-{number}"
        nodes[name] = _normalize(spec, dataset)
        uploaded = fetched.get(number) or spec.inputs.get(f"datasets.{number}.path")
        if uploaded is not None:
            inputs[name] = {"sources.0.path": uploaded}
    nodes[ROWS] = {
        "taskType": "data",
        "sources": [_source_result(number, each) for number, each in enumerate(spec.datasets)],
        "steps": _combine_steps(spec),
        "on_bad": "drop",
    }
    what = [[each.model_dump(mode="json") for each in spec.datasets], nodes[ROWS]["steps"], spec.task_type]
    digest = task_client.digest_of(_VERSION, what, spec.random_seed, inputs)
    return task_client.graph(f"campaign-rows-{digest[:24]}", nodes), inputs


def _source_result(number: int, dataset: CampaignDatasetSpec) -> dict[str, Any]:
    made: dict[str, Any] = {"jsonl": {"url": f"${{source-{number}.result.jsonl_export.url}}"}, "name": dataset.place}
    return made if dataset.weight is None else {**made, "weight": dataset.weight}


def _normalize(spec: CampaignSpec, dataset: CampaignDatasetSpec) -> dict[str, Any]:
    source: dict[str, Any] = {"name": dataset.place, "split": dataset.split}
    if dataset.name is not None:
        source["dataset_name"] = dataset.name
        source |= {key: value for key in ("config_name", "revision") if (value := getattr(dataset, key)) is not None}
    else:
        # The downloaded file replaces this path; the file name's extension gives the format.
        source["path"] = dataset.path or dataset.place.rpartition("/")[2]
    steps: list[dict[str, Any]] = []
    if dataset.max_rows is not None:
        steps.append({"sample": {"count": dataset.max_rows, "seed": spec.random_seed}})
    steps += _chat_steps(dataset) if spec.chats else _instruction_steps(dataset)
    return {"taskType": "data", "sources": [source], "steps": steps, "on_bad": "drop"}


def _instruction_steps(dataset: CampaignDatasetSpec) -> list[dict[str, Any]]:
    fields = zip(INSTRUCTION, (dataset.field_instruction, dataset.field_input, dataset.field_output), strict=True)
    named = {column: field for column, field in fields if field is not None}
    renamed: dict[str, Any] = {"rename": {field: column for column, field in named.items()}}
    if dataset.field_input is None:
        renamed["constant"] = {"input": ""}
    return [
        {"map": {"keep": sorted(set(named.values()))}},
        {"map": renamed},
        {"filter": {"all": [{"column": name, "not_empty": True} for name in ("instruction", "output")]}},
        {"convert": {"to": "prompt_response", "from": "alpaca", "keep": list(INSTRUCTION)}},
        {"map": {"keep": [PROMPT, *INSTRUCTION]}},
    ]


def _chat_steps(dataset: CampaignDatasetSpec) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"map": {"keep": [dataset.chat_column]}}]
    if dataset.chat_column != CHAT:
        steps.append({"map": {"rename": {dataset.chat_column: CHAT}}})
    chat = {
        "role": dataset.chat_role_field,
        "content": dataset.chat_content_field,
        "roles": {dataset.chat_user_reference: "user", dataset.chat_assistant_reference: "assistant"},
    }
    return [
        *steps,
        {"map": {"chat": {CHAT: chat}}},
        {"convert": {"to": "messages", "from": "messages"}},
        {"map": {"rename": {"messages": CHAT}}},
    ]


def _combine_steps(spec: CampaignSpec) -> list[dict[str, Any]]:
    seed = spec.random_seed
    steps: list[dict[str, Any]] = []
    if any(each.weight is not None for each in spec.datasets):
        steps.append({"mix": {"seed": seed}})
    # Before the split, so that near duplicates cannot be in both the training and the eval set.
    if spec.dedupe.rows != "none":
        near = spec.dedupe.model_dump(include={"threshold", "ngram", "permutations"})
        steps.append({"dedupe": {"normalise": True, **({"near": near} if spec.dedupe.rows == "near" else {})}})
    steps += [{"shuffle": {"seed": seed}}, {"split": {"test": spec.final_test_size, "seed": seed}}]
    return steps


def chunk_document(name: str, train_artifact: str, chunk: Chunk) -> dict[str, Any]:
    """Return the workflow file that cuts a chunk."""
    body = {
        "taskType": "data",
        "sources": [{"artifact": train_artifact}],
        "steps": [{"shuffle": {"seed": chunk.seed}}, {"slice": {"start": chunk.start, "stop": chunk.stop}}],
    }
    return task_client.document(name, body)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of one cycle."""

    epoch: int
    index: int
    count: int
    start: int
    stop: int
    seed: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def chunk_at(position: int, *, rows: int, most: int, seed: int) -> Chunk:
    """Return the chunk of a position.

    An epoch is split into the fewest chunks of at most `most` rows; their sizes differ by at most one. Every row is in
    exactly one chunk of an epoch, and the order of an epoch depends only on the seed and its number.

    Raises:
        ValueError: If there are no rows.
    """
    if rows < 1:
        raise ValueError("there are no rows to train on")
    count = math.ceil(rows / most)
    epoch, index = divmod(position, count)
    start, stop = rows * index // count, rows * (index + 1) // count
    return Chunk(epoch, index, count, start, stop, epoch_seed(seed, epoch))


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the shuffle seed of an epoch; the first epoch uses the campaign's own seed."""
    if epoch == 0:
        return seed
    digest = hashlib.blake2b(f"epoch:{seed}:{epoch}".encode(), digest_size=8).digest()
    # 63 bits, so that the seed fits into a signed 64-bit integer.
    return int.from_bytes(digest, "big") >> 1
