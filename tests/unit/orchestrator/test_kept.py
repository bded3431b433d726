"""What the server remembers so that many may look, and that it remembers no more than that."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from os import stat_result
from pathlib import Path
from typing import Any

import pytest

from tests.unit.orchestrator.lab import TRAIN, FakeWorker, Lab
from tests.unit.orchestrator.test_journals import launch, metric, read, steps
from tunefleet.db.repositories import task_list
from tunefleet.db.rows import TaskRow
from tunefleet.orchestrator.storage import blob_stores, usage_report
from tunefleet.orchestrator.telemetry import live_feed, series
from tunefleet.orchestrator.telemetry.curves import KEPT_S, Curves
from tunefleet.schemas.worker_link import Offer


@pytest.fixture
async def running(lab: Lab) -> tuple[FakeWorker, Offer]:
    worker = await lab.online()
    await lab.submit(TRAIN)
    return worker, await worker.start()


async def test_curves_are_bounded_by_values_and_not_only_by_points(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    _, offer = running
    wide = {f"value_{number}": 1.0 for number in range(50)}
    await lab.journal(offer.token, "l1", [launch("l1"), *(metric(n, **wide) for n in range(1, 11))])
    known = Curves(most_numbers=500)
    for look in (known.of, known.names):
        await lab.core.read(partial(known.of, task_id=offer.task_id, series="train"))
        assert offer.task_id in known._tasks
        more = {"series": "train"} if look == known.of else {}
        await lab.core.read(partial(look, task_id="another", **more))
        assert offer.task_id not in known._tasks


async def test_curves_that_nobody_looks_at_any_more_are_let_go_of(lab: Lab, running: tuple[FakeWorker, Offer]) -> None:
    worker, offer = running
    await lab.journal(offer.token, "l1", [launch("l1"), metric(1)])
    await read(lab, offer.task_id, max_points=10)
    curves = lab.core.state(series._Charts).curves
    assert curves is not None
    await lab.sweep(15.0, alive=(worker,))
    assert offer.task_id in curves._tasks
    lab.clock.advance(KEPT_S)
    await lab.sweep(15.0, alive=(worker,))
    assert not curves._tasks
    assert await steps(lab, offer.task_id, max_points=10) == [1]


async def test_all_who_watch_share_one_look_a_second(
    lab: Lab, running: tuple[FakeWorker, Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, offer = running
    real, looks = task_list.newest_of, 0

    def newest_of(*args: Any) -> list[TaskRow]:
        nonlocal looks
        looks += 1
        return real(*args)

    monkeypatch.setattr(task_list, "newest_of", newest_of)
    said = {"type": "progress", "phase": "training", "max_steps": 9}
    await lab.journal(offer.token, "l1", [launch("l1"), {**said, "step": 1}])
    for step in (1, 2):
        found = await asyncio.gather(*(live_feed.progress(lab.core, lab.admin) for _ in range(10)))
        assert (looks, {each[offer.task_id].progress.step for each in found}) == (step, {step})
        await lab.journal(offer.token, "l1", [{**said, "step": step + 1}], from_seq=step + 1)
        lab.clock.advance(1.0)


async def test_a_folder_that_goes_while_its_files_are_counted_has_none(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.lstat
    folders = [blob_stores.federation_folder(lab.core) / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"12345")

    def lstat(path: Path) -> stat_result:
        for other in folders:
            if path.parent in folders and other != path.parent:
                shutil.rmtree(other, ignore_errors=True)
        return real(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    uses = {use.kind: use for use in (await usage_report.storage(lab.core, lab.admin)).uses}
    assert (uses["working"].files, uses["working"].size_bytes) == (1, 5)
