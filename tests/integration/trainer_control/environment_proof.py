"""A user's script, run by the Python of an environment that has transformers, torch and nothing else of ours.

    python environment_proof.py FOLDER

Each training is a process of its own, forked when the libraries are imported, which takes seconds. A thread plays the
person at another terminal: it finds the endpoint and asks over HTTP, with what curl would send.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tunefleet import TrainerControlCallback

FOLDER = Path(sys.argv[1])
TRAINING_KINDS = ("none", "save_checkpoint", "pause", "pause-resumed", "abort", "crash")
ROWS = [{"input_ids": torch.arange(8) + n % 8, "labels": torch.arange(8) + n % 8} for n in range(32)]


class Someone(TrainerCallback):
    """Asks during the third step, from beside the training."""

    def __init__(self, command: str) -> None:
        self.command = command

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step != 2:
            return
        if self.command == "crash":
            raise RuntimeError("the script's own fault")
        if self.command in ("save_checkpoint", "pause", "abort"):
            asking = threading.Thread(target=ask, args=(self.command,))
            asking.start()
            asking.join()


def ask(command: str) -> None:
    endpoint = json.loads(Path(os.environ["TUNEFLEET_JOBS_DIR"], command, "endpoint.json").read_text())
    url = f"http://localhost:{endpoint['port']}/jobs/{command}/control"
    body = json.dumps({"command": command, "command_id": "cmd-1"}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    assert json.loads(urllib.request.urlopen(request, timeout=10).read())["status"] == "acknowledged"


def train(name: str) -> None:
    command, _, resumed = name.partition("-")
    output = FOLDER / command
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
        output_dir=str(output),
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
    callbacks = [TrainerControlCallback(job_id=name), Someone("none" if resumed else command)]
    model = LlamaForCausalLM(config)
    trainer = Trainer(model=model, args=args, train_dataset=ROWS, eval_dataset=ROWS[:4], callbacks=callbacks)  # type: ignore
    trainer.train(resume_from_checkpoint=bool(resumed) or None)
    trainer.save_model(str(output / "final"))
    found = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        found.update(tensor.detach().numpy().tobytes())
    (output / "weights").write_text(found.hexdigest())


def in_children() -> str | None:
    """Return the training that this process is to do; in the parent None, when all are done."""
    for name in TRAINING_KINDS:
        if (pid := os.fork()) == 0:
            return name
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"training": name, "returncode": code}), flush=True)
    return None


if __name__ == "__main__":
    absent = [name for name in ("httpx", "fastapi", "sqlalchemy") if importlib.util.find_spec(name) is None]
    print(json.dumps({"transformers": transformers.__version__, "absent": absent}), flush=True)
    if (mine := in_children()) is not None:
        train(mine)
