"""No code of an error and no reason of a failure lacks its way out in the reference."""

from __future__ import annotations

import pytest

from scripts import error_reference


@pytest.mark.parametrize("table", ["WAYS_OUT", "REASONS"])
def test_what_has_no_way_out_stops_the_page(monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    described = getattr(error_reference, table)
    monkeypatch.setattr(error_reference, table, dict(list(described.items())[1:]))
    with pytest.raises(SystemExit, match=f"no resolution .* {next(iter(described))}"):
        error_reference.page()


def test_a_way_out_that_belongs_to_nothing_stops_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(error_reference.WAYS_OUT, "of_old", "Nothing.")
    with pytest.raises(SystemExit, match="of_old"):
        error_reference.page()
