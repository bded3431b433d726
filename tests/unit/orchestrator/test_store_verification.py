"""A disk that flips a bit: the damage is found, put aside, named, and mended by pushing the file again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from pathlib import Path

import pytest

from tests.integration.postgres.everywhere import Everywhere
from tests.unit.orchestrator.lab import Lab
from tunefleet.cli.main import run
from tunefleet.orchestrator.storage import artifacts, verification
from tunefleet.orchestrator.storage.verification import Verified
from tunefleet.schemas.api import BlobQuery, FileEntry

DATA = b"weights of a week" * 100


def place(lab: Lab, digest: str) -> Path:
    return lab.core.settings.data_dir / "artifacts" / "blobs" / digest[:2] / digest


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(bytes(content))


async def push(lab: Lab, entry: FileEntry) -> list[str]:
    """Ask what has to be uploaded."""
    reply = await artifacts.missing(lab.core, lab.admin, BlobQuery(blobs=(entry,)))
    return [each.digest for each in reply.missing]


@pytest.mark.parametrize("loss", ["damaged", "gone"])
async def test_a_push_of_a_known_file_mends_it(lab: Lab, loss: str, caplog: pytest.LogCaptureFixture) -> None:
    await lab.publish(lab.admin, "model", DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    entry = FileEntry(path="file", digest=digest, size_bytes=len(DATA))
    assert await push(lab, entry) == []
    lab.core.state(Verified).at.clear()
    if loss == "damaged":
        flip(place(lab, digest))
    else:
        place(lab, digest).unlink()
    assert await push(lab, entry) == [digest]
    await lab.upload(lab.admin, DATA)
    assert lab.core.blobs.read(digest) == DATA
    assert await push(lab, entry) == []
    aside = lab.core.settings.data_dir / "artifacts" / "quarantine" / digest
    assert aside.exists() is (loss == "damaged"), "what was damaged is kept for a look"
    assert ("is damaged; moved to" in caplog.text) is (loss == "damaged")


async def test_what_was_verified_lately_is_not_read_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.publish(lab.admin, "model", DATA)
    entry = FileEntry(path="file", digest=hashlib.sha256(DATA).hexdigest(), size_bytes=len(DATA))
    assert await push(lab, entry) == []
    with monkeypatch.context() as change:
        change.setattr(verification, "is_intact", lambda *_: pytest.fail("it is read again"))
        assert await push(lab, entry) == []
    flip(place(lab, entry.digest))
    lab.core.state(Verified).at[entry.digest] -= verification.RECENT_S
    assert await push(lab, entry) == [entry.digest], (
        "a push a while later is no use to whom the damage is shown otherwise"
    )


async def test_the_background_finds_it_and_names_the_artifact(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("one", "two", "three"):
        await lab.publish(lab.admin, name, name.encode() * 50)
    digest = hashlib.sha256(b"two" * 50).hexdigest()
    flip(place(lab, digest))
    caplog.set_level(logging.ERROR)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(verification.run_for_a_while(lab.core), 1.0)
    assert not lab.core.blobs.has(digest)
    assert f"{digest} belongs to two (art-" in caplog.text
    assert len(lab.core.state(Verified).at) >= 2
    assert "one" not in caplog.text


async def test_no_speed_means_no_reading(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.publish(lab.admin, "one", DATA)
    lab.core.settings = lab.core.settings.model_copy(update={"scrub_bytes_per_s": 0})
    monkeypatch.setattr(verification, "is_intact", lambda *_: pytest.fail("it is read"))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(verification.run_for_a_while(lab.core), 0.3)


async def test_the_command_names_damaged_and_lost_files(
    lab: Lab, everywhere: Everywhere | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.publish(lab.admin, "model", DATA)
    await lab.publish(lab.admin, "gone", b"gone")
    damaged, lost = (hashlib.sha256(data).hexdigest() for data in (DATA, b"gone"))
    folder = str(lab.core.settings.data_dir)
    if everywhere is not None:
        monkeypatch.setenv("TUNEFLEET_DATABASE_URL", everywhere.url(Path(folder) / "tunefleet.db"))
    assert run(["verify-store", "--data", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": 2, "damaged": [], "unknown": {}}
    flip(place(lab, damaged))
    place(lab, lost).unlink()
    assert run(["verify-store", "--data", folder, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["damaged"]
    assert {each["digest"]: each["state"] for each in found} == {damaged: "damaged", lost: "lost"}
    assert not place(lab, damaged).exists()
    assert run(["verify-store", "--data", folder]) == 1
    assert "2 damaged or missing" in " ".join(capsys.readouterr().out.split()).replace("2 files of", "2 of")
