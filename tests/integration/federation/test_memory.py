"""What an average costs in memory does not depend on how many updates there are, nor on how large they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.unit.federation.adapters import PREFIX, config
from tunefleet.federation import CONFIG, TENSORS, AdapterFile
from tunefleet.federation.safetensors_writer import AdapterWriter

MEASURE = """
import json, sys
from pathlib import Path
from tunefleet.federation import aggregate, update_in
from tunefleet.spec.options.federation_options import StrategySpec

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024

root, spec = Path(sys.argv[1]), StrategySpec.model_validate_json(sys.argv[2])
for out in ("warm", "out"):
    (root / out).mkdir()
# Libraries start their threads and buffers with the first use.
updates = [update_in(root / str(number), worker=str(number), num_examples=number + 1) for number in range(64)]
aggregate(updates[:1], StrategySpec(name="fedavg"), into=root / "warm")
before = peak()
report = aggregate(updates, spec, into=root / "out")
print(json.dumps({"before": before, "after": peak(), "read": report.bytes_read, "seconds": report.seconds}))
"""
MB = 1_000_000


def updates(root: Path, layers: int) -> None:
    """Make 64 updates out of 4 files; an adapter of rank 16 on 4096 × 4096 weights has half a megabyte a layer."""
    shapes = {}
    for layer in range(layers):
        name = f"{PREFIX}model.layers.{layer}.self_attn.q_proj"
        shapes[f"{name}.lora_A.weight"] = ("F32", (16, 4096))
        shapes[f"{name}.lora_B.weight"] = ("F32", (4096, 16))
    rng = np.random.default_rng(0)
    for number in range(64):
        folder = root / str(number)
        folder.mkdir()
        (folder / CONFIG).write_text(json.dumps(config(16, 32)))
        if number >= 4:
            os.link(root / str(number % 4) / TENSORS, folder / TENSORS)
            continue
        with AdapterWriter(folder / TENSORS, shapes) as written:
            # What is not written is zero, and takes no room on the disk.
            for name in list(shapes)[:2]:
                written.write(name, 0, rng.standard_normal(65536, np.float32))


@pytest.mark.proof
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
@pytest.mark.parametrize(
    ("spec", "layers", "most_mb"),
    [
        ({"name": "fedavg"}, 192, 50),
        ({"name": "trimmed_mean"}, 16, 100),
        # Square matrices of the sum of the ranks, 1024, are what an average of products needs.
        ({"name": "fedavg_exact"}, 1, 200),
        ({"name": "krum"}, 1, 200),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else None,
)
def test_64_updates_take_no_more_memory_than_a_few_blocks(
    tmp_path: Path, spec: dict[str, object], layers: int, most_mb: int
) -> None:
    updates(tmp_path, layers)
    size = (tmp_path / "0" / TENSORS).stat().st_size
    if spec["name"] == "fedavg":
        assert size > 100 * MB
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path), json.dumps(spec)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["read"] == 64 * size
    assert found["after"] - found["before"] <= most_mb, found
    # The server's process besides: half of what it may take at all.
    assert found["after"] < 400, found
    _check(tmp_path, spec)


def _check(root: Path, spec: dict[str, object]) -> None:
    """Hold the start of the first tensor against the mean of the four files, with the weights of their links."""
    if spec["name"] != "fedavg":
        return

    def first(folder: str) -> np.ndarray:
        with AdapterFile(root / folder / TENSORS) as file:
            name = next(iter(file.tensors))
            return file.whole(name)

    shares = [sum(number + 1 for number in range(64) if number % 4 == part) for part in range(4)]
    wanted = sum(share * first(str(part)).astype(np.float64) for part, share in enumerate(shares)) / sum(shares)
    assert np.allclose(first("out"), wanted, atol=1e-5)
