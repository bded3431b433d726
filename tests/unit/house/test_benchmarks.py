"""The page of benchmarks is what the results give, and a benchmark that fails is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import __main__ as command
from scripts.benchmarks import machine, page, running
from scripts.benchmarks.catalogue import BENCH, BUDGETED, CATALOGUE, MAY_BE_MISSED, Benchmark, budget_words

WORDS = budget_words()
MACHINE = {
    "processor": "a processor", "cores": 2, "memory_gib": 8, "system": "Linux 6", "python": "3.11", "sqlite": "3.40",
    "fsync_ms": 0.5,
}  # fmt: skip
RUN = {
    "source": "a-b", "commit": "c0ffee", "version": "1.0", "at": "2026-01-02T03:04:05+00:00", "took_s": 60,
    "others_percent": 40, "machine": MACHINE,
}  # fmt: skip
WRITES = """
import json, sys
from pathlib import Path
Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(
    {"benchmark": "one", "quick": "--quick" in sys.argv, "rows": [], "series": []}))
with open(__file__ + ".runs", "a") as file:
    file.write("x")
"""


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
    assert "others took 40 % of the processors" in text
    assert f"### {WORDS['dispatch']}\n\nThe *cause*.\n" in text
    assert text.count("**not measured**") == len(WORDS) - 1


def test_a_broken_budget_without_a_reason_is_not_called_met() -> None:
    assert "The reason is not written yet." in page.render(result(row("dispatch", "BROKEN")), {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Benchmarks of the test's own, on a machine that is never waited for."""
    monkeypatch.setattr(running, "BENCH", tmp_path)
    monkeypatch.setattr(running, "LOOK_S", 0.01)
    monkeypatch.setattr(machine, "source", lambda *_: "tree-blob")
    return tmp_path


def measure(folder: Path, code: str, *, limit_s: float = 120.0, force: bool = False) -> str | None:
    (folder / "one.py").write_text(code)
    one = Benchmark("one", "A test.", limit_s)
    return running.run(one, folder, quick=False, force=force, patience_s=0)


def test_a_result_is_kept_and_not_measured_again_unless_it_is_forced(folder: Path) -> None:
    runs = folder / "one.py.runs"
    assert measure(folder, WRITES) is None
    found = json.loads((folder / "one.json").read_text())
    assert found["run"]["source"] == "tree-blob"
    assert measure(folder, WRITES) is None
    assert runs.read_text() == "x"
    assert measure(folder, WRITES, force=True) is None
    assert runs.read_text() == "xx"


def test_a_failure_says_what_went_wrong_and_leaves_the_last_result(folder: Path) -> None:
    assert measure(folder, WRITES) is None
    before = (folder / "one.json").read_text()
    assert measure(folder, "raise SystemExit(3)", force=True) == "ended with 3 and no result"
    told = measure(folder, "import time; time.sleep(600)", limit_s=1.0, force=True)
    assert told == "was ended after 1 s"
    assert (folder / "one.json").read_text() == before


def test_a_limit_of_its_own_that_is_broken_is_told_and_its_result_is_kept(folder: Path) -> None:
    told = measure(folder, f"{WRITES}\nsys.exit(1)")
    assert told is not None
    assert "a limit of its own is broken" in told
    assert (folder / "one.json").exists()


def test_a_name_that_is_none_is_refused() -> None:
    assert [one.name for one in page.names(["rounds", "dispatch"])] == ["dispatch", "rounds"]
    assert "scale" not in [one.name for one in page.names([])]
    with pytest.raises(LookupError, match="No benchmark nothing"):
        page.names(["nothing"])
