"""The page of benchmarks is what the results give, and a benchmark that fails is named."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.benchmarks import __main__ as command
from scripts.benchmarks import page
from scripts.benchmarks.catalogue import BENCH, BUDGETED, CATALOGUE, MAY_BE_MISSED, budget_words

WORDS = budget_words()
MACHINE = {
    "processor": "a processor", "cores": 2, "memory_gib": 8, "system": "Linux 6", "python": "3.11", "sqlite": "3.40",
    "fsync_ms": 0.5,
}  # fmt: skip
RUN = {
    "source": "a-b", "commit": "c0ffee", "version": "1.0", "at": "2026-01-02T03:04:05+00:00", "took_s": 60,
    "others_percent": 40, "machine": MACHINE,
}  # fmt: skip


def row(name: str, verdict: str, what: str = "tasks") -> dict[str, Any]:
    spread = {"low": 1.0, "median": 2.0, "high": 3.0}
    peer = {"name": "Celery", "version": "5.7.0", **spread, "unit": "1/s"}
    return {
        "what": what, "ours": {**spread, "unit": "1/s"}, "peer": peer, "ratio": spread, "budget": WORDS[name],
        "verdict": verdict, "samples": 5, "note": "a note",
    }  # fmt: skip


def result(*rows: dict[str, Any]) -> page.Found:
    return {"dispatch": {"benchmark": "dispatch", "quick": False, "rows": list(rows), "series": [], "run": RUN}}


def test_the_page_is_what_the_results_give() -> None:
    assert command.check() == []


def test_every_benchmark_and_every_budget_is_known() -> None:
    names = {path.stem for path in BENCH.glob("[a-z]*.py")}
    assert names <= {one.name for one in CATALOGUE}
    assert BUDGETED.keys() == WORDS.keys() > MAY_BE_MISSED


def test_a_broken_budget_must_be_explained_and_an_explanation_must_be_true() -> None:
    broken = result(row("dispatch", "kept"), row("dispatch", "BROKEN"))
    (told,) = page.faults(broken, {})
    assert "does not say why" in told
    assert page.faults(broken, {WORDS["dispatch"]: "because"}) == []
    (told,) = page.faults(result(row("dispatch", "kept")), {WORDS["dispatch"]: "because"})
    assert "kept now" in told
    (told,) = page.faults({}, {"something else": "because"})
    assert "no budget" in told


def test_no_explanation_excuses_what_must_be_kept() -> None:
    for verdict in ("BROKEN", "undecided"):
        (told,) = page.faults(result(row("losses", verdict)), {WORDS["losses"]: "because"})
        assert f"is {verdict}, and must be kept" in told


def test_the_page_shows_figures_verdicts_circumstances_and_reasons() -> None:
    said = page.missed(f"# Title\n\nWords.\n\n## {WORDS['dispatch']}\n\nThe *cause*.\n")
    text = page.render(result(row("dispatch", "BROKEN"), row("dispatch", "kept", "others")), said)
    assert "| tasks [1] | 2.00 [1.00, 3.00] 1/s | Celery 5.7.0 | 2.00 [1.00, 3.00] 1/s |" in text
    assert "**BROKEN**" in text
    assert "other processes used 40 % of the CPU" in text
    assert f"### {WORDS['dispatch']}\n\nThe *cause*.\n" in text
    assert text.count("**not measured**") == len(WORDS) - 1


def test_a_broken_budget_without_a_reason_is_not_called_met() -> None:
    assert "The reason is not documented yet." in page.render(result(row("dispatch", "BROKEN")), {})


def test_a_name_that_is_none_is_refused() -> None:
    assert [one.name for one in page.names(["rounds", "dispatch"])] == ["dispatch", "rounds"]
    assert "scale" not in [one.name for one in page.names([])]
    with pytest.raises(LookupError, match="No benchmark nothing"):
        page.names(["nothing"])
