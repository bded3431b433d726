"""What `tunefleet up` says of a child that ended, and of workers that do not come."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.cli.local_cluster import up


class _NoFleet:
    """Stands for a fleet whose workers are not to be had; a fake."""

    url, data, logs, has_page = "http://127.0.0.1:8000", "data", "logs", True

    def login_link(self) -> str:
        return "link"


@pytest.mark.parametrize(
    ("present", "told"),
    [
        (("a", "b", "c"), "is up at http://127.0.0.1:8000 with 3 workers\n"),
        (("a", "b"), "2 of 3 workers have registered after 30 s"),
        (("a",), "1 of 3 workers has registered after 30 s"),
        ((), "No worker has registered after 30 s"),
    ],
    ids=["all", "two", "one", "none"],
)
def test_it_is_up_with_those_workers_that_are_there(
    present: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet: Any = _NoFleet()
    up._print_started(fleet, 3, present)
    said = capsys.readouterr().out
    assert told in said
    assert ("with 3 workers" in said) == (len(present) == 3)
