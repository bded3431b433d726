"""The program, in a separate process: called with the job folder; can be killed and restarted at any time."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunefleet.errors import InputError
from tunefleet.trainer_control.files import write_json
from tunefleet.workloads.common.item_control import ItemControl
from tunefleet.workloads.common.job import checked, open_task
from tunefleet.workloads.inference.deduplication import batch
from tunefleet_word_count.spec import REPORT, WordCountSpec, WordsSpec

_WORD = re.compile(r"\w+")


def main(folder: Path) -> None:
    """Count the words in the texts of a job and of the tasks that are merged into it.

    Args:
        folder: The job folder.

    Raises:
        InputError: If a text has no words: the task fails with this message, and is not retried.
    """
    task = open_task(folder, WordCountSpec)
    job, session = task.job, task.session
    specs = {job.task_id: task.spec}
    for child in job.merge_children:
        specs[child.task_id] = checked(child.spec, WordCountSpec)
    # A text shared by several tasks is counted once.
    joined = batch({task_id: spec.data.items for task_id, spec in specs.items()})
    kept = _Kept(folder / "counted.jsonl")
    with ItemControl(session, kept=kept.name) as heeding:
        for done, text in enumerate(joined.unique):
            heeding.heed(done)  # a pause ends the process here
            session.status.update(state="running", phase="counting", step=done, max_steps=len(joined.unique))
            session.journal.progress("counting", step=done, max_steps=len(joined.unique))
            if text not in kept.counts:
                kept.add(text, _count(text, specs[job.task_id].words))
                time.sleep(specs[job.task_id].words.rest_s)
    answers = joined.spread([kept.counts[text] for text in joined.unique])
    results = {task_id: _leave(folder, task_id, job.task_id, mine) for task_id, mine in answers.items()}
    own = results.pop(job.task_id)
    if job.merge_children:
        own["children"] = results
    # The result is written last and atomically: the job is complete once it exists.
    write_json(task.folder.responses_json, own, sync=True)


class _Kept:
    """The finished counts, stored text by text, so that a launch after a kill does not repeat them."""

    def __init__(self, file: Path) -> None:
        self.name = file.name
        self._file = file
        self.counts: dict[str, dict[str, int]] = {}
        whole = file.read_text().rpartition("\n")[0] if file.exists() else ""  # drops an incomplete last line
        _write(file, whole + "\n" if whole else "")
        for line in whole.splitlines():
            text, counts = json.loads(line)
            self.counts[text] = counts

    def add(self, text: str, counts: dict[str, int]) -> None:
        self.counts[text] = counts
        with self._file.open("a") as file:
            file.write(json.dumps([text, counts]) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _write(file: Path, text: str) -> None:
    """Replace a file atomically: after a kill it has either the old or the new content."""
    draft = file.with_name(f".{file.name}.partial")
    with draft.open("w") as written:
        written.write(text)
        written.flush()
        os.fsync(written.fileno())
    draft.replace(file)


def _count(text: str, how: WordsSpec) -> dict[str, int]:
    words = _WORD.findall(text.lower() if how.lower else text)
    if not words:
        raise InputError(f"The text {text!r} has no words.", hint="Leave it out of data.items.")
    return dict(Counter(word for word in words if len(word) >= how.shortest))


def _leave(folder: Path, task_id: str, own: str, counts: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Write the report of a task, and return its result."""
    place = folder if task_id == own else folder / "children" / task_id
    place.mkdir(parents=True, exist_ok=True)
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    rows = [f"{word},{count}" for word, count in sorted(total.items())]
    _write(place / REPORT, "\n".join(["word,count", *rows]) + "\n")
    items = [{"index": index, "output": dict(each)} for index, each in enumerate(counts)]
    return {"ok": True, "items": items, "words": total.total(), "usage": {"texts": len(counts)}}
