"""One launch of an evaluation: its finished items, which a relaunch continues, and its progress in the journal."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tunefleet.analysis.evaluation.statistics import IntervalOptions
from tunefleet.fsutil import write_file
from tunefleet.spec import EvaluateTaskSpec
from tunefleet.spec.tasks.evaluate_task import ITEMS_FOLDER
from tunefleet.trainer_control import JobSession
from tunefleet.workloads.common.job import OpenedJob
from tunefleet.workloads.evaluation.model_under_test import EvaluatedModel

WORK: Final = "evaluations"
Item = dict[str, Any]
PHASE: Final = "evaluating"


class Progress:
    """Reports the number of finished items over all evaluations of a task."""

    def __init__(self, session: JobSession, check_commands: Callable[[int], None]) -> None:
        self._session = session
        self._check_commands = check_commands
        self._before = self._total = 0
        self._began, self._done_then = time.monotonic(), 0

    def start(self, total: int, done: int) -> None:
        """Begin with the items of the next evaluation."""
        self._before += self._total
        self._total = total
        self._began, self._done_then = time.monotonic(), done
        self.tell(done)

    def tell(self, done: int) -> None:
        """Report the number of finished items of this evaluation."""
        elapsed, new = time.monotonic() - self._began, done - self._done_then
        eta = elapsed / new * (self._total - done) if new > 0 else None
        step, of = self._before + done, self._before + self._total
        self._session.journal.progress(PHASE, step=step, max_steps=of, eta_s=eta)
        self._session.status.update(step=step, max_steps=of, phase=PHASE)
        self._check_commands(step)


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Disable progress bars, which are for terminals: the log would have thousands of them.

    The variable TQDM_DISABLE is not enough: callers that pass `disable`, as lm-eval does, override it.
    """
    bar = importlib.import_module("tqdm.std").tqdm
    original_init = bar.__init__

    def hidden(self: Any, *given: Any, **options: Any) -> None:
        original_init(self, *given, **{**options, "disable": True})

    bar.__init__ = hidden
    try:
        yield
    finally:
        bar.__init__ = original_init


class ItemLog:
    """The finished items of one evaluation, by their index."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._items: dict[int, Item] = {}
        good = 0
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            if not line.endswith(b"\n"):
                break  # the process was killed while writing
            item = json.loads(line)
            self._items[int(item["index"])] = item
            good += len(line)
        self._file = path.open("ab")
        # Before appending, or the next item would continue the torn line.
        self._file.truncate(good)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, index: object) -> bool:
        return index in self._items

    def __iter__(self) -> Iterator[Item]:
        """Iterate over the items in the order of the rows."""
        return (self._items[index] for index in sorted(self._items))

    def add(self, items: Iterable[Item]) -> None:
        """Store items durably."""
        for item in items:
            self._items[int(item["index"])] = item
            self._file.write(json.dumps(item, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def deliver(self, target: Path) -> None:
        """Write the items in the order of the rows, atomically."""
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, b"".join(json.dumps(item, ensure_ascii=False).encode() + b"\n" for item in self))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class Run(OpenedJob[EvaluateTaskSpec]):
    """One launch of an evaluation.

    Args:
        subject: The evaluated model.
        progress: Progress over all evaluations.
    """

    subject: EvaluatedModel
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def wanted(self) -> IntervalOptions:
        """The requested confidence of intervals."""
        asked = self.spec.interval
        return IntervalOptions(asked.confidence, asked.resamples, asked.seed)

    def kept(self, name: str, mark: str) -> ItemLog:
        """Open the finished items of an evaluation, by its fingerprint."""
        return ItemLog(self.folder.root / WORK / f"{name}-{mark[:16]}.jsonl")

    def items(self, name: str) -> Path:
        """Return the path where the items of an evaluation are delivered."""
        return self.folder.root / ITEMS_FOLDER / f"{name}.jsonl"
