"""The arms of the comparison: training alone, together, and on all rows; each runs in its own process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from parts import all_parts, held_out, part
from plan import Address, Regime
from safetensors.numpy import load_file, save_file
from transformers import TrainerCallback
from worker import losses, train

from tunefleet import FederatedCallback, FederatedClient
from tunefleet.errors import AdapterRefused
from tunefleet.federation import CONFIG, TENSORS

PATIENCE_S = 600.0
"""How long a worker waits for the others, some of which are killed."""


def alone(worker: str, regime: Regime, seed: int, out: Path) -> Path:
    """Train only on a worker's own rows; returns the adapter."""
    return train(part(worker), regime, seed, out)


def pooled(regime: Regime, seed: int, out: Path) -> Path:
    """Train on the combined rows of all workers; returns the adapter."""
    return train(all_parts(), regime, seed, out)


def together(worker: str, rows_of: str, regime: Regime, seed: int, out: Path, address: Address, factor: float) -> None:
    """Train on a worker's own rows in a federation; continues where a killed process stopped.

    Args:
        worker: Its name.
        rows_of: Whose rows it has.
        regime: How it trains.
        seed: The same for all.
        out: For checkpoints; `updates/STEP` in it is what was uploaded.
        address: The federation.
        factor: With what its B matrices are multiplied before each upload: 1 for an honest worker.
    """
    federated = FederatedCallback(
        address.url,
        address.federation,
        worker,
        address.token,
        sync_every_steps=regime.sync_every_steps,
        wait_s=PATIENCE_S,
        # The initial adapter of this seed, shared by all arms.
        same_start=False,
    )
    before = [Spoil(factor, regime.sync_every_steps)] if factor != 1 else []
    callbacks = [*before, Keep(out / "updates", regime.sync_every_steps), federated]
    resume = any(out.glob("checkpoint-*/trainer_state.json"))
    train(part(rows_of), regime, seed, out, *callbacks, resume=resume)


def nonsense(worker: str, address: Address, adapter: Path, out: Path) -> str | None:
    """Send an adapter with NaN values through a client, because `FederatedCallback` would not send it.

    Args:
        worker: Who sends it.
        address: The federation.
        adapter: A folder of one.
        out: For the one that is sent.

    Returns:
        What the server answers; None if it takes it.
    """
    values = load_file(adapter / TENSORS)
    name = next(name for name in values if "lora_B" in name)
    values[name] = np.full_like(values[name], np.nan)
    out.mkdir(parents=True)
    save_file(values, out / TENSORS)
    shutil.copy(adapter / CONFIG, out)
    with FederatedClient(address.url, address.federation, worker, address.token) as client:
        try:
            client.upload(out, step=1, num_examples=1)
        except AdapterRefused as refused:
            return str(refused)
    return None


def measure(adapter: Path | None, rows: int) -> list[tuple[float, int]]:
    """Measure an adapter on held-out rows; see `worker.losses`."""
    return losses(adapter, held_out(rows))


class Spoil(TrainerCallback):
    """Multiplies B, and so the update, before an upload, like a malicious worker.

    Args:
        factor: With what.
        every: Steps between two uploads.
    """

    def __init__(self, factor: float, every: int) -> None:
        self._factor, self._every = factor, every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Change the weights before the next callback copies them."""
        if state.global_step % self._every == 0:
            for name, value in kwargs["model"].named_parameters():
                if "lora_B" in name:
                    value.data.mul_(self._factor)


class Keep(TrainerCallback):
    """Keeps a worker's uploads, to compare averages with them.

    Args:
        folder: Where.
        every: Steps between two uploads.
    """

    def __init__(self, folder: Path, every: int) -> None:
        self._folder, self._every = folder, every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the adapter before the average is loaded."""
        if state.global_step % self._every == 0:
            kwargs["model"].save_pretrained(self._folder / str(state.global_step))
