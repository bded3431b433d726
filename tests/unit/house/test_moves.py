"""Every change of a task's status goes through one function, which looks after those that wait for it."""

from __future__ import annotations

import ast
from pathlib import Path

STORE = "tunefleet.db.repositories.task_transitions"
THE_ONE = "transitions.py"
ONLY_OPENS_OFFERS = "scheduler.py"


def test_the_orchestrator_moves_tasks_through_transitions_only(repository: Path) -> None:
    orchestrator = repository / "src" / "tunefleet" / "orchestrator"
    users = set()
    for file in orchestrator.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "task_transitions" in text else ():
            names = {each.name for each in node.names} if isinstance(node, ast.ImportFrom) else set()
            if isinstance(node, ast.ImportFrom) and node.module == STORE and "switch" in names:
                users.add(file.name)
            if (
                isinstance(node, ast.ImportFrom)
                and node.module == "tunefleet.db.repositories"
                and "task_transitions" in names
            ):
                users.add(file.name)
    assert users == {THE_ONE, ONLY_OPENS_OFFERS}
