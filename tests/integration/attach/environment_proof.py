"""A user's script, run by the Python of an environment that has transformers, torch and nothing else of ours.

    python environment_proof.py OUT COMMAND [resume]

A thread plays the person at another terminal: it finds the endpoint and asks over HTTP, with what curl would send.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tunefleet import TrainerControlCallback

OUT, COMMAND = Path(sys.argv[1]), sys.argv[2]
ROWS = [{"input_ids": torch.arange(8) + n % 8, "labels": torch.arange(8) + n % 8} for n in range(32)]


class Someone(TrainerCallback):
    """Asks during the third step, and waits for the answer as a person would: beside the training."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step != 2:
            return
        if COMMAND == "crash":
            raise RuntimeError("the script's own fault")
        if COMMAND != "none":
            asking = threading.Thread(target=ask)
            asking.start()
            asking.join()


def ask() -> None:
    endpoint = json.loads(Path(os.environ["TUNEFLEET_JOBS_DIR"], "proof/endpoint.json").read_text())
    url = f"http://localhost:{endpoint['port']}/jobs/proof/control"
    body = json.dumps({"command": COMMAND, "command_id": "cmd-1"}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    print(json.loads(urllib.request.urlopen(request, timeout=10).read())["status"])


def main() -> None:
    foreign = {name for name in ("pydantic", "httpx", "psutil", "typer", "fastapi") if can_import(name)}
    print(f"transformers {transformers.__version__}, ours: {sorted(foreign)}")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.2,
    )
    args = TrainingArguments(
        output_dir=str(OUT),
        max_steps=6,
        logging_steps=2,
        save_strategy="steps",
        save_steps=4,
        eval_strategy="steps",
        eval_steps=3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        per_device_train_batch_size=4,
    )
    callbacks = [TrainerControlCallback(job_id="proof"), Someone()]
    model = LlamaForCausalLM(config)
    trainer = Trainer(model=model, args=args, train_dataset=ROWS, eval_dataset=ROWS[:4], callbacks=callbacks)
    trainer.train(resume_from_checkpoint="resume" in sys.argv or None)
    trainer.save_model(str(OUT / "final"))
    found = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        found.update(tensor.detach().numpy().tobytes())
    print(f"weights {found.hexdigest()}")


def can_import(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.1f} s")
