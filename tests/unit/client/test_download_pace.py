"""A host that sends a byte now and then is given up, however often the connection breaks meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tunefleet.client import download
from tunefleet.client.download import Address, Downloader
from tunefleet.errors import UnreachableError

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("count", "seconds", "why"),
    [
        (1, 5.0, "sends less than 256 bytes a second"),
        (256 * 61, 61.0, "is not whole after 24 hours"),
        (10 << 20, 2 * HOUR_S, "is not whole after 24 hours"),
    ],
)
def test_a_file_that_never_becomes_whole_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int, seconds: float, why: str
) -> None:
    clock = [0.0]
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def breaks(self: Downloader, wanted: Address, part: Path, pace: download._Pace) -> str | None:
        with part.open("ab") as file:
            file.write(b"x")
        clock[0] += seconds
        pace.arrived(count)
        raise UnreachableError("The connection broke.")

    monkeypatch.setattr(Downloader, "_download", breaks)
    with pytest.raises(UnreachableError, match=why):
        Downloader(tmp_path).fetch("http://host.example/rows.jsonl")
    assert clock[0] < 27 * HOUR_S


def test_a_slow_file_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock, tries = [0.0], iter(range(100))
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def slow(self: Downloader, wanted: Address, part: Path, pace: download._Pace) -> str | None:
        with part.open("ab") as file:
            file.write(b"x")
        clock[0] += 59.0
        pace.arrived(59 * 256)
        if next(tries) < 50:
            raise UnreachableError("The connection broke.")
        return None

    monkeypatch.setattr(Downloader, "_download", slow)
    assert Downloader(tmp_path).fetch("http://host.example/rows.jsonl").name == "rows.jsonl"
