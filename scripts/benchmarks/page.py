"""The page of benchmarks, written from what was found: `docs/benchmarks.md`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from scripts.benchmarks.catalogue import BUDGETED, CATALOGUE, MAY_BE_MISSED, Benchmark, budget_words

Found = dict[str, dict[str, Any]]
_SECTION: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_WORST: Final = ("BROKEN", "undecided", "kept")
_LIBRARIES: Final = ("python", "sqlite", "torch", "transformers", "peft")
HEAD: Final = """# Benchmarks

`make bench` generates this page from `bench/results/`; do not edit it. Each figure is a median with its 95 % confidence
interval in brackets. Tunefleet and its peers are measured in the same run, taking turns. Unless a row says otherwise, a
ratio is our result divided by the peer's, and its interval is computed over pairs from the same turn. "undecided" means
that the interval includes the budget, because the machine was too noisy for the number of turns.
"""
REPEAT: Final = """## Run the benchmarks

```
make bench                          # all but `scale`, about two hours on an otherwise idle machine
make bench ONLY="dispatch rounds"   # some of them
make bench QUICK=1                  # check that they run; nothing is published
make bench FORCE=1                  # repeat what this machine has already measured for this source
```

The first run installs each peer into its own environment (`.venv-bench-*`). Benchmarks run one after the other, each
with a time limit. Before each one, the runner waits until the machine is idle; if it stays busy, a note below the table
says so. If you interrupt a run, the next one continues where it stopped and does not repeat what this machine has
already measured for the same source.
"""


SWEEPS: Final = """## Sweeps: ASHA and a grid

Measured by a proof (`tests/integration/sweeps/test_sweep_figures.py`), with no peer: twelve candidates (six learning
rates, two LoRA ranks) for the built-in model, 81 steps and nine evaluations each, two at the same time. ASHA has a
reduction factor of 3. Each seed is another order of the same candidates, one run each.

| what | best eval loss | steps | of the grid's | complete trials |
|---|---|---|---|---|
| grid | 0.3577 | 972 | – | 12 |
| ASHA, seed 0 | 0.3577 | 316 | 33% | 2 |
| ASHA, seed 1 | 0.3577 | 593 | 61% | 6 |
| ASHA, seed 2 | 0.3577 | 496 | 51% | 4 |

All find the grid's best candidate. The target of 40% of the steps is met by one of three: **missed**, with a median of
51%. Likely causes: Optuna's ASHA cannot pause a trial and promote it later, so a trial that is better than those before
it goes on, and with twelve candidates the order decides how many do. A pruned trial also trained 3 to 12 steps past its
rung: an evaluation is judged once a second, and a step of this model takes a fraction of one.
"""
ABSENT: Final = """## Tools that are not compared

- NVFlare's simulator, for rounds with updates over 1 MiB or with more than ten clients: a single turn takes minutes.
- A stream of several interleaved datasets, for exactness: a Tunefleet run reads a single dataset. A campaign that mixes
  datasets writes the mix to one dataset before training, so that it can be read by index.
- Axolotl's dynamic checkpoint, for callbacks: it only checks for a file. The Trainer's own checkpoint on a signal
  represents this approach.
"""


def load(folder: Path) -> Found:
    """Read the results in a folder, in the order of the catalogue."""
    files = ((one.name, folder / f"{one.name}.json") for one in CATALOGUE)
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files if file.exists()}


def missed(text: str) -> dict[str, str]:
    """Split `bench/missed.md` by its second headings: words of a budget → what is said of it."""
    parts = _SECTION.split(text)[1:]
    return {words.strip(): said.strip() for words, said in zip(parts[::2], parts[1::2], strict=True)}


def verdict_of(found: Found, words: str) -> str | None:
    """Return the worst verdict of a budget's rows; None if none was measured."""
    verdicts = {row["verdict"] for result in found.values() for row in result["rows"] if row["budget"] == words}
    return next((each for each in _WORST if each in verdicts), None)


