"""PEFT's `add_weighted_adapter` on some adapters: `python peft_average.py WAY OUT SIZE FOLDER:WEIGHT …`; prints JSON.

WAY is linear, svd or cat. The base is one square linear layer a module, of SIZE, so that what is timed is the average.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import safe_open


def base(size: int, names: list[str]) -> torch.nn.Module:
    """A model with these modules."""
    root = torch.nn.Module()
    for name in names:
        at = root
        *path, last = name.split(".")
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, torch.nn.Module())
            at = getattr(at, part)
        at.add_module(last, torch.nn.Linear(size, size, bias=False))
    return root


def main() -> None:
    """Load, average, save."""
    way, out, size, *given = sys.argv[1:]
    torch.set_num_threads(1)
    pairs = [(folder, float(weight)) for folder, _, weight in (each.rpartition(":") for each in given)]
    with safe_open(f"{pairs[0][0]}/adapter_model.safetensors", "pt") as file:
        names = sorted({key.removeprefix("base_model.model.").partition(".lora_")[0] for key in list(file.keys())})
    began = time.perf_counter()
    model = PeftModel.from_pretrained(base(int(size), names), pairs[0][0], adapter_name="a0")
    for number, (folder, _) in enumerate(pairs[1:], 1):
        model.load_adapter(folder, adapter_name=f"a{number}")
    loaded = time.perf_counter()
    model.add_weighted_adapter(
        [f"a{number}" for number in range(len(pairs))], [weight for _, weight in pairs], "mean", combination_type=way
    )
    done = time.perf_counter()
    model.save_pretrained(out, selected_adapters=["mean"])
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"seconds": time.perf_counter() - began, "average_seconds": done - loaded, "peak_mb": peak}))


if __name__ == "__main__":
    main()
