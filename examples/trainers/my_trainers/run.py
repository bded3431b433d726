"""An ordinary training script: since Tunefleet attaches to its Trainer, it reports, pauses and resumes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

OUTPUT = "output"


def main(file: Path) -> None:
    """Train an adapter.

    Args:
        file: The file that `simple.plan` returned.
    """
    wanted = json.loads(file.read_bytes())
    torch.manual_seed(wanted["seed"])
    tokenizer = AutoTokenizer.from_pretrained(wanted["model"])
    model = AutoModelForCausalLM.from_pretrained(wanted["model"])
    lora = LoraConfig(r=wanted["rank"], target_modules=wanted["targets"], task_type="CAUSAL_LM")
    # Rows are tokenized; masked tokens have the label -100.
    rows = [json.loads(line) for line in Path(wanted["train"]).read_text().splitlines()]
    trainer = Trainer(
        model=get_peft_model(model, lora),
        args=TrainingArguments(
            OUTPUT,
            max_steps=wanted["max_steps"],
            per_device_train_batch_size=wanted["batch_size"],
            learning_rate=wanted["learning_rate"],
            seed=wanted["seed"],
            logging_steps=1,
            save_steps=4,
            report_to=[],
        ),
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, padding=True),
    )
    trainer.train()
    trainer.save_model(OUTPUT)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
