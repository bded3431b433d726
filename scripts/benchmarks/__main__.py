"""Run every benchmark beside its peers and write the page: `python -m scripts.benchmarks`.

    --only "dispatch rounds"   some of them
    --quick                    few rounds, to prove that they run; written below build/, and never into the documents
    --force                    those too that this source has measured on this machine
    --patience 600             seconds to wait for a quiet machine before each
    --page                     run none: write the page of the results that are there
    --check                    run none: say whether the page is what the results give

A benchmark that fails is named at the end and does not hide the others. The status is 1 if one failed, if a budget is
broken and `bench/missed.md` does not say why, or if that speaks of one that is kept.
"""

from __future__ import annotations

import argparse
import sys

from scripts.benchmarks import page
from scripts.benchmarks.catalogue import BENCH, MISSED, PAGE, PICTURES, QUICK_RESULTS, RESULTS
from scripts.benchmarks.running import run


def said() -> dict[str, str]:
    """Return what is said of the budgets that are missed."""
    return page.missed(MISSED.read_text(encoding="utf-8"))


def check() -> list[str]:
    """Return what is wrong with the page and with what is said to be missed."""
    found = page.load(RESULTS)
    told = page.faults(found, said())
    if any(result["quick"] for result in found.values()):
        told.append(f"{RESULTS.name} holds a quick result, which proves nothing but that the benchmark runs.")
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page.render(found, said()):
        told.append(f"{PAGE.name} is not what bench/results give: python -m scripts.benchmarks --page")
    return told


def write(*, quick: bool) -> list[str]:
    """Write the page and its plots; returns what is wrong, which of a quick run is nothing."""
    from scripts.benchmarks import plots  # only what draws needs matplotlib, which takes a second to import

    folder, target = (QUICK_RESULTS, QUICK_RESULTS / "benchmarks.md") if quick else (RESULTS, PAGE)
    found = page.load(folder)
    pictures = "." if quick else "img/benchmarks"
    target.write_text(page.render(found, said(), pictures=pictures), encoding="utf-8")
    plots.draw(found, folder if quick else PICTURES)
    return [] if quick else page.faults(found, said())


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, apart by blanks")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--patience", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        chosen = [] if options.page or options.check else page.names(options.only.split())
    except LookupError as error:
        parser.error(str(error.args[0]))
    failed: list[str] = []
    if options.check:
        failed = check()
    else:
        into = QUICK_RESULTS if options.quick else RESULTS
        into.mkdir(parents=True, exist_ok=True)
        for one in chosen:
            if not (BENCH / f"{one.name}.py").exists():
                failed.append(f"{one.name}: there is no bench/{one.name}.py")
            elif wrong := run(one, into, quick=options.quick, force=options.force, patience_s=options.patience):
                failed.append(f"{one.name} {wrong}")
        failed += write(quick=options.quick)
    if chosen and not options.only and not options.quick:
        failed += [f"No result is about {words!r}." for words in page.unmeasured(page.load(RESULTS))]
    print("\n".join(f"FAILED: {each}" for each in failed) or "all is as it must be")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
