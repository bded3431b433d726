"""The comparison under faults: a killed worker, a server killed during averaging, workers that send invalid updates."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from federation import Federation, Stage
from findings import Claim, per_token
from parts import WORKERS

KILLED = "cleo"
LIAR = "mallory"
POISON = -20.0
PATIENCE_S = 600.0
LIMIT = 1e-4
"""Nats a token by which an interrupted training may differ: none of its steps is lost, and none counts twice."""
UNFINISHED = ("aggregating", "publishing")
Losses = Sequence[tuple[float, int]]


def crashes(stage: Stage, undisturbed: Losses) -> list[Claim]:
    """Kill a worker, kill the server during averaging, and let a worker send NaN values.

    Args:
        stage: Where.
        undisturbed: What the first seed's federation came to, which had no faults.

    Returns:
        Claims, the last of which is that nothing of it shows in the outcome.
    """
    rounds = stage.regime.rounds
    made = Federation(stage, "crashes", "fedavg_exact", 0, rounds, {"min_workers": len(WORKERS)})
    for worker in WORKERS:
        made.start(worker)
    _await_checkpoint(made)
    made.processes[KILLED].kill()
    made.processes[KILLED].join()
    refused = stage.crew.submit("nonsense", LIAR, made.address, made.version(1), made.folder / LIAR).result() or ""
    made.start(KILLED)
    left_in = _kill_server_as_it_averages(stage, rounds - 1)
    made.wait(WORKERS)
    final = stage.crew.submit("measure", made.version(rounds), stage.rows).result()
    apart = abs(per_token(final) - per_token(undisturbed))
    rows = Counter[str]()
    for number in range(rounds):
        rows.update({each.worker: each.num_examples for each in made.reported(number + 1).contributions})
    trained_on = stage.regime.steps * stage.regime.batch_size
    return [
        Claim(f"values that are no numbers are refused by name: {refused}", "lora_B.weight" in refused),
        Claim(f"the server was killed as it averaged a round, which it left {left_in}", left_in in UNFINISHED),
        Claim(
            f"{KILLED} was killed and started again, and no row is lost or counts twice: {dict(rows)}",
            rows == dict.fromkeys(WORKERS, trained_on),
        ),
        Claim(f"the federation with faults ends {apart:.6f} nats a token from the one without", apart < LIMIT),
    ]


def poison(stage: Stage, start: Losses) -> list[Claim]:
    """Let a fifth worker send its update inverted and enlarged: a robust rule withstands it, the plain average fails.

    Args:
        stage: Where.
        start: What the model is before any training.
    """
    # Half of the rounds are enough to show it.
    rounds = max(1, stage.regime.rounds // 2)
    stage = replace(stage, regime=replace(stage.regime, steps=rounds * stage.regime.sync_every_steps))
    losses: dict[str, float] = {}
    left_out: dict[str, list[str]] = {}
    everybody = (*WORKERS, LIAR)
    for strategy in ("fedavg", "multi_krum"):
        spec = {"participants": everybody, "min_workers": len(everybody)}
        made = Federation(stage, f"poison-{strategy}", strategy, 0, rounds, spec)
        for worker in WORKERS:
            made.start(worker)
        made.start(LIAR, rows_of=WORKERS[0], factor=POISON)
        made.wait(everybody)
        losses[strategy] = per_token(stage.crew.submit("measure", made.version(rounds), stage.rows).result())
        left_out[strategy] = [", ".join(made.reported(number + 1).report["excluded"]) for number in range(rounds)]
    before, plain, robust = per_token(start), losses["fedavg"], losses["multi_krum"]
    return [
        Claim(f"poisoned, the plain average is worse than no training: {before:.3f} → {plain:.3f}", plain > before),
        Claim(f"poisoned, multi_krum learns: {before:.3f} → {robust:.3f}", robust < before - 1),
        Claim(
            f"multi_krum leaves {LIAR} out of each round: {left_out['multi_krum']}",
            left_out["multi_krum"] == [LIAR] * rounds,
        ),
    ]


def _await_checkpoint(made: Federation) -> None:
    """Wait until the worker to be killed has a checkpoint, which it has after the first average."""
    deadline = time.monotonic() + PATIENCE_S
    while not any((made.folder / KILLED).glob("checkpoint-*/trainer_state.json")):
        if time.monotonic() > deadline:
            raise SystemExit(f"{KILLED} wrote no checkpoint within {PATIENCE_S:.0f} s: see its log.")
        time.sleep(0.05)


def _kill_server_as_it_averages(stage: Stage, tries: int) -> str | None:
    """Kill it and start it again; repeated if the average was finished before the kill."""
    left_in = None
    for _ in range(tries):
        left_in = stage.server.kill_in_aggregation(PATIENCE_S)
        stage.server.start()
        if left_in in UNFINISHED:
            break
    return left_in
