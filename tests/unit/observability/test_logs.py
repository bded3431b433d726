"""Log lines with ids, for people and for machines, without credentials."""

from __future__ import annotations

import json
import logging
import sys
import threading

from tunefleet.observability import context
from tunefleet.observability.logs import JsonLines, TextLines


def record(message: str, *args: object, exc: bool = False) -> logging.LogRecord:
    info = sys.exc_info() if exc else None
    return logging.LogRecord("tunefleet.x", logging.WARNING, "file.py", 7, message, args, info, "function")


def read(line: str) -> dict[str, str]:
    assert "\n" not in line
    found: dict[str, str] = json.loads(line)
    return found


def test_a_line_for_machines_has_the_ids_of_what_it_belongs_to() -> None:
    with context.log_ids(request_id="r1", task_id="task-1"), context.log_ids(attempt=2, worker_id=None):
        inside = read(JsonLines().format(record("Took %s.", "it")))
    outside = read(JsonLines().format(record("Took %s.", "it")))
    assert {name: inside[name] for name in ("level", "logger", "message", "request_id", "task_id", "attempt")} == {
        "level": "WARNING", "logger": "tunefleet.x", "message": "Took it.", "request_id": "r1", "task_id": "task-1",
        "attempt": "2",
    }  # fmt: skip
    assert inside["time"].endswith("+00:00")
    assert "worker_id" not in inside
    assert not {"request_id", "task_id", "attempt"} & outside.keys()


def test_ids_that_are_known_late_are_looked_up_when_a_line_is_written() -> None:
    known: dict[str, str] = {}
    with context.lazy_log_ids(lambda: known):
        assert "task_id" not in read(JsonLines().format(record("before")))
        known["task_id"] = "task-9"
        assert read(JsonLines().format(record("after")))["task_id"] == "task-9"


def test_a_thread_has_ids_of_its_own() -> None:
    found: list[dict[str, str]] = []
    with context.log_ids(task_id="task-1"):
        thread = threading.Thread(target=lambda: found.append(read(JsonLines().format(record("there")))))
        thread.start()
        thread.join()
    assert "task_id" not in found[0]


def test_a_message_of_several_lines_and_its_traceback_are_one_line_for_machines() -> None:
    try:
        raise ValueError("it broke at http://me:planted@host/")
    except ValueError:
        line = JsonLines().format(record("first\nsecond", exc=True))
    found = read(line)
    assert found["message"] == "first\nsecond"
    assert "ValueError" in found["exception"]
    assert "planted" not in line


def test_credentials_are_hidden_in_both_forms() -> None:
    for formatter in (TextLines(), JsonLines()):
        line = formatter.format(record("GET %s", "https://u:planted-word@host/f?X-Amz-Signature=planted-signature&a=1"))
        assert "planted" not in line
        assert "&a=1" in line
