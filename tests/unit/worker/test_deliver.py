"""What an attempt delivers when the server finds it too large."""

from __future__ import annotations

import json
from typing import Any, cast

from tunefleet.errors import TooLargeError
from tunefleet.runtime.secrets import Redaction
from tunefleet.schemas.worker_link import JournalBatch
from tunefleet.worker.interfaces import Delivery
from tunefleet.worker.outputs.deliver import _AttemptSink


class SmallServer:
    """Takes batches up to a size."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def journal(self, task_id: str, batch: JournalBatch) -> int:
        if sum(len(line) for line in batch.lines) > 1000:
            raise TooLargeError("The body is over 1000 bytes.")
        self.lines += batch.lines[len(self.lines) - batch.from_seq :]
        return len(self.lines)


def test_a_batch_that_is_too_large_goes_in_parts_and_a_record_that_is_leaves_word() -> None:
    server = SmallServer()
    sink = _AttemptSink("task-1", cast(Delivery, server), Redaction({}))
    lines = [json.dumps({"seq": seq, "text": "x" * (5000 if seq == 2 else 400)}) for seq in range(5)]
    cursor = 0
    while cursor < len(lines):
        cursor = sink.journal("launch-1", cursor, lines[cursor:])
    found: list[dict[str, Any]] = [json.loads(line) for line in server.lines]
    assert [record["seq"] for record in found] == [0, 1, 2, 3, 4]
    assert (found[2]["type"], found[2]["name"]) == ("event", "journal.too_large")
