"""What lies in an archive, whether it was trained, what stands beside it, and what a token names; by themselves."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.unit.federation.adapters import factors, save
from tunefleet.artifacts import FolderStore
from tunefleet.db.federations.federations import FederationRow
from tunefleet.errors import AdapterRefused, AuthError, ForbiddenError, InputError, NotFoundError, TooLargeError
from tunefleet.orchestrator.access.permissions import Actor, FederationActor
from tunefleet.orchestrator.federation import delegated_access, participants
from tunefleet.orchestrator.federation.participants import may_manage, may_take_part, may_view
from tunefleet.orchestrator.federation.updates import intake
from tunefleet.orchestrator.federation.updates.archive_layout import find_adapter, find_recipes_adapter, is_tokenizer
from tunefleet.orchestrator.federation.updates.scratch import UploadFile, keep
from tunefleet.orchestrator.federation.updates.uploads import read_fields
from tunefleet.orchestrator.federation.updates.validation import untrained
from tunefleet.spec.options.federation_options import FederationSpec

SECRET = b"s" * 32
ROW = FederationRow(
    7, "fed-0123456789ab", "default", "x", "ada", "running", "{}", None, "whsec_", 0, 1, 0.0, None, None
)  # fmt: skip


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_a_version_that_is_sent_back_is_known_in_every_type(tmp_path: Path, rng: np.random.Generator) -> None:
    given = factors(rng)
    version = save(tmp_path / "version", given).path
    for dtype in ("F32", "BF16", "F16"):
        assert untrained(save(tmp_path / dtype, given, dtype=dtype).path, version), dtype
    trained = {name: value * np.float32(1.01) for name, value in given.items()}
    for dtype in ("F32", "BF16", "F16"):
        assert not untrained(save(tmp_path / f"trained-{dtype}", trained, dtype=dtype).path, version), dtype
    other = save(tmp_path / "other", factors(rng, rank=3), rank=3).path
    assert not untrained(other, version), "another shape"
    assert not untrained(version, save(tmp_path / "coarse", given, dtype="BF16").path), "finer than what was given"


def test_what_is_of_use_in_an_archive_is_found(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tmp_path / "a"
    save(folder, factors(rng))
    (folder / "additional_chat_templates").mkdir()
    for name in ("tokenizer.json", "merges.txt", "spiece.model", "README.md", "optimizer.pt", "run.py"):
        (folder / name).write_text("x")
    (folder / "additional_chat_templates" / "tools.jinja").write_text("x")
    found = find_adapter(folder)
    tokenizer = {"tokenizer.json", "merges.txt", "spiece.model", "additional_chat_templates/tools.jinja"}
    assert set(found.tokenizer) == tokenizer
    assert find_recipes_adapter(folder) is None
    save(folder / "aggregated", factors(rng))
    below = find_recipes_adapter(folder)
    assert below is not None
    assert below.weights == folder / "aggregated" / "adapter_model.safetensors"
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(AdapterRefused, match="is a pickle") as refused:
        find_adapter(folder)
    assert "safe_serialization=True" in (refused.value.hint or "")


def test_a_config_or_a_tokenizer_has_a_size(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tmp_path / "a"
    save(folder, factors(rng))
    for number in range(65):
        (folder / f"part-{number}.model").write_text("x")
    with pytest.raises(AdapterRefused, match="more than 64 tokenizer files"):
        find_adapter(folder)
    (folder / "adapter_config.json").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(AdapterRefused, match="more than 1,048,576 bytes"):
        find_adapter(folder)


@pytest.mark.parametrize(
    "name", ["../tokenizer.json", "x/tokenizer.json", "..model", "._spiece.model", "tokenizer.json\n", "a b.model"]
)
def test_what_is_no_file_of_a_tokenizer_is_not_carried(name: str) -> None:
    assert not is_tokenizer(name)


def test_fields_are_read_or_refused() -> None:
    spec = FederationSpec()
    said = read_fields({"numExamples": " 16 ", "baseVersion": "3", "loss": "1.5", "round": "2"}, spec)
    assert (said.num_examples, said.base_version, said.losses.after, said.losses.before) == (16, 3, 1.5, None)
    for wrong in ({}, {"numExamples": "-1"}, {"numExamples": "1", "round": "x"}, {"numExamples": "1", "loss": "inf"}):
        with pytest.raises(InputError):
            read_fields(wrong, spec)


def test_a_landing_is_gone_afterwards_and_what_is_kept_is_not(tmp_path: Path) -> None:
    blobs = FolderStore(tmp_path)
    left = tmp_path / "landing" / "killed"
    left.mkdir(parents=True)
    fresh = tmp_path / "landing" / "of another upload"
    fresh.mkdir()
    old = time.time() - 25 * 3600
    os.utime(left, (old, old))
    with UploadFile(blobs, max_bytes=10) as landing:
        landing.write(b"12345")
        landing.write(memoryview(b"67890"))
        digest = landing.digest
        keep(blobs, landing.file, digest)
        with pytest.raises(TooLargeError, match="10 bytes"):
            landing.write(b"!")
    assert not landing.folder.exists()
    assert blobs.read(digest) == b"1234567890"
    assert not left.exists(), "a day old: its server was killed"
    assert fresh.exists()


def test_a_token_names_its_federation_and_proves_it() -> None:
    token = participants.token_of(SECRET, "fed-0123456789ab")
    assert participants.is_token(token)
    assert participants.proven(SECRET, token) == ("fed-0123456789ab", 0, None)
    third = participants.token_of(SECRET, "fed-0123456789ab", 2)
    assert participants.proven(SECRET, third) == ("fed-0123456789ab", 2, None)
    for serial in (0, 2):
        own = participants.token_of(SECRET, "fed-0123456789ab", serial, "lab-3.a_b")
        assert participants.proven(SECRET, own) == ("fed-0123456789ab", serial, "lab-3.a_b")
    for wrong in (
        token[:-1] + "x", token.replace("fed-0", "fed-1"), "fed-0123456789ab.", "fed-.", "fed-..",
        third.replace(".2.", ".3."), third.replace(".2.", "."), token.replace(".", ".1."),
    ):  # fmt: skip
        with pytest.raises(AuthError, match="not valid"):
            participants.proven(SECRET, wrong)
    with pytest.raises(AuthError):
        participants.proven(b"t" * 32, token)


@pytest.mark.parametrize(
    ("who", "look", "part", "steer"),
    [
        (Actor("k", "root", "admin"), True, True, True),
        (Actor("k", "ada", "member"), True, True, True),
        (Actor("k", "bob", "member"), True, False, False),
        (Actor("k", "ada", "viewer"), True, False, False),
        (Actor("k", "fleet", "worker"), True, True, False),
        (FederationActor("fed-0123456789ab"), True, True, False),
        (FederationActor("fed-ffffffffffff"), False, False, False),
    ],
)
def test_who_may_do_what(who: participants.FederationCaller, look: bool, part: bool, steer: bool) -> None:
    for check, allowed in ((may_view, look), (may_take_part, part), (may_manage, steer)):
        if allowed:
            check(who, ROW)
        else:
            with pytest.raises(ForbiddenError):
                check(who, ROW)


def test_another_project_sees_nothing() -> None:
    for who in (Actor("k", "root", "admin", "other"), FederationActor(ROW.id, "other")):
        for check in (may_view, may_take_part, may_manage):
            with pytest.raises(NotFoundError):
                check(who, ROW)


def test_names_of_workers_are_texts_and_whole_numbers() -> None:
    assert [participants.worker_name(name) for name in (1, "lab-3", "a.b_c")] == ["1", "lab-3", "a.b_c"]
    for wrong in ("", "a b", "-x", "../x", "x" * 129, -1):
        with pytest.raises(InputError, match="not a valid worker name"):
            participants.worker_name(wrong)


def test_a_link_names_the_federation_as_its_asker_does() -> None:
    sign = delegated_access.Signer(SECRET, "https://lab.example.org", 1_900_000_000)
    by_number, by_id = sign.version(ROW.id, 7, 3, "d" * 64), sign.version(ROW.id, ROW.id, 3, "d" * 64)
    assert by_number.startswith("https://lab.example.org/api/training/checkpoints/7/download?version=3&expires=19")
    assert by_number.partition("signature=")[2] == by_id.partition("signature=")[2], "it is the same thing"
    other = sign.version(ROW.id, 7, 3, "e" * 64)
    assert by_number.partition("signature=")[2] != other.partition("signature=")[2]
    chunk = sign.chunk(ROW.id, 7, 3, "d" * 64)
    assert chunk.startswith("https://lab.example.org/api/datasets/chunks/7/3/download?expires=")


async def test_what_one_federation_unpacks_or_fetches_holds_up_neither_checks_nor_others() -> None:
    gate = threading.Event()
    slow = [asyncio.create_task(intake.run_transfer(ROW, lambda: gate.wait(120))) for _ in range(12)]
    try:
        other = ROW._replace(id="fed-ba9876543210")
        assert await asyncio.wait_for(intake.run_transfer(other, lambda: "unpacked"), 60) == "unpacked"
        assert await asyncio.wait_for(intake.in_thread(lambda: "checked"), 60) == "checked"
        assert not gate.is_set()
    finally:
        gate.set()
    assert await asyncio.gather(*slow) == [True] * len(slow)
