"""What an average of adapters costs and what it gets wrong, beside Flower and PEFT, all in one run.

    python bench/aggregate.py                    # some minutes
    python bench/aggregate.py --quick            # about one minute; fewer rounds, smaller layers
    python bench/aggregate.py --figure FILE.svg  # the figure of docs/explanation/averaging-lora.md, and nothing else

1. Ten adapters of 100 MB, file to file, warm page cache: seconds and peak memory of the whole process, ours and
   Flower's `aggregate_arrayrecords` by turns, each in a process of its own. Budgets: a quarter of Flower's time end to
   end; 100 MB of memory.
2. The exact average of eight adapters of rank 16 on 4096 × 4096 weights: milliseconds a layer, file to file.
   Budget: 10.
3. The error of each way against the true weighted sum of products, with its seconds: ours, Flower's, and PEFT's
   `add_weighted_adapter` in its three ways, by turns. The adapters are trained apart on different targets, from one
   start.
4. Bytes of an upload of rank 16 on q, k, v and o of an 8B model. Budget: 26 MiB of values in bf16.

Each time is that of one average in a process of its own that has imported everything: the first one, as a round is
averaged once. Times are medians over turns, with 95 % intervals.

Flower has pins that contradict ours; its environment is made beside ours at the first run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _common import interval, status, verdict
from _lora import drawing, errors_by_steps, trained
from _report import BUDGETS, Figure, Peer, Ratio, Report, decided, version_here
from peers.environment import FLOWER, ROOT, interpreter, version_of

from tunefleet.federation import CONFIG, TENSORS, AdapterFile, Update, update_in, write_tensors
from tunefleet.federation.aggregation.strategy import product_error
from tunefleet.federation.quantize import write_int8
from tunefleet.federation.safetensors_writer import AdapterWriter

FLOWER_BUDGET = 0.25
MEMORY_BUDGET_MB = 100.0
LAYER_BUDGET_MS = 10.0
UPLOAD_BUDGET_MIB = 26.0
MIB = 1 << 20
SIZES = (("float32", "F32"), ("bf16", "BF16"), ("its values alone", "bf16_values"), ("int8", "int8"))
OURS = """
import json, shutil, sys, time
from pathlib import Path
from tunefleet.federation import aggregate, update_in
from tunefleet.spec.options.federation_options import StrategySpec

def peak():
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

spec, out, *given = sys.argv[1:]
pairs = [each.rpartition(":") for each in given]
updates = [update_in(Path(path), worker=f"{n:03}", num_examples=int(count)) for n, (path, _, count) in enumerate(pairs)]
spec = StrategySpec.model_validate_json(spec)
few = max(1, spec.min_updates)

def anew():
    # As at a server: each version has a folder of its own.
    shutil.rmtree(out, ignore_errors=True)
    Path(out).mkdir(parents=True)

anew()
aggregate(updates[:few], spec, into=Path(out))
anew()
worked, began = time.process_time(), time.perf_counter()
report = aggregate(updates, spec, into=Path(out))
found = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}
print(json.dumps({**found, "peak_mb": peak(), "report": report.to_json()}))
"""
Found = dict[str, Any]


def said(what: str, found: Any) -> Any:
    """Say that something is measured, and pass it on."""
    print(f"measured: {what}", flush=True)
    return found


def run(*command: str) -> Found:
    """Run a process that prints one JSON object, on one thread of each library but our own two."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def config(rank: int, modules: list[str]) -> str:
    """A config as PEFT writes it; the scale is 2."""
    return json.dumps(
        {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": 2 * rank,
            "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
            "base_model_name_or_path": None,
            "bias": "none",
        }
    )