def broken(found: Found) -> list[str]:
    """Return the words of the budgets that are broken."""
    return [words for words in budget_words().values() if verdict_of(found, words) == "BROKEN"]


def faults(found: Found, said: dict[str, str]) -> list[str]:
    """Return what is wrong between what was found and what is said to be missed."""
    known = budget_words()
    verdicts = {words: verdict_of(found, words) for words in known.values()}
    names = {words: name for name, words in known.items()}
    told = []
    for words, verdict in verdicts.items():
        if verdict == "BROKEN" and words not in said:
            told.append(f"The budget of {words!r} is broken, and bench/missed.md does not say why.")
        if verdict in {"BROKEN", "undecided"} and names[words] not in MAY_BE_MISSED:
            told.append(f"The budget of {words!r} is {verdict}, and must be kept: no slow processor excuses it.")
    for words in said:
        if words not in verdicts:
            told.append(f"bench/missed.md speaks of {words!r}, which is no budget.")
        elif verdicts[words] == "kept":
            told.append(f"bench/missed.md speaks of {words!r}, which is kept now: take it out.")
    return told


def unmeasured(found: Found) -> list[str]:
    """Return the budgets that no result is about."""
    return [words for words in budget_words().values() if verdict_of(found, words) is None]


def render(found: Found, said: dict[str, str], *, pictures: str = "img/benchmarks") -> str:
    """Write the page.

    Args:
        found: By benchmark, what its run has left.
        said: Of the budgets that are missed, why.
        pictures: Where the plots lie, as the page sees them.
    """
    parts = [HEAD, *_machine(found), *_budgets(found)]
    for one in CATALOGUE:
        parts += _benchmark(one, found.get(one.name), pictures)
    parts += [SWEEPS, REPEAT, ABSENT]
    parts.append("## Missed budgets\n")
    told = {words: "The reason is not documented yet." for words in broken(found)} | said
    parts += [f"### {words}\n\n{text}\n" for words, text in told.items()]
    if found and not told:
        parts.append("All measured budgets are met or undecided.\n")
    return "\n".join(parts)


def _machine(found: Found) -> Iterator[str]:
    yield "## Machine and versions\n"
    if not found:
        yield "There are no measurements yet.\n"
        return
    machines: list[dict[str, Any]] = []
    for result in found.values():
        one = {key: value for key, value in result["run"]["machine"].items() if key != "fsync_ms"}
        if one not in machines:
            machines.append(one)
    syncs = [result["run"]["machine"]["fsync_ms"] for result in found.values()]
    for one in machines:
        told = ", ".join(f"{name} {one[name]}" for name in _LIBRARIES if name in one)
        yield f"{one['processor']}, {one['cores']} cores, {one['memory_gib']} GiB, {one['system']}; {told}.\n"
    low, high = min(syncs), max(syncs)
    yield f"A synced write of 4 KiB takes {_number(low)} to {_number(high)} ms.\n"
    runs = [result["run"] for result in found.values()]
    ours = sorted({run["version"] for run in runs} | {f"commit {run['commit']}" for run in runs})
    days = sorted({run["at"][:10] for run in runs})
    peers = sorted({f"{peer['name'].partition(',')[0]} {peer['version']}" for peer in _peers(found) if peer["version"]})
    yield f"Tunefleet {', '.join(ours)}; measured {' to '.join(dict.fromkeys((days[0], days[-1])))}.\n"
    if peers:
        yield f"Peers: {'; '.join(peers)}.\n"


def _peers(found: Found) -> Iterator[dict[str, Any]]:
    for result in found.values():
        yield from (row["peer"] for row in result["rows"] if row["peer"])


def _budgets(found: Found) -> Iterator[str]:
    yield "## Budgets\n"
    yield "| what | budget | found | status | measured by |"
    yield "|---|---|---|---|---|"
    for name, words in budget_words().items():
        rows = [
            (benchmark, row)
            for benchmark, result in found.items()
            for row in result["rows"]
            if row["budget"] == words
        ]  # fmt: skip
        verdict = verdict_of(found, words) or "not measured"
        figures = "<br>".join(f"{_cell(row['what'])}: {_found(row)}" for _, row in rows) or "–"
        by = ", ".join(dict.fromkeys(f"`bench/{benchmark}.py`" for benchmark, _ in rows)) or "–"
        yield f"| {_cell(words)} | {BUDGETED[name]} | {figures} | **{verdict}** | {by} |"
    yield ""


