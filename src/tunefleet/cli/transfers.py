"""A progress bar for uploads and downloads on standard error; none if that is not a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tunefleet.cli.console import err
from tunefleet.client.transfer import OnProgress
from tunefleet.client.transfer import Progress as Transferred

# Smaller transfers end before a bar could be read.
_MIN_BAR_BYTES = 4 << 20


@contextmanager
def transfer_bar() -> Iterator[OnProgress]:
    """Yield a function that shows the progress of transfers; small ones are not shown."""
    bar = Progress(
        TextColumn("{task.description}", style="dim"),
        BarColumn(bar_width=None),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=err(),
        transient=True,
        disable=not err().is_terminal,
    )
    rows = {}

    def show(progress: Transferred) -> None:
        if progress.total_bytes < _MIN_BAR_BYTES:
            return
        name = f"{progress.phase.capitalize()} {progress.name}"
        if name not in rows:
            rows[name] = bar.add_task(name, total=progress.total_bytes)
        bar.update(rows[name], completed=progress.done_bytes, total=progress.total_bytes)

    with bar:
        yield show
