"""Does a federation learn? Four workers with one-sided rows: together, each alone, and on all rows in one place.

    make federated-demo                              # all of it; under ten minutes on two quiet cores
    python examples/federated/prove.py --quick       # one seed and few steps; two minutes
    python examples/federated/prove.py --no-faults   # the comparison alone

Table, figure, logs and the workers' files are written to `--out`. Exits with 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path

from faults import crashes, poison
from federation import Federation, Stage
from figure import draw
from findings import Measured, as_markdown, claims_of_errors, claims_of_losses, table, write_csv
from parts import WORKERS
from plan import Regime
from processes import Crew, Server

FEDERATION, PLAIN = "federation, exact average", "federation, plain average"
POOLED, POOLED_WIDE = "pooled, equal steps", "pooled, equal rows"
STRATEGIES = {FEDERATION: "fedavg_exact", PLAIN: "fedavg"}
ALONE = {f"{worker} alone": worker for worker in WORKERS}
ALONE_WIDE = {f"{worker} alone, equal rows": worker for worker in WORKERS}
ROWS, QUICK_ROWS = 256, 64
"""The number of held-out rows."""
QUICK = Regime(steps=36, sync_every_steps=12)
Errors = Mapping[int, Sequence[tuple[float, float]]]


def apart(stage: Stage, seed: int, *, wide: bool) -> dict[str, Future[Path]]:
    """Start the arms that need no server; returns their adapters.

    Args:
        stage: Where.
        seed: Of all of them.
        wide: Let each worker alone also train on as many rows a step as all workers together have.
    """
    regime, out = stage.regime, stage.out / f"seed-{seed}"
    wider = replace(regime, batch_size=len(WORKERS) * regime.batch_size)
    found = {arm: stage.crew.submit("alone", each, regime, seed, out / arm) for arm, each in ALONE.items()}
    if wide:
        found |= {arm: stage.crew.submit("alone", each, wider, seed, out / arm) for arm, each in ALONE_WIDE.items()}
    found[POOLED] = stage.crew.submit("pooled", regime, seed, out / POOLED)
    if regime != QUICK:
        found[POOLED_WIDE] = stage.crew.submit("pooled", wider, seed, out / POOLED_WIDE)
    return found


def together(stage: Stage, seed: int, *, plain: bool) -> tuple[dict[str, Path], list[tuple[float, float]]]:
    """Run the federations.

    Returns:
        Their last versions; and of each round the errors of the exact average and of the plain one of its updates.
    """
    finals: dict[str, Path] = {}
    errors: list[tuple[float, float]] = []
    for arm, strategy in STRATEGIES.items():
        if arm == PLAIN and not plain:
            continue
        spec = {"participants": WORKERS, "min_workers": len(WORKERS)}
        made = Federation(stage, f"{strategy}-{seed}", strategy, seed, stage.regime.rounds, spec)
        made.run(WORKERS)
        finals[arm] = made.version(stage.regime.rounds)
        if arm == FEDERATION:
            errors = [made.errors(number + 1) for number in range(stage.regime.rounds)]
    return finals, errors


def compare(stage: Stage, seeds: Sequence[int], *, wide: bool, plain: bool) -> tuple[dict[str, Measured], Errors]:
    """Train every arm with every seed, and measure it on the held-out rows; returns the losses, and errors by seed."""
    trained = {seed: apart(stage, seed, wide=wide) for seed in seeds}
    errors: dict[int, list[tuple[float, float]]] = {}
    measured: dict[str, dict[int, Future[list[tuple[float, int]]]]] = defaultdict(dict)
    for seed in seeds:
        finals, errors[seed] = together(stage, seed, plain=plain)
        for arm, adapter in finals.items():
            measured[arm][seed] = stage.crew.submit("measure", adapter, stage.rows)
    for seed in seeds:
        for arm, future in trained[seed].items():
            measured[arm][seed] = stage.crew.submit("measure", future.result(), stage.rows)
    return {arm: {seed: each.result() for seed, each in found.items()} for arm, found in measured.items()}, errors


def main() -> int:
    """Run the proof; returns 0 if all claims hold."""
    options = _options()
    began = time.monotonic()
    options.out.mkdir(parents=True)
    regime = QUICK if options.quick else Regime()
    rows, seeds = (QUICK_ROWS, range(1)) if options.quick else (ROWS, range(options.seeds))
    with Server(options.out / "server") as server, Crew(options.out / "logs") as crew:
        stage = Stage(server, crew, regime, options.out, rows)
        start = crew.submit("measure", None, rows)
        arms, errors = compare(stage, seeds, wide=options.equal_rows, plain=not options.quick)
        lines = table(arms, FEDERATION)
        print(as_markdown(lines), flush=True)
        claims = [*claims_of_losses(lines, list(ALONE)), *claims_of_errors(errors)]
        if options.faults:
            claims += [*crashes(stage, arms[FEDERATION][0]), *poison(stage, start.result())]
    for claim in claims:
        print(f"{'holds' if claim.holds else 'FAILS'}  {claim.text}")
    write_csv(lines, options.out / "losses.csv")
    draw(lines, errors, options.out / "proof.png")
    found = {"losses": {line.arm: line.losses for line in lines}, "errors": errors, "claims": list(map(asdict, claims))}
    (options.out / "proof.json").write_text(json.dumps(found, indent=1))
    print(f"Done in {time.monotonic() - began:.0f} s; table, figure and all files are in {options.out}.")
    return 0 if all(claim.holds for claim in claims) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("federated-demo", time.strftime("%Y%m%d-%H%M%S")))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--equal-rows", action="store_true", help="also each alone with as many rows as all four")
    parser.add_argument("--no-faults", dest="faults", action="store_false", help="nobody is killed, nobody lies")
    parser.add_argument("--quick", action="store_true", help="one seed, few steps, few held-out rows")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
