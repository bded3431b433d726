"""`FederatedCallback` in each of TRL's trainers: rows are those of the data, whatever a trainer makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.federation import FEDERATION, TOKEN, Double, serving


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global At, AutoModelForCausalLM, AutoModelForSequenceClassification, Dataset, FederatedCallback, LiveAdapter
    global LoraConfig, MODEL, TaskType, Watch, arrived, base_model, load, save, torch, trl, until
    pytest.importorskip("peft")
    pytest.importorskip("trl")

    import torch
    import trl
    from datasets import Dataset
    from peft import LoraConfig, TaskType
    from safetensors.torch import load, save
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    from tests.integration.federation.training import MODEL, At, Watch, arrived, until
    from tunefleet import FederatedCallback
    from tunefleet.workloads.common import base_model
    from tunefleet.workloads.federated.live_adapter import LiveAdapter


pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.proof]

PAIRS = [
    {"prompt": f"What is {n}?", "chosen": f" It is {n}.", "rejected": f" It is {n + 1}, or so."} for n in range(16)
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "SFT": [{"prompt": f"What is {n}?", "completion": f" It is {n}."} for n in range(16)],
    "DPO": PAIRS,
    "KTO": [{"prompt": f"What is {n}?", "completion": f" It is {n}.", "label": n % 2 == 0} for n in range(16)],
    "GRPO": [{"prompt": f"What is {n}?"} for n in range(16)],
    "Reward": [{"chosen": f"{pair['prompt']}{pair['chosen']}", "rejected": pair["prompt"]} for pair in PAIRS],
}
# Hot enough for two different answers: of equal ones nothing can be learnt.
OWN: dict[str, dict[str, Any]] = {"GRPO": {"num_generations": 2, "max_completion_length": 4, "temperature": 5.0}}
STEPS, BATCH = 6, 2


@pytest.fixture
def double() -> Iterator[Double]:
    with serving() as double:
        yield double


def build(kind: str, output: Path, callback: FederatedCallback) -> Any:
    """Return the trainer of a kind, which makes the adapter itself."""
    tokenizer = base_model.load_tokenizer(base_model.Source("builtin:gsm8k-llama-2m", MODEL))
    scores = kind == "Reward"
    task = TaskType.SEQ_CLS if scores else TaskType.CAUSAL_LM
    auto = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    model = auto.from_pretrained(MODEL, **({"num_labels": 1} if scores else {}))
    model.config.pad_token_id = tokenizer.pad_token_id
    args = getattr(trl, f"{kind}Config")(
        output_dir=str(output),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=1e-3,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        **OWN.get(kind, {}),
    )
    # Of two completions of a prompt one is always better: else there would be nothing to learn.
    rewards = {"reward_funcs": lambda completions, **_: [float(n % 2) for n, _ in enumerate(completions)]}
    return getattr(trl, f"{kind}Trainer")(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(ROWS[kind]),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type=task),
        callbacks=[callback],
        **(rewards if kind in OWN else {}),
    )


@pytest.mark.parametrize("kind", sorted(ROWS))
@pytest.mark.filterwarnings("ignore")
def test_every_trainer_uploads_its_rows_and_learns_on_from_a_version(kind: str, double: Double, tmp_path: Path) -> None:
    def publish(double: Double, update: dict[str, Any]) -> None:
        if not double.versions:
            values = {name: 0.9 * each + 0.001 for name, each in load(double.file_of(update)).items()}
            double.publish(save(values), update["config"])

    double.on_update = publish
    callback = FederatedCallback(double.url, FEDERATION, "lab", TOKEN, 2)
    watch = Watch(callback)
    trainer = build(kind, tmp_path, callback)
    trainer.add_callback(watch)
    trainer.add_callback(At(3, lambda: until(arrived(callback))))
    trainer.train()
    assert watch.versions[3] == 1
    # The version has replaced what came of the rows of step 3.
    assert sum(examples for _, examples in double.examples) == (STEPS - 1) * BATCH
    assert watch.objects() == watch.held()
    published = load(double.versions[0][0])
    assert all(
        torch.equal(watch.values[3][name], value.to(watch.values[3][name].dtype)) for name, value in published.items()
    )
    changed = [name for name, value in watch.values[3].items() if not torch.equal(watch.values[6][name], value)]
    assert len(changed) == len(LiveAdapter(trainer.model).trained)
