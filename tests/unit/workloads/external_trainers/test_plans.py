"""What other trainers are given: command, environment and configuration, against files that a person has read.

`WRITE_GOLDEN=1` writes them anew.
"""

from __future__ import annotations

import ast
import json
import os
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

from tunefleet.errors import InputError, MachineError
from tunefleet.runtime.envs import FAMILIES
from tunefleet.spec import TrainingTaskSpec, load_task_spec
from tunefleet.workloads.external_trainers import axolotl, llamafactory, trainers, unsloth
from tunefleet.workloads.external_trainers.trainers import Plan, Request

GOLDEN = Path(__file__).parent / "golden"
TRAINERS = {"axolotl": axolotl.plan, "llamafactory": llamafactory.plan, "unsloth": unsloth.plan}
ROWS = Path("/job/space/rows")


def request(trainer: str, kind: str = "lora_sft", **spec: Any) -> Request:
    whole = {
        "taskType": kind,
        "trainer": trainer,
        "model": {"source": {"identifier": "some/model", "revision": "main"}},
        "data": {"path": "rows.jsonl", "eval": {"fraction": 0.1}},
    }
    loaded = load_task_spec(whole | spec)
    assert isinstance(loaded, TrainingTaskSpec)
    return Request(
        spec=loaded,
        model="/hub/some--model",
        revision="main",
        start=None,
        train=ROWS / "train.jsonl",
        held_out=ROWS / "held_out.jsonl",
        tokenized=ROWS / "tokenized",
        pad_token="<pad>",
        work=Path("/job/space"),
        gpus=1,
        compute="bfloat16",
        attention=loaded.attention,
    )


def qlora(trainer: str) -> Request:
    """A training with as many keys as all three heed."""
    return request(
        trainer,
        lora={"r": 8, "alpha": 16, "dropout": 0.1, "target_modules": "all-linear", "use_rslora": True,
              "modules_to_save": ["embed_tokens"]},
        quantization={"load_in_4bit": True},
        training={"max_steps": 100, "batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-4,
                  "lr_scheduler_type": "cosine", "warmup_ratio": 0.03, "weight_decay": 0.01, "optim": "adamw_8bit",
                  "max_seq_length": 2048, "gradient_checkpointing": True, "seed": 7, "logging_steps": 5,
                  "save_steps": 50, "eval_strategy": "steps", "eval_steps": 50, "neftune_noise_alpha": 5},
    )  # fmt: skip


def shown(plan: Plan) -> dict[str, Any]:
    """Return a plan as people read it; our script stands in its own file."""
    read = {".yaml": yaml.safe_load, ".json": json.loads}
    files = {name: read[Path(name).suffix](text) for name, text in plan.files.items() if Path(name).suffix in read}
    return {"command": list(plan.command), "env": dict(plan.env), "environment": plan.environment,
            "output": plan.output, "files": files}  # fmt: skip


@pytest.mark.parametrize("kind", ["full", "qlora"])
@pytest.mark.parametrize("trainer", list(TRAINERS))
def test_a_training_is_translated(trainer: str, kind: str) -> None:
    asked = qlora(trainer) if kind == "qlora" else request(trainer, "sft")
    found = shown(TRAINERS[trainer](asked))
    golden = GOLDEN / f"{trainer}-{kind}.yaml"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(yaml.safe_dump(found, sort_keys=False), encoding="utf-8")
    assert found == yaml.safe_load(golden.read_text(encoding="utf-8"))
    assert found["environment"] in FAMILIES


def test_what_one_alone_heeds_reaches_it() -> None:
    adapter = replace(request("axolotl"), start="/job/adapter")
    assert axolotl.config(adapter)["lora_model_dir"] == "/job/adapter"
    packed = request("axolotl", training={"packing": True})
    assert axolotl.config(packed)["sample_packing"] is True
    assert axolotl.plan(replace(packed, gpus=4)).command[-1] == "--nproc-per-node=4"
    fast = request(
        "llamafactory", model={"source": {"identifier": "m"}, "transformers": {"use_flash_attention_2": True}}
    )
    assert llamafactory.config(fast)["flash_attn"] == "fa2"
    assert llamafactory.plan(replace(fast, gpus=4)).env["NPROC_PER_NODE"] == "4"
    assert llamafactory.config(replace(fast, start="/a"))["adapter_name_or_path"] == "/a"
    eight = request("llamafactory", quantization={"load_in_8bit": True})
    assert llamafactory.config(eight)["quantization_bit"] == 8


def test_what_one_cannot_do_is_said() -> None:
    with pytest.raises(MachineError, match="Unsloth supports one GPU, but the run has 2"):
        unsloth.plan(replace(request("unsloth"), gpus=2))
    with pytest.raises(InputError, match="no attention kernel flex_attention"):
        llamafactory.plan(replace(request("llamafactory"), attention="flex_attention"))
    with pytest.raises(InputError, match=r"whole number for lora\.alpha"):
        llamafactory.plan(request("llamafactory", lora={"alpha": 2.5}))


def test_the_script_for_unsloth_is_python_and_imports_unsloth_first() -> None:
    tree = ast.parse(unsloth.plan(qlora("unsloth")).files[unsloth.SCRIPT])
    imported = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert imported.index("unsloth") < imported.index("transformers")


def test_trainers_are_found_by_name_plugin_and_function() -> None:
    plugin = EntryPoint("theirs", "tunefleet.workloads.external_trainers.axolotl:plan", trainers.GROUP)
    for name in ("axolotl", "theirs", "tunefleet.workloads.external_trainers.axolotl:plan"):
        assert trainers.find_trainer(name, [plugin]) is axolotl.plan
    with pytest.raises(InputError, match="no trainer 'thiers'") as caught:
        trainers.find_trainer("thiers", [plugin])
    assert "trl, axolotl, llamafactory, unsloth, theirs" in str(caught.value.hint)
    with pytest.raises(InputError, match="nowhere:plan cannot be loaded: No module named 'nowhere'"):
        trainers.find_trainer("nowhere:plan")
    with pytest.raises(InputError, match="is not a function"):
        trainers.find_trainer("tunefleet.workloads.external_trainers.trainers:GROUP")
