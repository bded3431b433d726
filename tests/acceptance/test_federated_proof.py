"""The proof in examples/federated that a federation learns: its short form, all faults included, and its arithmetic.

Real processes over real HTTP; a claim that does not hold ends the program with 1.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.libraries import required

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "federated"
WORKERS = ("ada", "ben", "cleo", "dan")
FEDERATION = "federation, exact average"


class Proof:
    """A run of the program, and what it left."""

    def __init__(self, out: Path, *options: str) -> None:
        command = [sys.executable, str(FOLDER / "prove.py"), "--out", str(out), *options]
        self.out = out
        self.done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (out / "proof.json").exists(), self.done.stderr[-4000:]
        found = json.loads((out / "proof.json").read_text())
        self.losses: dict[str, list[float]] = found["losses"]
        self.errors: dict[str, list[list[float]]] = found["errors"]
        self.claims: list[dict[str, Any]] = found["claims"]

    def claim(self, words: str) -> str:
        """Return the one claim that has these words; it must hold."""
        (found,) = (each for each in self.claims if words in each["text"])
        assert found["holds"], found["text"]
        text: str = found["text"]
        return text


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    required("trl")
    return Proof(tmp_path_factory.mktemp("proof") / "out", "--quick")


@pytest.fixture(scope="module")
def findings() -> ModuleType:
    spec = importlib.util.spec_from_file_location("findings", FOLDER / "findings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.proof
@pytest.mark.torch
@pytest.mark.proof
@pytest.mark.timeout(900)
class TestShortForm:
    """One run, of which each test looks at one side."""

    def test_the_federation_beats_each_of_its_workers(self, proof: Proof) -> None:
        (together,) = proof.losses[FEDERATION]
        for worker in WORKERS:
            (alone,) = proof.losses[f"{worker} alone"]
            assert together < alone < 6, f"{worker} learns, and the federation learns more"
            mean, error = map(float, re.findall(r"([\d.]+) ± ([\d.]+)", proof.claim(f"beats {worker} alone"))[0])
            assert mean > 2 * error > 0

    def test_the_exact_average_is_nearer_to_the_products_than_the_plain_one(self, proof: Proof) -> None:
        proof.claim("nearer to the average of the products")
        (rounds,) = proof.errors.values()
        assert len(rounds) == 3
        assert all(0 < exact < plain < 1 for exact, plain in rounds)

    def test_processes_that_are_killed_change_nothing_of_the_outcome(self, proof: Proof) -> None:
        assert re.search("which it left (aggregating|publishing)", proof.claim("server was killed"))
        assert "{'ada': 72, 'ben': 72, 'cleo': 72, 'dan': 72}" in proof.claim("no row is lost or counts twice")
        proof.claim("from the one without")

    def test_nonsense_is_refused_by_name(self, proof: Proof) -> None:
        assert "lora_B.weight' is not finite" in proof.claim("refused by name")

    def test_a_poisoned_update_ruins_the_plain_average_and_not_the_robust_one(self, proof: Proof) -> None:
        before, plain = map(float, re.findall(r"([\d.]+) → ([\d.]+)", proof.claim("worse than no training"))[0])
        same, robust = map(float, re.findall(r"([\d.]+) → ([\d.]+)", proof.claim("multi_krum learns"))[0])
        assert same == before
        assert robust + 1 < before < plain
        assert "['mallory']" in proof.claim("leaves mallory out")

    def test_it_ends_well_and_leaves_a_table_and_a_figure(self, proof: Proof) -> None:
        assert proof.done.returncode == 0, proof.done.stdout
        assert all(claim["holds"] for claim in proof.claims)
        assert len(proof.claims) == 12
        table = [line for line in proof.done.stdout.splitlines() if line.startswith("|")]
        assert len(table) == 2 + len(proof.losses) == 8
        rows = (proof.out / "losses.csv").read_text().splitlines()
        assert len(rows) == 1 + len(proof.losses)
        assert (proof.out / "proof.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.proof
@pytest.mark.torch
@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_the_whole_proof_with_three_seeds(tmp_path: Path) -> None:
    required("trl")
    whole = Proof(tmp_path / "out")
    assert whole.done.returncode == 0, whole.done.stdout
    assert all(len(losses) == 3 for losses in whole.losses.values())


def test_the_standard_error_over_rows_is_that_of_a_ratio(findings: ModuleType) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 200, 400)
    base = rng.normal(3, 1, 400)
    apart = rng.normal(0.1, 0.3, 400)
    higher = {0: list(zip(tokens * (base + apart), tokens, strict=True))}
    lower = {0: list(zip(tokens * base, tokens, strict=True))}
    found = findings.difference(higher, lower)
    assert found.mean == pytest.approx((tokens * apart).sum() / tokens.sum())
    assert math.isnan(found.of_seeds)
    assert found.error == found.of_rows
    drawn = rng.integers(0, 400, (4000, 400))
    bootstrap = ((tokens * apart)[drawn].sum(axis=1) / tokens[drawn].sum(axis=1)).std()
    assert found.of_rows == pytest.approx(bootstrap, rel=0.05)


def test_seeds_and_rows_both_make_a_difference_uncertain(findings: ModuleType) -> None:
    tokens = [10, 10]
    lower = {seed: [(20.0, count) for count in tokens] for seed in range(3)}
    higher = {seed: [(20.0 + 10 * by, count) for count in tokens] for seed, by in enumerate((0.1, 0.2, 0.3))}
    found = findings.difference(higher, lower)
    assert found.mean == pytest.approx(0.2)
    assert found.of_rows == pytest.approx(0)
    assert found.of_seeds == pytest.approx(0.1 / 3**0.5)
    uneven = {seed: [(20.0 + 4, 10), (20.0, 10)] for seed in range(3)}
    found = findings.difference(uneven, lower)
    assert (found.mean, found.of_seeds) == (pytest.approx(0.2), pytest.approx(0))
    assert found.of_rows == pytest.approx(0.2)
    assert found.errors == pytest.approx(1)


def test_a_claim_that_does_not_hold_is_told(findings: ModuleType) -> None:
    arms = {
        "federation": {0: [(20.0, 10), (10.0, 10)]},
        "ada alone": {0: [(21.0, 10), (9.5, 10)]},
        "ben alone": {0: [(22.0, 10), (12.1, 10)]},
    }
    lines = findings.table(arms, "federation")
    held = {
        claim.text.split()[3]: claim.holds for claim in findings.claims_of_losses(lines, ["ada alone", "ben alone"])
    }
    assert held == {"ada": False, "ben": True}
    (claim,) = findings.claims_of_errors({0: [(0.1, 0.2), (0.05, 0.04)]})
    assert not claim.holds
    (claim,) = findings.claims_of_errors({0: [(0.1, 0.2), (0.03, 0.04)]})
    assert claim.holds
