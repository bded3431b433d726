"""The JSON Schema agrees with the parser, as far as a schema can."""

from __future__ import annotations

import re

import jsonschema_rs
import pytest
import yaml

from tests.unit.spec import field_trees
from tests.unit.spec.documents import ECHO, EVERYTHING, SMALLEST, training
from tunefleet.spec import json_schema
from tunefleet.spec.base import known_keys
from tunefleet.spec.descriptions import descriptions
from tunefleet.spec.documents.fault_messages import walk_blocks
from tunefleet.spec.documents.workflow import Document
from tunefleet.spec.tasks.task_types import TASK_KINDS


@pytest.fixture(scope="module")
def validator() -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(json_schema())


@pytest.mark.parametrize("text", [SMALLEST, ECHO, training(), EVERYTHING])
def test_good_documents_fit(validator: jsonschema_rs.Draft202012Validator, text: str) -> None:
    # An editor reads YAML 1.2, where 5e-7 is a number. Other spellings (cores in quotes, bf16, a list of one without
    # brackets) are for the parser only; the schema completes the plain ones.
    plain = re.sub(r'"8"', "8", text.replace("5e-7", "5.0e-7").replace("report_to: tensorboard", "report_to: [wandb]"))
    plain = plain.replace("dtype: bf16", "dtype: bfloat16")
    document = yaml.safe_load(plain)
    if True in document["spec"].get("retry", {}):
        document["spec"]["retry"]["on"] = document["spec"]["retry"].pop(True)
    validator.validate(document)


@pytest.mark.parametrize(
    "text",
    [
        SMALLEST.replace("taskType", "task_type"),
        SMALLEST.replace("lora_sft", "ppo"),
        SMALLEST.replace("tunefleet/v1", "other/v1"),
        training(training="{batch_size: 0}"),
        training(training="{batch: 1}"),
        training(model="{}"),
    ],
)
def test_bad_documents_do_not_fit(validator: jsonschema_rs.Draft202012Validator, text: str) -> None:
    assert not validator.is_valid(yaml.safe_load(text))


def test_every_key_is_described() -> None:
    for root in (*TASK_KINDS.values(), Document):
        for path, block in walk_blocks(root):
            assert known_keys(block)
            for name in block.model_fields:
                assert descriptions(block).get(name), (*path, name)


@pytest.mark.parametrize("text", [field_trees.E2, field_trees.E4, field_trees.E6, field_trees.E8, field_trees.E10])
def test_pipelines_fit(validator: jsonschema_rs.Draft202012Validator, text: str) -> None:
    validator.validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "text",
    [
        field_trees.E8.replace("dependsOn", "dependOn"),
        field_trees.E8.replace("field:", "feild:"),
        field_trees.E4.replace("columns:", "colums:"),
        field_trees.E2.replace("num_train_epochs: 2", "num_train_epochs: many"),
        field_trees.E2.replace("stages:", "stages: []\n  graph:"),
        field_trees.E10.replace("taskType: python", "taskType: pyton"),
    ],
)
def test_bad_pipelines_do_not_fit(validator: jsonschema_rs.Draft202012Validator, text: str) -> None:
    assert not validator.is_valid(yaml.safe_load(text))


def test_an_editor_lets_a_reference_stand_for_a_number(validator: jsonschema_rs.Draft202012Validator) -> None:
    validator.validate(yaml.safe_load(field_trees.E2.replace("num_train_epochs: 2", "num_train_epochs: '${a.n}'")))