def _found(row: dict[str, Any]) -> str:
    ratio = f", ratio {_spread(row['ratio'])}" if row["ratio"] else ""
    peer = f" ÷ {_cell(row['peer']['name'])}" if row["ratio"] else ""
    return f"{_spread(row['ours'])} {row['ours']['unit']}{ratio}{peer} ({row['verdict']})"


def _benchmark(one: Benchmark, result: dict[str, Any] | None, pictures: str) -> Iterator[str]:
    yield f"## {one.name}\n"
    yield f"{one.about} (`bench/{one.name}.py`).\n"
    if result is None:
        yield "Not measured: " + ("it only runs when selected by name.\n" if one.by_itself else "there is no result.\n")
        return
    yield "| what | ours | peer | its figure | ratio | status | n |"
    yield "|---|---|---|---|---|---|---|"
    notes: list[str] = []
    for row in result["rows"]:
        mark = ""
        if row["note"]:
            if row["note"] not in notes:
                notes.append(row["note"])
            mark = f" [{notes.index(row['note']) + 1}]"
        peer = row["peer"]
        theirs = ("–", "–")
        if peer is not None:
            theirs = (f"{peer['name']} {peer['version']}", f"{_spread(peer)} {peer['unit']}")
        ratio = "–" if row["ratio"] is None else _spread(row["ratio"])
        ours = f"{_spread(row['ours'])} {row['ours']['unit']}"
        cells = (f"{row['what']}{mark}", ours, *theirs, ratio, row["verdict"] or "–", str(row["samples"]))
        yield f"| {' | '.join(_cell(cell).strip() for cell in cells)} |"
    yield ""
    if notes:
        yield "\n".join(f"{number}. {_cell(note)}" for number, note in enumerate(notes, 1)) + "\n"
    for number, picture in enumerate(plots_of(result), 1):
        yield f"![{picture['title']}]({pictures}/{one.name}-{number}.svg)\n"
    yield from _circumstances(result["run"])


def _circumstances(run: dict[str, Any]) -> Iterator[str]:
    busy = run["others_percent"]
    others = f"; other processes used {busy} % of the CPU at the start" if busy > 10 else ""
    yield f"Run time: {run['took_s']} s on {run['machine']['processor']}{others}.\n"


def plots_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the plots of a benchmark: its own, and bars where several peers did the same thing."""
    found: list[dict[str, Any]] = list(result["series"])
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        if row["peer"] and row["peer"]["unit"] == row["ours"]["unit"]:
            groups.setdefault((row["what"], row["ours"]["unit"]), []).append(row)
    for (what, unit), rows in groups.items():
        if len(rows) > 1:
            bars = [("ours", rows[0]["ours"]), *((row["peer"]["name"], row["peer"]) for row in rows)]
            found.append({"title": what, "x_label": unit, "bars": bars})
    return found


def _spread(of: dict[str, Any]) -> str:
    if of["low"] == of["high"] == of["median"]:
        return _number(of["median"])
    return f"{_number(of['median'])} [{_number(of['low'])}, {_number(of['high'])}]"


def _number(value: float) -> str:
    """Say a number with three digits that count."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}" if abs(value) >= 0.01 else f"{value:.1e}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def names(given: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks of these names, in the order of the catalogue; of no name, all that run unasked.

    Raises:
        LookupError: If there is no such benchmark.
    """
    if unknown := sorted(set(given) - {one.name for one in CATALOGUE}):
        raise LookupError(f"No benchmark {', '.join(unknown)}; there are {', '.join(one.name for one in CATALOGUE)}.")
    return [one for one in CATALOGUE if (one.name in given if given else not one.by_itself)]
