"""How long a refusal takes says nothing about a secret: shown by what is done, since times prove little."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tunefleet
from tests.unit.orchestrator.lab import Lab
from tunefleet.errors import AuthError
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.context import ServerContext
from tunefleet.schemas.api import KeyCreate

WORDS = r"(?:token|secret|signature|mac|password|proof|credential|api_key)"
SECRET = re.compile(rf"(?:^|_){WORDS}$")
LINES = re.compile(rf"{WORDS}.*[=!]=|[=!]=.*{WORDS}")
"""What is looked for first, since to parse the whole tree takes seconds."""
OWN = {
    ("worker/jobs/attempt.py", "finish.token == self.token"),
    ("worker/jobs/job_parts.py", "finish.token == part.token"),
    ("workloads/federated/callback.py", "_without_token(_credentials[member][0]) == url"),
}
"""A worker or a trainer that looks through what it holds itself; there is no attacker on the other side."""


def compared(source: str) -> list[str]:
    """Return the comparisons of a module that end at the first character in which two secrets differ."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        and any(isinstance(each, ast.Eq | ast.NotEq) for each in node.ops)
        and any(SECRET.search(_name(side)) for side in (node.left, *node.comparators))
        and not any(isinstance(side, ast.Constant) for side in (node.left, *node.comparators))
    ]


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def test_no_secret_is_compared_by_its_characters() -> None:
    assert compared("if given == self.token or wanted_signature() != other: pass") == [
        "given == self.token",
        "wanted_signature() != other",
    ]
    root = Path(tunefleet.__file__).parent
    sources = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    found = {(name, line) for name, text in sources.items() if LINES.search(text) for line in compared(text)}
    assert found == OWN


async def test_every_refused_key_costs_the_same_work(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody ever had, one that differs in its last character only, and one that was revoked."""
    made = await api_keys.create(lab.core, lab.admin, KeyCreate(name="alice", role="member"))
    good = await api_keys.create(lab.core, lab.admin, KeyCreate(name="bob", role="member"))
    await api_keys.revoke(lab.core, lab.admin, made.id)
    hashed, read = api_keys.hash_secret, ServerContext.read
    done: list[str] = []

    def counted(secret: str) -> str:
        done.append("hash")
        return hashed(secret)

    async def looked_up(self: ServerContext, operation: Callable[[Any], Any]) -> Any:
        done.append("read")
        return await read(self, operation)

    monkeypatch.setattr(api_keys, "hash_secret", counted)
    monkeypatch.setattr(ServerContext, "read", looked_up)
    work = []
    last = "A" if good.secret[-1] != "A" else "B"
    for key in ("tf_nobody", good.secret[:-1] + last, made.secret):
        for ask in (api_keys.authenticate, api_keys.authenticate_session):
            done.clear()
            with pytest.raises(AuthError):
                await ask(lab.core, key)
            work.append(tuple(done))
    assert set(work) == {("hash", "read")}
