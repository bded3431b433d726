"""What is installed is told whole, and an audit that could not look at all of it has failed, or was not run."""

from __future__ import annotations

from typing import Any

import pytest

from scripts import dependencies
from scripts.dependencies import NO_ANSWER, NOT_RUN, audit, installed, judge

LINES = ["left==1.0", "right==2.0"]


def _looked(name: str, version: str, *found: str) -> dict[str, Any]:
    return {"name": name, "version": version, "vulns": [{"id": each, "fix_versions": ["9.9"]} for each in found]}


def _skipped(name: str) -> dict[str, Any]:
    return {"name": name, "skip_reason": "Dependency not found on PyPI"}


def test_what_is_installed_is_all_of_it_and_nothing_of_development() -> None:
    found = dict(line.split("==") for line in installed())
    assert {"fastapi", "sqlalchemy", "torch", "transformers", "redis", "httpx", "certifi"} <= set(found)
    assert not {"pytest", "mypy", "ruff", "tunefleet"} & set(found)
    assert all("+" not in version for version in found.values())
    assert set(dict(line.split("==") for line in installed("tunefleet"))) < set(found)


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        ([_looked("left", "1.0"), _looked("right", "2.0")], 0, "Nothing of it is known"),
        ([_looked("left", "1.0", "CVE-1"), _looked("right", "2.0")], 1, "left 1.0 has CVE-1; mended in 9.9"),
        ([_looked("left", "1.0"), _skipped("right")], 1, "right was skipped"),
        ([_looked("left", "1.0")], 1, "right==2.0 was not looked at"),
    ],
)
def test_an_audit_is_good_if_all_was_looked_at(
    found: list[dict[str, Any]], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge({"dependencies": found}, LINES) == status
    assert words in capsys.readouterr().out


def test_without_an_answer_it_was_not_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"pypi": ({"dependencies": [_skipped("left"), _skipped("right")]}, ""), "osv": (None, "no route to host")}
    monkeypatch.setattr(dependencies, "_ask", lambda source, _lines: said[source])
    assert audit() == NOT_RUN
    told = capsys.readouterr().out
    assert told.startswith(NO_ANSWER)
    assert "no route to host" in told


def test_the_second_source_is_asked_where_the_first_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "installed", lambda: LINES)
    good = {"dependencies": [_looked("left", "1.0"), _looked("right", "2.0")]}
    monkeypatch.setattr(dependencies, "_ask", lambda source, _lines: (good if source == "osv" else None, "away"))
    assert audit() == 0
