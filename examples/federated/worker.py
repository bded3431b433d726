"""One worker: an ordinary training script with one additional callback that makes it part of a federation.

    python examples/federated/worker.py http://:TOKEN@server:8000 fed-0123456789ab ada

`main` shows everything that a federation needs; the rest is for the measurements of `prove.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from findings import per_token
from parts import WORKERS, Row, held_out, part
from peft import LoraConfig, PeftModel
from plan import Regime
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from tunefleet import FederatedCallback
from tunefleet.workloads import assets

MODEL = str(assets.locate("builtin:gsm8k-llama-2m", "model"))


def train(
    rows: Sequence[Row], regime: Regime, seed: int, output: Path, *callbacks: TrainerCallback, resume: bool = False
) -> Path:
    """Train an adapter on the given rows.

    Args:
        rows: With `prompt` and `completion`; the loss is on the completions.
        regime: Settings of the training.
        seed: For the adapter's initial values and the order of the rows.
        output: For checkpoints and the adapter.
        callbacks: A `FederatedCallback`, for instance.
        resume: Continue from the newest checkpoint in `output`.

    Returns:
        The folder of the adapter.
    """
    arguments = SFTConfig(
        output_dir=str(output),
        max_steps=regime.steps,
        per_device_train_batch_size=regime.batch_size,
        learning_rate=regime.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=min(5, regime.steps // 4),
        max_length=384,
        seed=seed,
        logging_steps=regime.sync_every_steps,
        save_steps=regime.sync_every_steps,
        save_total_limit=2,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        args=arguments,
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        peft_config=LoraConfig(
            r=regime.rank, lora_alpha=2 * regime.rank, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=resume or None)
    trainer.save_model(str(output / "adapter"))
    return output / "adapter"


@torch.inference_mode()
def losses(adapter: Path | None, rows: Sequence[Row], batch_size: int = 16) -> list[tuple[float, int]]:
    """Measure an adapter on held-out rows.

    Args:
        adapter: Its folder; None measures the model as it is.
        rows: With `prompt` and `completion`.
        batch_size: Rows per forward pass.

    Returns:
        For each row the sum of its losses in nats, and the number of tokens of its completion.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = [(row["prompt"], row["prompt"] + row["completion"] + tokenizer.eos_token) for row in rows]
    tokens = [tokenizer([prompt, whole], add_special_tokens=False)["input_ids"] for prompt, whole in texts]
    found: dict[int, tuple[float, int]] = {}
    # Rows of similar length together: less padding.
    order = sorted(range(len(rows)), key=lambda index: len(tokens[index][1]))
    for start in range(0, len(order), batch_size):
        some = order[start : start + batch_size]
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(tokens[index][1]) for index in some], batch_first=True)
        # Padding comes last, so it does not affect a causal model's earlier tokens.
        logits = model(input_ids=ids).logits[:, :-1]
        each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        for at, index in enumerate(some):
            prompt, whole = tokens[index]
            of_answer = each[at, len(prompt) - 1 : len(whole) - 1]
            found[index] = (float(of_answer.double().sum()), len(of_answer))
    return [found[index] for index in range(len(rows))]


def main() -> None:
    """Join an existing federation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="URL of the server, with the federation's token")
    parser.add_argument("federation", help="id or number of the federation")
    parser.add_argument("worker", choices=WORKERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("federated"))
    options = parser.parse_args()
    regime = Regime()
    federated = FederatedCallback(
        options.url,
        options.federation,
        options.worker,
        sync_every_steps=regime.sync_every_steps,
        wait_s=600,
    )
    adapter = train(part(options.worker), regime, options.seed, options.out / options.worker, federated)
    print(f"{adapter}: {per_token(losses(adapter, held_out(320))):.4f} nats a token, at version {federated.version}")


if __name__ == "__main__":
    main()
