"""Small adapters for tests: arrays as PEFT names and shapes them, written as `save_pretrained` leaves them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tunefleet.federation import CONFIG, TENSORS, AdapterFile, Update, update_in, write_tensors
from tunefleet.federation.layers import PREFIX

Q = "model.layers.0.self_attn.q_proj"
V = "model.layers.1.self_attn.v_proj"
SHAPES = {Q: (7, 5), V: (6, 9)}
"""By module, rows and columns of the weight."""

Arrays = dict[str, np.ndarray]


def factors(
    rng: np.random.Generator, rank: int = 2, shapes: Mapping[str, tuple[int, int]] = SHAPES, size: float = 1.0
) -> Arrays:
    """Random factors by tensor name."""
    found: Arrays = {}
    for module, (rows, columns) in shapes.items():
        found[f"{PREFIX}{module}.lora_A.weight"] = size * rng.standard_normal((rank, columns)).astype(np.float32)
        found[f"{PREFIX}{module}.lora_B.weight"] = size * rng.standard_normal((rows, rank)).astype(np.float32)
    return found


def config(rank: int = 2, alpha: float = 4, **more: Any) -> dict[str, Any]:
    """A config as PEFT writes it."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "builtin:tiny",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        **more,
    }


def save(
    folder: Path,
    arrays: Arrays,
    *,
    worker: str = "a",
    examples: int = 1,
    dtype: str = "F32",
    rank: int = 2,
    alpha: float = 4,
    **more: Any,
) -> Update:
    """Write an adapter's two files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config(rank, alpha, **more)))
    write_tensors(folder / TENSORS, arrays, dtype=dtype)
    return update_in(folder, worker=worker, num_examples=examples)


def load(folder: Path) -> Arrays:
    """Read an adapter's tensors as float32."""
    with AdapterFile(folder / TENSORS) as file:
        return {name: file.whole(name) for name in file.tensors}


def products(folder: Path) -> dict[str, np.ndarray]:
    """Return scale · B · A by module, in float64."""
    update = update_in(folder)
    arrays = load(folder)
    found = {}
    for name, a in arrays.items():
        if ".lora_A." in name or name.endswith("lora_embedding_A"):
            b = arrays[name.replace("lora_A", "lora_B").replace("embedding_A", "embedding_B")]
            module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight").removesuffix(".lora_embedding_A")
            found[module] = update.config.scale_of(module, len(a)) * b.astype(np.float64) @ a.astype(np.float64)
    return found


def difference(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """Relative Frobenius distance over all entries."""
    assert one.keys() == other.keys()
    apart = sum(float(np.sum((one[key] - other[key]) ** 2)) for key in one)
    size = sum(float(np.sum(other[key] ** 2)) for key in other)
    return (apart / size) ** 0.5
