"""A host that sends a byte now and then is given up, however often the connection breaks meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tunefleet.client.external import download
from tunefleet.client.external.download import Address, Downloader
from tunefleet.client.external.interrupt import CancelToken
from tunefleet.errors import UnreachableError

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("bytes_", "seconds", "whole", "why"),
    [
        (1, 5.0, 0.0, "The connection broke"),  # of one that gets a byte through each time
        (1 << 20, HOUR_S, 200 * HOUR_S, "is still incomplete after 168 hours"),
        (1 << 20, 90.0, 0.0, None),
    ],
)
def test_a_host_whose_connections_break_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bytes_: int, seconds: float, whole: float, why: str | None
) -> None:
    clock, tries = [0.0], [0]
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def breaks(self: Downloader, wanted: Address, part: Path, pace: download._Pace, _: CancelToken) -> str | None:
        tries[0] += 1
        clock[0] += seconds  # until it answers
        pace.begins()
        with part.open("ab") as file:
            file.truncate(file.tell() + bytes_)
        pace.arrived(bytes_)
        if why is None and tries[0] > 20:
            return None
        raise UnreachableError("The connection broke.")

    monkeypatch.setattr(Downloader, "_download", breaks)
    if why is None:
        assert Downloader(tmp_path).fetch("http://host.example/rows.jsonl").name == "rows.jsonl"
    else:
        with pytest.raises(UnreachableError, match=why):
            Downloader(tmp_path).fetch("http://host.example/rows.jsonl")
        assert clock[0] <= max(whole, 10 * seconds)


def test_a_host_that_drips_is_given_up_and_one_that_thinks_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    pace = download._Pace("http://host.example/rows.jsonl")
    clock[0] += 280.0
    pace.begins()
    pace.arrived(5)

    def drip() -> None:
        for _ in range(100):
            clock[0] += 1.0
            pace.arrived(1)

    with pytest.raises(UnreachableError, match="sends less than 256 bytes/s"):
        drip()
