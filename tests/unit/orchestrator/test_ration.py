"""The limit on all files of a server: nobody gets around it by sending at once, going on later, or in a federation."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import pytest

from tests.unit.orchestrator.federating import keep, party
from tests.unit.orchestrator.lab import Lab
from tunefleet.artifacts import NoRoomError
from tunefleet.db.repositories import artifacts
from tunefleet.orchestrator.storage import artifacts as services
from tunefleet.orchestrator.storage import capacity
from tunefleet.orchestrator.storage.garbage_collection import Collected


def named(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_two_uploads_at_once_do_not_share_one_room(lab: Lab) -> None:
    blobs = lab.core.blobs
    blobs.limit_bytes = 1000
    first, second = b"a" * 700, b"b" * 700
    with blobs.append(named(first), 0, 700):
        with pytest.raises(NoRoomError, match="TUNEFLEET_STORAGE_LIMIT_BYTES"):
            blobs.append(named(second), 0, 700)
        with blobs.append(named(second[:300]), 0, 300):
            pass
    # The first was given up, or has broken: its room is anybody's.
    with blobs.append(named(second), 0, 700) as upload:
        upload.write(second)
        upload.finish()


async def test_an_upload_that_goes_on_when_the_room_is_gone_waits(lab: Lab) -> None:
    blobs = lab.core.blobs
    blobs.limit_bytes = 1000
    data = b"a" * 900
    with blobs.append(named(data), 0, 900) as upload:
        upload.write(data[:890])
    await lab.upload(lab.admin, b"b" * 900)
    with pytest.raises(NoRoomError):
        blobs.append(named(data), 890, 900)
    assert blobs.partial_size(named(data)) == 890, "Interrupted uploads are kept"


async def test_updates_of_a_round_that_is_over_count_no_more_at_once(lab: Lab, tmp_path: Path) -> None:
    blobs = lab.core.blobs
    group = await party(lab, tmp_path / "files")
    blobs.limit_bytes = 1 << 30
    await group.upload("w1", 1.0)
    one = blobs.used_bytes
    assert one == await lab.core.read(artifacts.stored_bytes)
    await group.upload("w2", 4.0)
    await keep(lab.core)
    # Both updates went with their round, at once; the version is there.
    after = blobs.used_bytes
    await lab.core.read(partial(capacity.count, blobs=blobs))
    assert blobs.used_bytes == after
    assert after > 0


async def test_what_a_person_has_pushed_and_removed_gives_back_its_room_after_the_grace(lab: Lab) -> None:
    made = await lab.publish(lab.admin, "large", b"a" * 500)
    await services.remove(lab.core, lab.admin, made.id)
    lab.clock.advance(lab.core.settings.garbage_grace_s + 1)
    assert await services.collect_garbage(lab.core) == Collected(1, 500)
