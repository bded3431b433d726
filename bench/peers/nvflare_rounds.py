"""Rounds of NVFlare's simulator with echo clients: `python nvflare_rounds.py MIB CLIENTS ROUNDS`; prints JSON.

Runs in NVFlare's own environment. Its model is one array of that size, which its NumPy recipe averages by FedAvg. Each
client is a process on this machine, as its simulator has it; the messages between them and the server are real. What
comes before the second round's model is not timed.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

MIB, CLIENTS, ROUNDS = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
WIDTH = 4096


def main() -> None:
    """Run the rounds and print how many there are in a second."""
    with tempfile.TemporaryDirectory(prefix="nvflare-", ignore_cleanup_errors=True) as folder:
        first, seen = Path(folder) / "first.npy", Path(folder) / "seen"
        values = np.random.default_rng(0).standard_normal((round(MIB * 2**20 / 4 / WIDTH), WIDTH), np.float32)
        np.save(first, values / 64)
        recipe = NumpyFedAvgRecipe(
            name="echo",
            initial_ckpt=str(first),
            min_clients=CLIENTS,
            num_rounds=ROUNDS + 2,
            train_script=str(Path(__file__).resolve().with_name("nvflare_echo.py")),
            train_args=str(seen),
        )
        with contextlib.redirect_stdout(sys.stderr):
            recipe.execute(SimEnv(num_clients=CLIENTS, workspace_root=folder))
        at = [float(line) for line in seen.read_text(encoding="utf-8").split()]
    if len(at) != ROUNDS + 2:
        raise SystemExit(f"NVFlare's simulator began {len(at)} of {ROUNDS + 2} rounds.")
    print(json.dumps({"rounds_per_s": ROUNDS / (at[-1] - at[1])}), flush=True)


if __name__ == "__main__":
    main()
