"""Runs the steps of a `data` task on its first rows, without a server.

    python -m tunefleet.workloads.data_pipeline.trial FILE --rows 5

Prints one JSON object: `rows`, `steps`, `recognised`, `left_out`. If a workflow file or data is invalid, it prints
`{"error": …, "hint": …}`, with exit code 2.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import datasets

from tunefleet.errors import InputError, SpecError, TunefleetError
from tunefleet.spec import DataTaskSpec, local_paths, parse_workflow
from tunefleet.spec.tasks.data_task import SourceSpec
from tunefleet.workloads.data_pipeline.run import open_pipeline
from tunefleet.workloads.faults import INPUT_FAILED

# Rows of each source that are processed.
READ_ROWS: Final = 200
_NEED_ALL: Final = frozenset({"sample", "split"})


def trial(spec: DataTaskSpec, root: Path, rows: int) -> dict[str, Any]:
    """Process the first rows of each source; steps that take a share of all rows are skipped."""
    inputs = {p.pointer: str(root / Path(p.value).expanduser()) for p in local_paths(spec) if (root / p.value).exists()}
    for index, source in enumerate(spec.sources):
        place = source.at(index)[0]
        if place.kind in {"artifact", "url"} and place.pointer not in inputs:
            raise InputError(f"The rows of {place.value} are not on this machine.", hint="Set `path` to a local file.")
    few = spec.model_copy(
        update={
            "sources": tuple(map(_beginning, spec.sources)),
            "steps": tuple(step for step in spec.steps if step.word not in _NEED_ALL),
        }
    )
    sentences: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tunefleet-try-") as workspace:
        pipeline, _ = open_pipeline(few, inputs, Path(workspace), say=sentences.append)
        made = iter(pipeline.run()["train"])
        shown = [row.values for row in itertools.islice(made, rows)]
        # The remaining rows are processed as well, to find errors in them.
        for _ in made:
            pass
        counts = [count.as_json() for count in pipeline.counts]
    left_out = [step.word for step in spec.steps if step.word in _NEED_ALL]
    return {"rows": shown, "steps": counts, "recognised": list(dict.fromkeys(sentences)), "left_out": left_out}


def _beginning(source: SourceSpec) -> SourceSpec:
    return source.model_copy(update={"max_samples": min(source.max_samples or READ_ROWS, READ_ROWS)})


def main(arguments: list[str] | None = None) -> int:
    """Print the first rows after the steps; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=5, help="rows to show")
    parser.add_argument("--task", help="task of the workflow file")
    options = parser.parse_args(arguments)
    datasets.disable_progress_bars()
    shown: dict[str, Any]
    try:
        workflow = parse_workflow(options.file.read_text(encoding="utf-8"), filename=options.file.name)
        node = workflow.task(options.task)
        if node.spec is None:
            raise InputError(f"{node.name} has references to other tasks, so its rows are not known yet.")
        if not isinstance(node.spec, DataTaskSpec):
            raise InputError(f"A task of kind {node.kind!r} prepares no data.", hint="Choose a data task with --task.")
        shown = trial(node.spec, options.file.resolve().parent, options.rows)
    except OSError as error:
        shown = {"error": f"{options.file} cannot be read: {error.strerror or error}.", "hint": None}
    except TunefleetError as error:
        faults = [str(fault) for fault in error.faults] if isinstance(error, SpecError) else []
        shown = {"error": error.message, "hint": error.hint, "faults": faults}
    print(json.dumps(shown))
    return INPUT_FAILED if "error" in shown else 0


if __name__ == "__main__":
    sys.exit(main())
