"""A history, looked up by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.history import History, Row


class Index:
    """Rows of a history by what they belong to.

    Args:
        history: What was stored.
    """

    def __init__(self, history: History) -> None:
        self.history, self.rows = history, history.rows
        self.tasks = {row["id"]: row for row in self.rows.tasks}
        self.documents = {row["task_seq"]: row for row in self.rows.task_documents}
        self.attempts = _by(self.rows.attempts, "task_id")
        self.events = _by(self.rows.events, "task_id")
        self.launches = _by(self.rows.launches, "task_id")
        self.points = _by(self.rows.metric_points, "task_id")
        self.artifacts = _by(self.rows.artifacts, "task_id")
        self.files = _by(self.rows.artifact_files, "artifact_id")
        self.chunks = _by(self.rows.log_chunks, "task_id")
        self.streams = _by(self.rows.log_streams, "task_id")

    def parts(self, task: Row) -> list[Row]:
        """Return the parts of a federated training, in the order of their numbers."""
        return sorted(
            (row for row in self.rows.tasks if row["name"].startswith(f"{task['name']}#")), key=lambda row: row["name"]
        )

    def log(self, task_id: str) -> bytes:
        """Return a task's whole log."""
        return b"".join(bytes(row["data"]) for row in sorted(self.chunks[task_id], key=lambda row: row["end"]))

    def visible(self, task_id: str) -> list[Row]:
        """Return a task's points that no later launch has superseded, in the order of their launch and number."""
        limit = {row["number"]: row["hidden_after"] for row in self.launches[task_id]}
        shown = [
            row
            for row in self.points[task_id]
            if limit.get(row["launch_number"]) is None or row["step"] <= limit[row["launch_number"]]
        ]
        return sorted(shown, key=lambda row: (row["step"], row["launch_number"], row["seq"]))


def _by(rows: Iterable[Row], column: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[column]].append(row)
    return found
