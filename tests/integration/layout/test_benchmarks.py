"""A benchmark runs as a process; its result is kept, and its failure is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.benchmarks import machine, running
from scripts.benchmarks.catalogue import Benchmark

WRITES = """
import json, sys
from pathlib import Path
Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(
    {"benchmark": "one", "quick": "--quick" in sys.argv, "rows": [], "series": []}))
with open(__file__ + ".runs", "a") as file:
    file.write("x")
"""


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
