"""Every change of a task's status goes through one function, which looks after those that wait for it."""

from __future__ import annotations

import ast
from pathlib import Path

STORE = "tunefleet.db.repositories.task_transitions"
THE_ONE = "moving.py"
ONLY_OPENS_OFFERS = "placing.py"


def test_services_move_tasks_through_moving_only(repository: Path) -> None:
    services = repository / "src" / "tunefleet" / "services"
    users = set()
    for file in services.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "task_moves" in text else ():
            names = {each.name for each in node.names} if isinstance(node, ast.ImportFrom) else set()
            if isinstance(node, ast.ImportFrom) and node.module == STORE and "switch" in names:
                users.add(file.name)
            if isinstance(node, ast.ImportFrom) and node.module == "tunefleet.db" and "task_moves" in names:
                users.add(file.name)
    assert users <= {THE_ONE, ONLY_OPENS_OFFERS}