def tensors(layers: int, size: int, rank: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Shapes of an adapter on square layers."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        found[f"{name}.lora_A.weight"] = ("F32", (rank, size))
        found[f"{name}.lora_B.weight"] = ("F32", (size, rank))
    return found


def random_adapters(root: Path, count: int, layers: int, size: int, rank: int) -> list[str]:
    """Write adapters with random values; returns their folders."""
    folders = []
    for number in range(count):
        rng = np.random.default_rng(number)
        folder = root / f"r{number}"
        folder.mkdir(parents=True)
        (folder / CONFIG).write_text(config(rank, ["q_proj"]))
        shapes = tensors(layers, size, rank)
        with AdapterWriter(folder / TENSORS, shapes) as written:
            for name, (_, shape) in shapes.items():
                written.write(name, 0, rng.standard_normal(shape, np.float32) / np.float32(64))
        folders.append(str(folder))
    return folders


def file_to_file(root: Path, rounds: int) -> Found:
    """Ten adapters of 100 MB, ours and Flower's by turns."""
    folders = random_adapters(root / "large", 10, 192, 4096, 16)
    python = str(interpreter("flower", FLOWER))
    script = str(ROOT / "bench/peers/flower_average.py")
    ours: list[Found] = []
    theirs: list[Found] = []
    for number in range(rounds + 1):
        mine = run(
            sys.executable, "-c", OURS, '{"name": "fedavg"}', str(root / "ours"), *(f"{each}:100" for each in folders)
        )
        its = run(python, script, str(root / "flower.safetensors"), *(f"{each}/{TENSORS}:100" for each in folders))
        if number:  # the first of each reads what is not in the page cache yet
            ours.append(mine)
            theirs.append(its)
    apart = difference(root / "ours" / TENSORS, root / "flower.safetensors")
    shutil.rmtree(root / "large")
    ratios = [mine["seconds"] / its["seconds"] for mine, its in zip(ours, theirs, strict=True)]
    low, high = interval(ratios)
    peak = max(each["peak_mb"] for each in ours)
    return {
        "seconds": {"ours": [each["seconds"] for each in ours], "flower": [each["seconds"] for each in theirs]},
        "ratios": ratios,
        "ours_s": statistics.median(each["seconds"] for each in ours),
        "flower_s": statistics.median(each["seconds"] for each in theirs),
        "ours_cpu_s": statistics.median(each["cpu_seconds"] for each in ours),
        "flower_cpu_s": statistics.median(each["cpu_seconds"] for each in theirs),
        "flower_average_s": statistics.median(each["average_seconds"] for each in theirs),
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "budget": verdict(low, high, FLOWER_BUDGET),
        "ours_peak_mb": peak,
        "flower_peak_mb": max(each["peak_mb"] for each in theirs),
        "memory_budget": verdict(peak, peak, MEMORY_BUDGET_MB),
        "largest_difference": apart,
    }


def difference(one: Path, other: Path) -> float:
    """Largest difference between two files' values."""
    with AdapterFile(one) as left, AdapterFile(other) as right:
        return max(float(np.abs(left.whole(name) - right.whole(name)).max()) for name in left.tensors)


def exact_layer(root: Path, rounds: int) -> Found:
    """Milliseconds of one layer of the exact average, file to file, of adapters that have as many as a base of 8B."""
    layers = 32
    folders = random_adapters(root / "exact", 8, layers, 4096, 16)
    times: list[float] = []
    worked: list[float] = []
    found: Found = {}
    for _ in range(3 * rounds):
        found = run(
            sys.executable,
            "-c",
            OURS,
            '{"name": "fedavg_exact"}',
            str(root / "exact-out"),
            *(f"{f}:1" for f in folders),
        )
        times.append(1000 * found["seconds"] / layers)
        worked.append(1000 * found["cpu_seconds"] / layers)
    low, high = interval(times)
    shutil.rmtree(root / "exact")
    return {
        "times_ms": times,
        "ms_per_layer": statistics.median(times),
        "cpu_ms_per_layer": statistics.median(worked),
        "low": low,
        "high": high,
        "budget": verdict(low, high, LAYER_BUDGET_MS),
        "peak_mb": found["peak_mb"],
    }


def ways(root: Path, size: int, rounds: int) -> list[Found]:
    """Seconds and error of each way to average the same eight adapters, all of them by turns."""
    modules = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
    folders, counts = [], [1, 2, 3, 4, 5, 6, 7, 8]
    for number, arrays in enumerate(trained(len(counts), modules, size, 16)):
        folder = root / f"t{number}"
        folder.mkdir()
        (folder / CONFIG).write_text(config(16, modules))
        write_tensors(folder / TENSORS, arrays)
        folders.append(folder)
    pairs = [f"{folder}:{count}" for folder, count in zip(folders, counts, strict=True)]
    updates = [
        update_in(folder, worker=f"{n:03}", num_examples=count)
        for n, (folder, count) in enumerate(zip(folders, counts, strict=True))
    ]
    weights = {update.worker: update.num_examples / sum(counts) for update in updates}
    shares = [f"{folder}:{count / sum(counts)}" for folder, count in zip(folders, counts, strict=True)]
    commands = _commands(root, size, folders, pairs, shares)
    costs: dict[str, list[Found]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, (command, _) in commands.items():
            costs[name].append(run(*command))
    return [_way(name, costs[name], updates, weights, into) for name, (_, into) in commands.items()]


def _commands(
    root: Path, size: int, folders: list[Path], pairs: list[str], shares: list[str]
) -> dict[str, tuple[list[str], Path]]:
    """Return by way what is to be run, and where it leaves its adapter."""
    found: dict[str, tuple[list[str], Path]] = {}
    for name, spec in (
        ("tunefleet fedavg", {"name": "fedavg"}),
        ("tunefleet fedavg_exact, rank", {"name": "fedavg_exact"}),
        ("tunefleet fedavg_exact, stack", {"name": "fedavg_exact", "output": "stack"}),
    ):
        out = root / name.replace(" ", "-")
        found[name] = ([sys.executable, "-c", OURS, json.dumps(spec), str(out), *pairs], out)
    out = root / "flower"
    out.mkdir()
    shutil.copy(folders[0] / CONFIG, out / CONFIG)
    files = [f"{folder}/{TENSORS}:{pair.rpartition(':')[2]}" for folder, pair in zip(folders, pairs, strict=True)]
    script = str(ROOT / "bench/peers/flower_average.py")
    flower = [str(interpreter("flower", FLOWER)), script, str(out / TENSORS), *files]
    found["flower aggregate_arrayrecords"] = (flower, out)
    script = str(ROOT / "bench/peers/peft_average.py")
    for way in ("linear", "svd", "cat"):
        out = root / f"peft-{way}"
        found[f"peft {way}"] = ([sys.executable, script, way, str(out), str(size), *shares], out / "mean")
    return found


def _way(name: str, costs: list[Found], updates: list[Update], weights: dict[str, float], into: Path) -> Found:
    """Return what a way has cost, and the error of what it has left."""
    mean = update_in(into)
    measured = product_error(updates, weights, mean).values()
    error = (sum((each.error * each.norm) ** 2 for each in measured) / sum(each.norm**2 for each in measured)) ** 0.5
    times = [float(cost["average_seconds" if "average_seconds" in cost else "seconds"]) for cost in costs]
    low, high = interval(times)
    seconds = {"seconds": statistics.median(times), "low": low, "high": high}
    return {
        "way": name,
        **seconds,
        "peak_mb": max(c["peak_mb"] for c in costs),
        "rank": mean.config.rank,
        "error": error,
    }


def upload(root: Path) -> Found:
    """Bytes of one upload: 32 layers of width 4096, with 8 key and value heads of 128."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(32):
        for name, rows in (("q_proj", 4096), ("k_proj", 1024), ("v_proj", 1024), ("o_proj", 4096)):
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shapes[f"{module}.lora_A.weight"] = (16, 4096)
            shapes[f"{module}.lora_B.weight"] = (rows, 16)
    values = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    found: Found = {}
    for dtype in ("F32", "BF16"):
        write_tensors(root / dtype, values, dtype=dtype)
        found[dtype] = (root / dtype).stat().st_size
    write_int8(root / "int8", values)
    found["int8"] = (root / "int8").stat().st_size
    with AdapterFile(root / "BF16") as file:
        found["bf16_values"] = sum(2 * tensor.size for tensor in file.tensors.values())
    share = found["bf16_values"] / MIB
    found["budget"] = verdict(share, share, UPLOAD_BUDGET_MIB)
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    parser.add_argument("--figure", type=Path, help="write the figure of the documents there, and nothing else")
    options = parser.parse_args()
    if options.figure is not None:
        options.figure.write_text(drawing(errors_by_steps()), encoding="utf-8")
        return 0
    rounds = 3 if options.quick else 9
    with tempfile.TemporaryDirectory(prefix="aggregate-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        before = os.getloadavg()[0]
        found: Found = {
            "files": said("ten adapters, file to file", file_to_file(root, rounds)),
            "exact": said("the exact average", exact_layer(root, rounds)),
            "ways": said("its error beside others", ways(root, 512 if options.quick else 2048, rounds)),
            "upload": upload(root),
        }
        found["load"] = [before, os.getloadavg()[0]]
    written(found, quick=options.quick, file=options.json)
    return report(found)


def written(found: Found, *, quick: bool, file: Path | None) -> None:
    """Write what was found for the page of benchmarks."""
    told = Report("aggregate", quick=quick)
    files, exact, flower = found["files"], found["exact"], version_of(interpreter("flower", FLOWER), "flwr")
    taken, count = files["seconds"], len(files["ratios"])
    low, high = interval(files["ratios"])
    told.row(
        "average of ten adapters of 100 MB, file to file (ratio: Flower's time ÷ ours; budget 4)",
        Figure.of(taken["ours"], "s"), Peer.of("Flower", flower, taken["flower"], "s"),
        ratio=Ratio(1 / files["ratio"], 1 / high, 1 / low), budget=BUDGETS["average"],
        verdict=decided(files["budget"]), samples=count,
        note=f"Flower's average alone, without files: {files['flower_average_s']:.3f} s",
    )  # fmt: skip
    told.row(
        "peak memory of that (budget 100 MB)", Figure.exactly(files["ours_peak_mb"], "MB"),
        Peer.of("Flower", flower, [float(files["flower_peak_mb"])], "MB"), budget=BUDGETS["average"],
        verdict=decided(files["memory_budget"]), samples=count,
    )  # fmt: skip
    told.row(
        "exact average, eight adapters of rank 16, 4096 × 4096 weights, file to file, per layer of 32 (budget 10 ms)",
        Figure.of(exact["times_ms"], "ms"), budget=BUDGETS["exact"], verdict=decided(exact["budget"]),
        samples=len(exact["times_ms"]), note=f"{exact['cpu_ms_per_layer']:.1f} ms of processors",
    )  # fmt: skip
    ours = next(way for way in found["ways"] if way["way"] == "tunefleet fedavg_exact, rank")
    for way in found["ways"]:
        if way is not ours:
            by = {"flower": flower, "peft": version_here("peft")}.get(way["way"].partition(" ")[0], "")
            peer = Peer(way["way"], by, way["seconds"], way["low"], way["high"], "s")
            told.row(
                "exact average of rank 16 of eight trained adapters, two layers, compared with other ways",
                Figure(ours["seconds"], ours["low"], ours["high"], "s"), peer, samples=count,
                note=f"error {ours['error']:.1e} at rank {ours['rank']}; this way {way['error']:.1e} at {way['rank']}",
            )  # fmt: skip
    told.row(
        "upload of rank 16 on q, k, v, o of an 8B model, bf16",
        Figure.exactly(found["upload"]["bf16_values"] / MIB, "MiB"),
    )
    told.write(file)


def report(found: Found) -> int:
    """Print all figures with their budgets; returns the exit status."""
    files, exact, sent = found["files"], found["exact"], found["upload"]
    verdicts = [files["budget"], files["memory_budget"], exact["budget"], sent["budget"]]
    print("Ten adapters of 100 MB, file to file, medians:", flush=True)
    for name, key in (("ours", "ours"), ("Flower", "flower")):
        peak, worked = files[f"{key}_peak_mb"], files[f"{key}_cpu_s"]
        print(f"  {name:<7} {files[f'{key}_s']:6.3f} s, {worked:5.2f} s of processors, peak {peak:5} MB")
    print(f"  Flower's average alone, without files: {files['flower_average_s']:.3f} s")
    print(f"  ours ÷ Flower {files['ratio']:.3f}, 95 % {files['low']:.3f} to {files['high']:.3f}")
    print(f"  budget {FLOWER_BUDGET}: {files['budget']}; {MEMORY_BUDGET_MB:.0f} MB: {files['memory_budget']}")
    print(f"  largest difference between the two: {files['largest_difference']:.1e}")
    print("Exact average of 8 adapters of rank 16 on 4096 × 4096 weights, file to file:")
    print(f"  {exact['ms_per_layer']:.1f} ms a layer, 95 % {exact['low']:.1f} to {exact['high']:.1f}", end="")
    print(f"; {exact['cpu_ms_per_layer']:.1f} ms of processors")
    print(f"  budget {LAYER_BUDGET_MS:.0f}: {exact['budget']}")
    print("Eight adapters trained apart, two layers, error against the weighted sum of products:")
    for way in found["ways"]:
        print(
            f"  {way['way']:<30} {way['seconds']:8.3f} s ({way['low']:.3f} to {way['high']:.3f})  "
            f"{way['peak_mb']:5} MB  rank {way['rank']:>4}  error {way['error']:.1e}"
        )
    sizes = ", ".join(f"{name} {sent[key] / MIB:.2f}" for name, key in SIZES)
    print("Upload of rank 16 on q, k, v, o of an 8B model, MiB:")
    print(f"  {sizes}; budget {UPLOAD_BUDGET_MIB:.0f} of values in bf16: {sent['budget']}")
    before, after = found["load"]
    print(f"Load of the machine before {before:.1f}, after {after:.1f}; above 2 others were at work.")
    return status(*verdicts)


if __name__ == "__main__":
    sys.exit(main())
