"""A worker as the upload guide has it, in our own words: the same calls in the same order, and a URL for a key.

    python guide_worker.py http://:TOKEN@host:8000 JOB_ID WORKER_ID --target 1.0 --steps 300

It sends no header of its own. It trains a model of one low-rank layer, so that it needs no torch: the layer learns to
be `target` times a matrix, and so workers with different targets meet in the middle. A loss is printed after each
synchronisation, as JSON, a line each.
"""

from __future__ import annotations

import argparse
import json
import struct
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

RANK, ROWS, COLUMNS = 4, 12, 8
NAMES = {
    "A": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    "B": "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
}
BASE = "example/one-layer"
CONFIG = {
    "peft_type": "LORA",
    "base_model_name_or_path": BASE,
    "r": RANK,
    "lora_alpha": RANK,
    "target_modules": ["q_proj"],
    "bias": "none",
}
Tensors = dict[str, npt.NDArray[np.float32]]


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write float32 tensors as the safetensors library does."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values in tensors.values()))


def read_safetensors(path: Path) -> Tensors:
    """Read float32 tensors."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    values = data[8 + length :]
    return {
        name: np.frombuffer(values[slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"]).copy()
        for name, entry in header.items()
    }


class Model:
    """A PEFT model as far as the guide uses one: adapters by name, of which one is active.

    The optimizer holds the parameters of `default`, whatever is active: it was made before anything was loaded.
    """

    def __init__(self, target: float, seed: int) -> None:
        random = np.random.default_rng(0)
        self.goal = target * (random.normal(size=(ROWS, RANK)) @ random.normal(size=(RANK, COLUMNS)) / RANK)
        first = np.random.default_rng(seed).normal(size=(RANK, COLUMNS)).astype(np.float32) / 3
        self.adapters: dict[str, Tensors] = {
            "default": {"A": first, "B": np.zeros((ROWS, RANK), np.float32)},
        }
        self.active = "default"

    def train(self, steps: int) -> float:
        """Take gradient steps on the default adapter, and return the loss of the active one."""
        if self.active == "default":
            factors = self.adapters["default"]
            for _ in range(steps):
                error = factors["B"] @ factors["A"] - self.goal
                slope_a, slope_b = factors["B"].T @ error, error @ factors["A"].T
                factors["A"] -= (0.05 * slope_a).astype(np.float32)
                factors["B"] -= (0.05 * slope_b).astype(np.float32)
        return self.loss()

    def loss(self) -> float:
        factors = self.adapters[self.active]
        return float(np.mean((factors["B"] @ factors["A"] - self.goal) ** 2))

    def save_pretrained(self, folder: Path) -> None:
        """Save all adapters: the default one at the root, the others in folders of their names."""
        for name, factors in self.adapters.items():
            where = folder if name == "default" else folder / name
            where.mkdir(parents=True, exist_ok=True)
            write_safetensors(where / "adapter_model.safetensors", {NAMES[side]: factors[side] for side in "AB"})
            (where / "adapter_config.json").write_text(json.dumps(CONFIG))
        (folder / "README.md").write_text("# An adapter\n")

    def load_adapter(self, folder: str, adapter_name: str) -> None:
        tensors = read_safetensors(Path(folder) / "adapter_model.safetensors")
        self.adapters[adapter_name] = {side: tensors[NAMES[side]] for side in "AB"}

    def set_adapter(self, adapter_name: str) -> None:
        self.active = adapter_name


class Worker:
    """The guide's functions, with what they share."""

    def __init__(self, url: str, job_id: str, worker_id: str, model: Model, work: Path, *, recipe: bool) -> None:
        self.url, self.job_id, self.worker_id = url, job_id, worker_id
        self.model, self.work, self.recipe = model, work, recipe
        self.current_version = 0

    def upload_adapter(self, global_step: int, num_examples: int) -> dict[str, Any]:
        name = f"adapter-job{self.job_id}-worker{self.worker_id}-step{global_step}"
        adapter_dir = self.work / name
        adapter_dir.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(adapter_dir)
        (adapter_dir / "tokenizer.json").write_text('{"version": "1.0"}')
        tar_path = self.work / f"{name}.tar.gz"
        with tarfile.open(tar_path, "w:gz") as tar:
            tar.add(adapter_dir, arcname=".")
        with tar_path.open("rb") as file:
            response = httpx.post(
                f"{self.url}/api/training/adapters/{self.job_id}/{self.worker_id}/{global_step}",
                files={"adapter": file},
                data={"numExamples": num_examples},
                timeout=300,
            )
        response.raise_for_status()
        result: dict[str, Any] = response.json()
        return result

    def check_for_checkpoint(self) -> tuple[str, int] | None:
        response = httpx.get(f"{self.url}/api/training/checkpoints/{self.job_id}", timeout=10)
        if response.status_code == 200:
            checkpoint_data = response.json()
            if checkpoint_data["version"] > self.current_version:
                return checkpoint_data["downloadUrl"], checkpoint_data["version"]
        return None

    def download_checkpoint(self, url: str, version: int) -> Path:
        checkpoint_path = self.work / f"checkpoint-job{self.job_id}-v{version}.tar.gz"
        with httpx.stream("GET", url, timeout=300, follow_redirects=True) as response:
            response.raise_for_status()
            with checkpoint_path.open("wb") as file:
                for chunk in response.iter_bytes(chunk_size=8192):
                    file.write(chunk)
        return checkpoint_path

    def apply_checkpoint(self, checkpoint_path: Path, version: int) -> None:
        extract_dir = self.work / f"checkpoint-extracted-{version}"
        extract_dir.mkdir(parents=True, exist_ok=True)
        with tarfile.open(checkpoint_path, "r:gz") as tar:
            tar.extractall(extract_dir, filter="data")
        if self.recipe:
            self.model.load_adapter(str(extract_dir), adapter_name="aggregated")
            self.model.set_adapter("aggregated")
        else:
            self.model.load_adapter(str(extract_dir), adapter_name="default")
        self.current_version = version


def main() -> None:
    """Train as the guide's loop does, until the steps are done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("job_id")
    parser.add_argument("worker_id")
    parser.add_argument("--target", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sync-interval", type=int, default=100)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--recipe", action="store_true", help="Load each version under a name of its own, as printed.")
    parser.add_argument("--patience", type=float, default=60.0, help="Longest wait for a version, in seconds.")
    asked = parser.parse_args()
    model = Model(asked.target, seed=sum(asked.worker_id.encode()))
    with tempfile.TemporaryDirectory() as work:
        worker = Worker(asked.url, asked.job_id, asked.worker_id, model, Path(work), recipe=asked.recipe)
        for step in range(asked.sync_interval, asked.steps + 1, asked.sync_interval):
            loss = model.train(asked.sync_interval)
            result = worker.upload_adapter(step, asked.examples)
            found = None
            ends = time.monotonic() + (asked.patience if result.get("warning") is None else 0)
            while found is None and time.monotonic() < ends:
                time.sleep(0.05)
                found = worker.check_for_checkpoint()
            if found is not None:
                worker.apply_checkpoint(worker.download_checkpoint(*found), found[1])
            told = {**result, "step": step, "loss": loss, "after": model.loss(), "version": worker.current_version}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
